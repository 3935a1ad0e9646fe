"""Another scheduler beside ours, in the same simulator: virtual token counters as published.

Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2: a
request's input is charged when it is taken, each output token when it is made. A tenant that
had nothing waiting is lifted on its return to the least counter of those who have, or to that
of the last who had.
"""

from collections import deque

from simulation.direct import Chosen, Job, Load

OUTPUT_WEIGHT = 2


class PublishedVtc:
    """One pool with so many slots, a request in each; `us_per_token` is how fast outputs come."""

    def __init__(self, slots: int, us_per_token: float) -> None:
        self._slots = slots
        self._us_per_token = us_per_token
        self._waiting: dict[str, deque[Job]] = {}
        self._counters: dict[str, int] = {}
        self._running: dict[int, tuple[Job, int]] = {}  # number -> its job, outputs charged
        self._last = ""
        self._numbers = 0

    def cycle(
        self, now_us: int, arrived: list[Job], landed: list[Load], cancelled: list[Job]
    ) -> Chosen:
        """Charge what was made since, take in what came, fill free slots."""
        if cancelled:
            raise ValueError("the paper has no cancels")
        self._charge_outputs(now_us)
        for load in landed:
            job, charged = self._running.pop(load.number)
            self._add(job.tenant, OUTPUT_WEIGHT * (job.output_tokens - charged))
        for job in arrived:
            self._arrive(job)
        loads = []
        while self._waiting and len(self._running) < self._slots:
            tenant = min(self._waiting, key=lambda name: (self._counters[name], name))
            job = self._waiting[tenant].popleft()
            if not self._waiting[tenant]:
                del self._waiting[tenant]
                self._last = tenant
            self._add(tenant, job.ask.input_tokens)
            self._numbers += 1
            self._running[self._numbers] = (job, 0)
            loads.append(Load(self._numbers, [job]))
        return Chosen(loads, [], [])

    def wake_us(self, *, is_idle: bool) -> None:
        """Nothing is due by time."""
        del is_idle

    def slots(self, pool: str, lane: int) -> int:
        """All slots are in one lane."""
        del pool, lane
        return self._slots

    def _arrive(self, job: Job) -> None:
        tenant, counters = job.tenant, self._counters
        counters.setdefault(tenant, 0)
        if tenant not in self._waiting:
            floor = 0
            if self._waiting:
                floor = min(counters[name] for name in self._waiting)
            elif self._last:
                floor = counters[self._last]
            counters[tenant] = max(counters[tenant], floor)
            self._waiting[tenant] = deque()
        self._waiting[tenant].append(job)

    def _charge_outputs(self, now_us: int) -> None:
        for number, (job, charged) in self._running.items():
            made = int((now_us - job.picked_us) / self._us_per_token)
            made = min(made, job.output_tokens)
            self._add(job.tenant, OUTPUT_WEIGHT * (made - charged))
            self._running[number] = (job, made)

    def _add(self, tenant: str, cost: int) -> None:
        self._counters[tenant] += cost
