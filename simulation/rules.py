"""What may never happen, by name; `InvariantError` says which of it did, where and when."""

from enum import StrEnum


class Rule(StrEnum):
    """An invariant of every history, whatever fails in it."""

    ONE_RESULT = "a request that came has one terminal result"
    CAME = "nothing ends or runs that never came"
    AFTER_END = "nothing is dispatched after its end"
    ONE_HAND = "a request is in one worker's hands at a time, again only after it is handed back"
    ROOM = "a lane has at most slots + prefetch unfinished batches when it is sent one"
    BATCH = "a batch keeps to its limits: requests, tokens, bytes"
    SEQUENCE = "decisions and positions follow one another without a gap"
    CLOCK = "the clock of the decisions never goes back"
    EXPIRED = "what has expired does not run"
    CANCELLED = "what was cancelled is not dispatched, and ends as cancelled unless it ran"
    REASON = "a request ends for a reason that is so"
    POLICY = "nothing runs that the policy does not let run"
    PAUSED = "nothing of what is paused is picked until it is resumed or its time is over"
    IN_FLIGHT = "a tenant has no more in flight than its limits let it have"
    WAITING = "a request is refused exactly when as many wait as may"
    IDLE = "no lane has room while work for it is due"
    AGREE = "the topics say what the decisions say"
    BODY = "a body reaches its worker as it came"
    USAGE = "what results say was used adds up to what was counted"
    ENDS = "nothing waits for ever"
    RECOVERY = "what is read back from the log equals what is in memory"
    HALTED = "no process gives up"


class InvariantError(AssertionError):
    """A rule is broken; the message tells the case."""

    def __init__(self, rule: Rule, case: str) -> None:
        self.rule = rule
        super().__init__(f"BROKEN {rule.name}: {rule.value}: {case}")
