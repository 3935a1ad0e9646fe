"""Process wiring of the ingress: an HTTP server around `producers.app`.

The socket is opened first, so that a taken port is a clear message. On a signal the
ingress drains (balancers see it on /readyz, long polls end), calls under way finish, and
the end of the application's lifespan flushes what is still on its way to the log.
"""

import asyncio
import secrets
import socket
from types import FrameType

import uvicorn

from adapters.clock import SystemClock
from adapters.redis import RedisIndex, RedisLimits, connect
from adapters.redis_backlog import RedisBacklog
from fairlane.errors import FairlaneError
from fairlane.run import EXIT_CLEAN, EXIT_FAILED, Process, open_log, stop_on_signals
from producers.app import build_app
from producers.ingress import Ingress, Parts
from producers.limiting import WhenDown

#: Calls under way at a stop get this long; long polls end at once.
GRACE_S = 10
#: Connections that wait to be accepted.
BACKLOG = 1_024


def run_ingress(process: Process, host: str, port: int, when_down: WhenDown) -> int:
    """Serve HTTP until told to stop; returns the exit code.

    Raises FairlaneError when the address can't be listened on or Redis is not configured.
    """
    process.notes.follow_logging()
    stop = stop_on_signals()  # the server raises the signal that stopped it once more: for us
    url = process.settings.need_redis()
    listener = listen(host, port)
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
                when_down=when_down,
                backlog=RedisBacklog(client, prefix),
            )
        )
        config = uvicorn.Config(
            build_app(ingress),
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = DrainingServer(config, ingress)
        process.notes.info("listening", host=host, port=listener.getsockname()[1])
        if not stop.is_set():
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[listener]))
        log.close()
    process.notes.info("stopped")
    return EXIT_CLEAN if server.started or stop.is_set() else EXIT_FAILED


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. Raises FairlaneError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise FairlaneError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error


class DrainingServer(uvicorn.Server):
    """A server that tells its ingress of a signal before it stops."""

    def __init__(self, config: uvicorn.Config, ingress: Ingress) -> None:
        """Keep the ingress; nothing is served yet."""
        super().__init__(config)
        self._ingress = ingress
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, then stop as the server does; a second SIGINT stops at once."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ingress.drain)
        super().handle_exit(sig, frame)
