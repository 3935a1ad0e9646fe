"""Where a lane's holder is."""

from enum import Enum, auto


class Phase(Enum):
    """Where a lane's holder is; see `workers.lane`."""

    TAKE = auto()
    READ = auto()
    SERVE = auto()
    GONE = auto()
