"""Entry of the command line.

The services are handed off before the command-line library is imported: importing it
takes longer than all else that a service does before it connects, and how soon work goes on
after a crash is measured from here.
"""

import sys

SERVICES = frozenset({"accounting", "inbox", "ingress", "scheduler", "worker"})

EXIT_USER = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line with the arguments of the process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code: 0 done, 2 what the user can mend, 1 the rest."""
    try:
        if arguments[:1] and arguments[0] in SERVICES:
            from fairlane.cli_services import serve

            return serve(arguments)
        from fairlane.cli import app

        app(arguments, standalone_mode=True)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else EXIT_USER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if not _is_clear(error):
            raise
        print(f"fairlane: {_shown(error)}", file=sys.stderr)
        return EXIT_USER
    return 0


def _is_clear(error: Exception) -> bool:
    """Tell whether the message alone says what to do; anything else is a bug: traceback."""
    from fairlane.errors import FairlaneError
    from fairlane.stack_tools import StackError
    from schemas.log import LogError
    from schemas.policy import PolicyError

    return isinstance(error, FairlaneError | StackError | LogError | PolicyError)


def _shown(error: Exception) -> str:
    """Message of one line as it is; of more, counted and below each other."""
    lines = str(error).splitlines()
    if len(lines) == 1:
        return lines[0]
    return "\n  ".join([f"{len(lines)} faults:", *lines])


if __name__ == "__main__":
    main()
