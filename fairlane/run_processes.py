"""Several ingress processes behind one port: one a core.

Each is a whole ingress of its own, with its own static name, and listens on the same address
(SO_REUSEPORT): the kernel shares connections out. This process serves nothing. It holds the
port, starts again what died, and on a signal stops all of them. Should it die itself, they see
their standard input end, and stop.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from fairlane.errors import FairlaneError
from fairlane.run import EXIT_CLEAN, EXIT_FAILED, Process, stop_on_signals
from fairlane.run_ingress import GRACE_S, listen

#: What died is started again after so long.
RESTART_S = 1.0
#: How often it is looked after them.
LOOK_S = 0.1
#: A stop takes as long as calls under way may, the flush and the index after them.
STOP_S = GRACE_S + 15.0


def run_processes(
    process: Process, host: str, port: int, arguments: Sequence[str], count: int, drain_s: float
) -> int:
    """Run `count` ingresses until told to stop; returns the exit code.

    `arguments` are those of each, but for host, port, name and metrics. Raises FairlaneError
    when the address is taken or Redis is not configured.
    """
    process.settings.need_redis()
    stop = stop_on_signals()
    listen(host, port).close()  # who listens there already would share it with us
    with _hold(host, port) as held:
        port = held.getsockname()[1]
        process.notes.info("starting", host=host, port=port, processes=count)
        common = ["ingress", "--host", host, "--port", str(port), *arguments]
        children = [_Child(process, number, common) for number in range(count)]
        while not stop.wait(LOOK_S):
            for child in children:
                child.look()
        codes = _stop(children, STOP_S + drain_s)
    process.notes.info("stopped")
    return EXIT_CLEAN if not any(codes) else EXIT_FAILED


def watch_parent() -> None:
    """Stop this process, cleanly, when the one that started it is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):  # a buffered read would hold up the exit
            pass
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class _Child:
    """One ingress, started again whenever it ends by itself."""

    def __init__(self, process: Process, number: int, common: Sequence[str]) -> None:
        self._notes, self._number = process.notes, number
        own = ["--process", str(number)]
        if process.instance:
            own += ["--instance", f"{process.instance}-{number}"]
        if process.metrics_port:
            own += ["--metrics-port", str(process.metrics_port + number)]
        self._command = [sys.executable, "-m", "fairlane", *common, *own]
        self._again_s = 0.0
        self.running = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        # A session of its own: a terminal's signal would come twice, and the second one kills.
        return subprocess.Popen(  # noqa: S603 - this program
            self._command, stdin=subprocess.PIPE, start_new_session=True
        )

    def look(self) -> None:
        """Start it again if it has ended, after a pause."""
        code = self.running.poll()
        if code is None:
            return
        if not self._again_s:
            self._notes.warning("a process ended", process=self._number, code=code)
            self._again_s = time.monotonic() + RESTART_S
        elif time.monotonic() >= self._again_s:
            self._again_s = 0.0
            self.running = self._start()


def _hold(host: str, port: int) -> socket.socket:
    """Bind the address without listening: it stays ours while a process is being restarted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise FairlaneError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    return held


def _stop(children: Sequence[_Child], patience_s: float) -> list[int]:
    for child in children:
        child.running.send_signal(signal.SIGTERM)
    end_s = time.monotonic() + patience_s
    codes = []
    for child in children:
        try:
            codes.append(child.running.wait(max(0.0, end_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            child.running.kill()
            codes.append(child.running.wait())
    return codes
