"""A transport of httpx whose calls can be given up: by a cancel, or when a call took too long.

A socket that waits for its next byte hears nobody. So reads and writes here wait in short
steps and look, between two of them, at the *watch* of the call that their thread makes. What
it raises closes the connection, and a server whose client has gone stops generating.

What belongs here: connections. What does not: what is sent over them.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpcore
import httpx

#: How often a waiting read looks whether its call is still wanted, seconds: soon enough for a
#: person, rare enough that a thousand waiting slots take little of the processor.
LOOK_S = 0.1
#: Sent in one step: a piece that a connection takes at once is not looked at in between.
PIECE_BYTES = 262_144
#: Idle connections are kept so long, seconds: less than the five after which servers under
#: uvicorn hang up, or a call would be written into a connection that is being closed.
KEEPALIVE_S = 4.0
#: Idle connections kept at once: one for each slot of a large worker.
KEEPALIVE_MAX = 256

#: What the transport raises when there was no connection to be had.
CONNECT_ERRORS = (httpcore.ConnectError, httpcore.ConnectTimeout)
#: What it raises when there was no answer, or no end of one; the above among them.
CALL_ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)

_SocketOptions = Iterable[
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
]


class StoppedError(Exception):
    """A call is no longer wanted."""


class TooLongError(Exception):
    """A call took longer than it may."""


class Watch:
    """What one call's reads and writes look at: whether it is wanted, and until when it may take.

    `until_s` is on the clock of `time.monotonic`.
    """

    def __init__(self, cancelled: Callable[[], bool], until_s: float) -> None:
        """Nothing is looked at yet."""
        self.cancelled = cancelled
        self.until_s = until_s

    def look(self) -> float:
        """Seconds that are left. Raises StoppedError, TooLongError."""
        if self.cancelled():
            raise StoppedError("nobody wants this call any more")
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TooLongError("the call took longer than it may")
        return left_s


class WatchedTransport(httpx.BaseTransport):
    """Pooled HTTP/1.1 connections; `watch` is set around each call by the thread that makes it."""

    def __init__(self, *, is_tls: bool) -> None:
        """Connect to nothing yet; certificates are loaded once, and only for TLS (20 ms)."""
        self._calls = threading.local()
        self._pool = httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context() if is_tls else None,
            max_connections=None,  # the slots are the limit
            max_keepalive_connections=KEEPALIVE_MAX,
            keepalive_expiry=KEEPALIVE_S,
            network_backend=_Backend(self._calls),
        )

    def watch(self, watch: Watch | None) -> None:
        """Say what calls of this thread look at from now on; None: at nothing."""
        self._calls.watch = watch

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises CALL_ERRORS, StoppedError and TooLongError."""
        url = request.url
        assert isinstance(request.stream, httpx.SyncByteStream), "the client here is synchronous"
        said = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        assert isinstance(said.stream, Iterable), "the pool here is synchronous"
        return httpx.Response(said.status, headers=said.headers, stream=_Body(said.stream))

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    """The bytes of an answer as they come."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()


class _Backend(httpcore.SyncBackend):
    """Connects as usual; the streams it gives are watched."""

    def __init__(self, calls: threading.local) -> None:
        self._calls = calls

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: _SocketOptions | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._calls)


class _Stream(httpcore.NetworkStream):
    """A stream that waits in short steps, and whose writes go together.

    Head and body of a request are written apart; sent apart they wake the server twice. So
    they wait for the first read.
    """

    def __init__(self, stream: httpcore.NetworkStream, calls: threading.local) -> None:
        self._stream, self._calls = stream, calls
        self._unsent: list[bytes] = []

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._send(timeout)
        watch: Watch | None = getattr(self._calls, "watch", None)
        if watch is None:
            return self._stream.read(max_bytes, timeout)
        until_s = time.monotonic() + timeout if timeout is not None else float("inf")
        while True:
            step_s = min(LOOK_S, watch.look())
            try:
                return self._stream.read(max_bytes, step_s)
            except httpcore.ReadTimeout:
                if time.monotonic() >= until_s:
                    raise httpcore.ReadTimeout(f"nothing came for {timeout:g} s") from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._unsent.append(buffer)

    def _send(self, timeout: float | None) -> None:
        if self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            watch: Watch | None = getattr(self._calls, "watch", None)
            if watch is None:
                self._stream.write(data, timeout)
            else:
                _send_watched(self._stream.get_extra_info("socket"), data, timeout, watch)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, timeout)
        return _Stream(stream, self._calls)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _send_watched(
    connected: socket.socket, data: bytes, timeout: float | None, watch: Watch
) -> None:
    """Send all, looking at the watch; who reads nothing for `timeout` seconds is given up.

    The stream's own write can't be used: after a time-out nobody knows how much it sent.
    """
    left = memoryview(data)
    most_s = timeout if timeout is not None else float("inf")
    until_s = time.monotonic() + most_s
    while left:
        connected.settimeout(min(LOOK_S, watch.look()))
        try:
            sent = connected.send(left[:PIECE_BYTES])
        except TimeoutError:
            if time.monotonic() >= until_s:
                raise httpcore.WriteTimeout(f"nothing was read for {timeout:g} s") from None
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error
        else:
            left = left[sent:]
            until_s = time.monotonic() + most_s
