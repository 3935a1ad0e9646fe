"""One value of every kind of record, with every field set to something telling."""

from msgspec import Struct

from schemas import records, usage
from schemas.records import (
    ApiKey,
    Arrived,
    Batch,
    BatchCancel,
    Cancel,
    Chain,
    ControlSaid,
    Dead,
    Decision,
    End,
    Ended,
    Finished,
    HandedBack,
    Item,
    Outcome,
    Pause,
    Picked,
    PolicySet,
    Read,
    Refusal,
    Released,
    Request,
    Requeued,
    Result,
    Resume,
    Sealed,
    Seen,
    SnapshotChunk,
    Started,
    TopicMet,
    Unpaused,
    Usage,
    WorkerSaid,
)
from schemas.usage import Cost, UsageLost, UsageSum, Used, Window

_USAGE = Usage(7, 5, 3, 2, 41, 13)
_ITEM = Item(
    (3 << 44) + 17,
    "req-1",
    "acme",
    "embed",
    1,
    4,
    1_700_000_000_000,
    1_700_000_060_000,
    96,
    (("traceparent", b"00-01"), ("x", b"\xff")),
)

SAMPLES: tuple[Struct, ...] = (
    Request(1, "req-1", "acme", "embed", 3, 1_700_000_060_000, 64, 32, 5),
    Batch(1, 2, 9, "gpu", 1_700_000_000_500, (_ITEM,)),
    BatchCancel(1, 9, 17),
    Result(
        1, "req-1", "acme", "embed", End.FAILED, "attempts", "died", 3, _USAGE,
        1_700_000_000_000, 1_700_000_000_500, 1_700_000_001_000,
    ),
    Dead(1, "fairlane.requests.premium", 4, 77, "unreadable", "cut", "req-1", "acme"),
    Seen(1, 8),
    Started(1, 9),
    Finished(
        1, 9, (Outcome(17, End.SUCCEEDED, _USAGE),), ("acme",), ("embed",), 1_700_000_001_000
    ),
    HandedBack(1, 9),
    Cancel(1, "fairlane.requests.premium", 4, 78),
    Pause(1, "acme", "embed", 1_700_000_060_000),
    Resume(1, "acme", "embed"),
    UsageSum(
        1, "acme", "embed", Window.HOUR, 1_699_999_200_000, "gpu", 3, 78,
        Used(9, 8, 7, 6, 5, 4, 3, 2, 1), 5, 2, 1_700_000_000_500, 1_700_000_001_000, 12,
    ),
    UsageLost(1, "gpu", 3, 78, 90, 1_700_000_001_000),
    Cost(1, "acme", "embed", "gpu", 3, 78, 12, 640, 1_700_000_001_000),
    Refusal(1, "req-2", "acme", "embed", "rate_limit", 4, "requests_per_minute", 12, 3),
    ApiKey(1, "00ff", "acme", bytes(range(32)), 1_700_000_000_000, 1_700_000_000_001, "laptop"),
    Decision(
        1, 2, 10, 1_700_000_000_600,
        (
            PolicySet(b'{"version":1}'),
            WorkerSaid("gpu", 1, HandedBack(1, 8)),
            ControlSaid(Cancel(1, "t", 0, 5)),
            ControlSaid(Pause(1, "acme", "", 1_700_000_002_000)),
            ControlSaid(Resume(1, "", "embed")),
            Read("fairlane.control", 2, 6),
            Arrived("fairlane.requests.premium", 4, "premium", 70, 78, ((77, "unreadable"),)),
            TopicMet("fairlane.requests.premium", "id-1"),
            Ended(18, "expired"),
            Requeued(19, 2, 1_700_000_005_000),
            Released(20),
            Unpaused("acme", ""),
            Picked(17, 64, 1, 3, 2, 5),
            Sealed("gpu", 1, 9),
        ),
    ),
    SnapshotChunk(1, 2, 10, 0, 2, b"\x00state"),
    Chain(1, 10, bytes(range(16)), 55),
)  # fmt: skip


def kind_of(record: Struct) -> str:
    """Tag of a record: what its golden file is called."""
    return str(record.__struct_config__.tag)


def kinds_in_schema() -> set[str]:
    """Tags of all records that carry a version: those that stand on a topic by themselves."""
    return {
        str(kind.__struct_config__.tag)
        for kind in [*vars(records).values(), *vars(usage).values()]
        if isinstance(kind, type)
        and issubclass(kind, Struct)
        and kind is not Struct
        and "v" in kind.__struct_fields__
    }
