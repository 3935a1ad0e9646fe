"""Parts that fail as the test decides."""

from collections.abc import Callable

from schemas.log import Headers, OnDelivery


class SickProducer:
    """A producer whose reports the test decides on."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.reports: list[OnDelivery] = []
        self.at_flush: Callable[[], None] = lambda: None

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        if self.error:
            raise self.error
        if on_delivery:
            self.reports.append(on_delivery)

    def flush(self, timeout_s: float) -> int:
        self.at_flush()
        return 0

    def close(self) -> None:
        pass
