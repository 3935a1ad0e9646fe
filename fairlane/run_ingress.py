"""Process wiring of the ingress: an HTTP server around `producers.app`.

The socket is opened first, so that a taken port is a clear message. On a signal the
ingress drains (balancers see it on /readyz, long polls end), calls under way finish, and
the end of the application's lifespan flushes what is still on its way to the log.
"""

import asyncio
import gc
import secrets
import socket
from types import FrameType
from typing import NamedTuple

import uvicorn

from adapters.clock import SystemClock
from adapters.metrics import MetricsError, PrometheusMeter
from adapters.redis import RedisIndex, connect
from adapters.redis_backlog import RedisBacklog
from adapters.redis_claims import RedisClaims
from adapters.redis_limits import RedisLimits
from fairlane.errors import FairlaneError
from fairlane.http_protocol import GuardedProtocol
from fairlane.run import EXIT_CLEAN, EXIT_FAILED, Process, open_log, stop_on_signals
from fairlane.token_counts import Tokenizer, load
from producers.app import build_app
from producers.ingress import Ingress
from producers.limiting import WhenDown
from producers.parts import Parts

#: Calls under way at a stop get this long; long polls end at once.
GRACE_S = 10
#: New objects before cycles are looked for: some hundred requests.
COLLECTED_OBJECTS = 50_000
#: Connections that wait to be accepted.
BACKLOG = 1_024


class Serving(NamedTuple):
    """How an ingress serves.

    `drain_s` is how long balancers have to see that it stops before it takes no connections any
    more; `number` counts the processes behind one port, None where there is but one.
    """

    host: str
    port: int
    when_down: WhenDown = WhenDown.DEGRADED
    drain_s: float = 0.0
    number: int | None = None
    tokenizers: tuple[Tokenizer, ...] = ()


def run_ingress(process: Process, serving: Serving) -> int:
    """Serve HTTP until told to stop; returns the exit code.

    Raises FairlaneError when an address can't be listened on or Redis is not configured.
    """
    process.notes.follow_logging()
    stop = stop_on_signals()  # the server raises the signal that stopped it once more: for us
    url = process.settings.need_redis()
    meter = _meter(process, serving)
    listener = listen(serving.host, serving.port, is_shared=serving.number is not None)
    with listener:
        client = connect(url)
        prefix = process.settings.prefix
        log = open_log(process.settings)
        ingress = Ingress(
            Parts(
                log=log,
                topics=process.topics,
                limits=RedisLimits(client, prefix),
                index=RedisIndex(client, prefix),
                clock=SystemClock(),
                random_bytes=secrets.token_bytes,
                instance=process.instance,
                when_down=serving.when_down,
                meter=meter,
                claims=RedisClaims(client, prefix),
                backlog=RedisBacklog(client, prefix),
                token_counts=load(serving.tokenizers),
            )
        )
        config = uvicorn.Config(
            build_app(ingress, meter.text),
            http=GuardedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            proxy_headers=False,  # nothing here depends on where a caller's connection comes from
            timeout_graceful_shutdown=GRACE_S,
        )
        server = DrainingServer(config, ingress, serving.drain_s)
        process.notes.info("listening", host=serving.host, port=listener.getsockname()[1])
        _calm_collector()
        if not stop.is_set():
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[listener]))
        log.close()
    process.notes.info("stopped")
    return EXIT_CLEAN if server.started or stop.is_set() else EXIT_FAILED


def _calm_collector() -> None:
    """Look for cycles rarely, and never again in what is there now.

    A request leaves none behind, but makes enough objects to have them looked for every few
    requests, and now and then all that was ever imported: that is when others wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS)


def _meter(process: Process, serving: Serving) -> PrometheusMeter:
    """The meter, also on a port of this process's own: one port may be several processes."""
    number = serving.number
    meter = PrometheusMeter(process="" if number is None else str(number))
    if process.metrics_port is not None:
        try:
            meter.serve(process.metrics_port)
        except MetricsError as error:
            raise FairlaneError(str(error)) from error
    return meter


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Open the listening socket, of several processes if `is_shared`. Raises FairlaneError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, port), family=family, backlog=BACKLOG, reuse_port=is_shared
        )
    except OSError as error:
        raise FairlaneError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error


class DrainingServer(uvicorn.Server):
    """A server that tells its ingress of a signal before it stops."""

    def __init__(self, config: uvicorn.Config, ingress: Ingress, drain_s: float = 0.0) -> None:
        """Keep the ingress; nothing is served yet."""
        super().__init__(config)
        self._ingress, self._drain_s = ingress, drain_s
        self._is_told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, then stop as the server does; a second signal does not wait for balancers."""
        is_first, self._is_told = not self._is_told, True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ingress.drain)
        if self._loop is None or not is_first or not self._drain_s:
            super().handle_exit(sig, frame)
            return
        loop, stop = self._loop, super().handle_exit
        loop.call_soon_threadsafe(lambda: loop.call_later(self._drain_s, stop, sig, frame))
