"""Processes that outlive their starter: pid files, and stopping only what is ours.

What belongs here: spawning, recognising, signalling. What does not: what the processes are.

A pid file holds the pid and the birth of the process, so that a pid which the system has
given to somebody else since is never signalled: who has another birth is not ours.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

#: How often a condition is looked at again while something starts or stops.
POLL_SECONDS = 0.02
#: A killed process is gone within milliseconds; beyond this the kernel holds it.
KILL_SECONDS_MAX = 10.0

_PROC = Path("/proc")


def spawn(command: Sequence[str], env: Mapping[str, str], log_path: Path, pid_path: Path) -> None:
    """Start a program in a session of its own, output appended to a log, and note its pid."""
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    note = {"pid": pid, "birth": _birth(pid)}
    fresh = pid_path.with_suffix(".new")
    fresh.write_text(json.dumps(note))
    fresh.replace(pid_path)


def running(pid_path: Path) -> int | None:
    """The pid of the process that the file speaks of, while it runs; else None."""
    try:
        note = json.loads(pid_path.read_text())
        pid, birth = int(note["pid"]), str(note["birth"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return pid if birth and _birth(pid) == birth else None


def stop(pid_path: Path, grace_seconds: float) -> bool:
    """End the process: SIGTERM, after the grace SIGKILL. True when it went by itself.

    A grace of 0 sends SIGKILL at once. The pid file is removed once the process is gone.

    Raises:
        TimeoutError: the process survives SIGKILL (it hangs in the kernel).
    """
    pid = running(pid_path)
    went_by_itself = True
    if pid is not None and grace_seconds > 0:
        _signal(pid, signal.SIGTERM)
        went_by_itself = until(lambda: running(pid_path) is None, grace_seconds)
    if running(pid_path) is not None and pid is not None:
        _signal(pid, signal.SIGKILL)
        went_by_itself = False
        if not until(lambda: running(pid_path) is None, KILL_SECONDS_MAX):
            raise TimeoutError(f"process {pid} ({pid_path}) survives SIGKILL")
    pid_path.unlink(missing_ok=True)
    return went_by_itself


def until(condition: Callable[[], bool], seconds_max: float) -> bool:
    """Look at a condition until it holds; False when it doesn't in time."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _birth(pid: int) -> str:
    """What tells this process from any other that bears its pid; "" when it doesn't run."""
    if (_PROC / "self" / "stat").exists():
        return _birth_from_proc(pid)
    return _birth_from_ps(pid)


def _birth_from_proc(pid: int) -> str:
    try:
        # The name in parentheses may itself hold spaces and parentheses: count from its end.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, start_ticks = fields[0], fields[19]
    return "" if _is_dead(pid, state) else f"{boot}/{start_ticks}"


def _birth_from_ps(pid: int) -> str:
    answer = subprocess.run(
        ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, start = answer.stdout.strip().partition(" ")
    return "" if not state or _is_dead(pid, state[0]) else start.strip()


def _is_dead(pid: int, state: str) -> bool:
    """A zombie has ended; if it is our child, let it go."""
    if state not in ("Z", "X"):
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True
