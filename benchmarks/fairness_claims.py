"""One figure a function: shares, light tenants, splitting, unknown outputs, deadlines, batches.

Each measures one seed and is given it as a number; benchmarks.fairness reports the worst.
Costs are tokens, input and output together.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import cycle, islice

from benchmarks.fairness_load import (
    US_PER_TOKEN,
    WAIT_MS_MAX,
    Estimator,
    core_run,
    fixed_server,
    model_of,
    policy,
)
from benchmarks.fairness_measure import percentile, shares, twice_running
from schemas.policy import CostModel, Fairness, Policy
from schemas.records import Usage
from simulation.direct import Ask, CoreChooser, Direct, Job, Server
from simulation.tenants import stream

Draw = Callable[[], Ask]
#: Requests that a tenant who always has work keeps waiting.
KEPT = 4


def tokens(job: Job) -> int:
    return job.tokens


def usage(job: Job) -> Usage:
    """As counted; the cost as milliseconds too, which is what `adaptive` learns from."""
    return Usage(job.ask.input_tokens, job.output_tokens, service_ms=job.tokens)


def saturate(sim: Direct, draws: Mapping[str, Draw], picks: int) -> list[Job]:
    """Let these tenants have work all the time; the first so many picks."""
    picked: list[Job] = []

    def again(job: Job) -> None:
        picked.append(job)
        if job.tenant in draws:
            sim.ask(draws[job.tenant]()._replace(at_us=sim.now_us))

    sim.on_picked = again
    sim.run([draw() for draw in draws.values() for _ in range(KEPT)], lambda: len(picked) >= picks)
    return picked[:picks]


def drawer(seed: int, tenant: str, least: int = 50, most: int = 500) -> Draw:
    """Requests of evenly drawn sizes, known in advance."""
    random = stream(seed, tenant)

    def draw() -> Ask:
        size = random.randint(least, most)
        return Ask(0, tenant, size, 0, size)

    return draw


def token_server() -> Server:
    """A millisecond a token, whole loads one after the other."""
    return Server(lambda jobs: 1000 * sum(job.tokens for job in jobs), lambda _: 1000)


def sim(under: Policy, slots: int, server: Server | None = None) -> Direct:
    return Direct(CoreChooser(under, slots, usage), server or token_server())


# --- shares


def weights_error(seed: int, weights: str, dispatches: int) -> float:
    """Largest error of a share, points, after so many dispatches and ever after (a tenth more)."""
    parts = {f"t{n}": int(w) for n, w in enumerate(weights.split(":"))}
    under = policy(parts, quantum=250)
    picked = saturate(
        sim(under, 4), {name: drawer(seed, name) for name in parts}, dispatches + dispatches // 10
    )
    service: Counter[str] = Counter()
    worst, total = 0.0, 0
    for number, job in enumerate(picked, start=1):
        service[job.tenant] += job.tokens
        total += job.tokens
        if number >= dispatches:
            for name, weight in parts.items():
                error = service[name] / total - weight / sum(parts.values())
                worst = max(worst, abs(error) * 100)
    return worst


def split_gain(seed: int, picks: int, *, with_parent: bool = True) -> float:
    """Share of an organisation with ten keys beside one with a single key, over a half, - 1."""
    keys = [f"key{n}" for n in range(10)]
    parents = dict.fromkeys(keys, "split") if with_parent else {}
    under = policy(dict.fromkeys(["single", "split", *keys], 1), quantum=250, parents=parents)
    draws = {name: drawer(seed, name) for name in ["single", *keys]}
    share = shares(saturate(sim(under, 4), draws, picks), tokens)
    return 2 * (1 - share["single"]) - 1


def rejoin_gain(seed: int, picks: int, *, told: int = 1, pause_us: int = 0) -> float:
    """Share of one who leaves after each turn and comes back, beside four who stay, x 5 - 1.

    `told`: what it says of its requests is so many times less than the truth.
    """
    stay = [f"stay{n}" for n in range(4)]
    under = policy(dict.fromkeys([*stay, "leaver"], 1), quantum=250)
    running = sim(under, 4)
    random, draw = stream(seed, "pauses"), drawer(seed, "leaver")
    draws = {name: drawer(seed, name) for name in stay}
    left = 0
    picked: list[Job] = []

    def come_back() -> None:
        nonlocal left
        left = random.randint(1, 6)
        at_us = running.now_us + 1 + (random.randrange(pause_us) if pause_us else 0)
        for ask in islice(iter(draw, None), left):
            running.ask(ask._replace(at_us=at_us, estimate_tokens=ask.input_tokens // told))

    def on_picked(job: Job) -> None:
        nonlocal left
        picked.append(job)
        if job.tenant != "leaver":
            running.ask(draws[job.tenant]()._replace(at_us=running.now_us))
            return
        left -= 1
        if not left:
            come_back()

    running.on_picked = on_picked
    come_back()
    first = [draw() for draw in draws.values() for _ in range(KEPT)]
    running.run(first, lambda: len(picked) >= picks)
    return 5 * shares(picked, tokens)["leaver"] - 1


def long_share(
    seed: int, picks: int, estimator: Estimator, fairness: Fairness, *, settles: bool = True
) -> float:
    """Share of a tenant whose outputs are 512 tokens on average beside one with 64.

    Both send 128 tokens; outputs are exponential, at most 4,096, and nobody knows them.
    Without settlement a worker reports what was estimated.
    """
    under = policy(
        {"long": 1, "short": 1}, fairness=fairness, model=model_of(estimator), quantum=256
    )
    most = 4_096
    told = 128 + (most if estimator is not Estimator.FLAT else 256)

    def draw(tenant: str, mean: int) -> Draw:
        random = stream(seed, tenant)
        return lambda: Ask(0, tenant, 128, min(most, 1 + int(random.expovariate(1 / mean))), told)

    def unsettled(job: Job) -> Usage:
        return Usage(job.charge, service_ms=job.charge)

    server = Server(
        lambda jobs: round(sum(job.ask.output_tokens for job in jobs) * US_PER_TOKEN),
        lambda _: round(US_PER_TOKEN),
    )
    running = Direct(CoreChooser(under, 32, usage if settles else unsettled), server)
    picked = saturate(running, {"long": draw("long", 512), "short": draw("short", 64)}, picks)
    return shares(picked, tokens)["long"]


# --- waits


#: Beside light tenants: requests up to so many tokens, which is the quantum too, and slots.
DEAREST, LIGHT_SLOTS = 400, 4
LIGHT = dict.fromkeys(("light", "heavy", "other"), 1)


def light_asks(seed: int, backlog: int, asked: int) -> list[Ask]:
    """One request at a time of a tenant, beside a backlog of this size and another of 1,000."""
    random, own = stream(seed, "light"), drawer(seed, "light", 50, DEAREST)
    spaced = [
        own()._replace(at_us=1_000_000 * n + random.randrange(500_000)) for n in range(1, asked + 1)
    ]
    draw = drawer(seed, "heavy", 50, DEAREST)
    sizes = [draw() for _ in range(997)]
    other = [ask._replace(tenant="other") for ask in islice(cycle(sizes), 1_000)]
    return [*islice(cycle(sizes), backlog), *other, *spaced]


def light_wait(
    seed: int, backlog: int, fairness: Fairness = Fairness.DRR, asked: int = 60
) -> dict[str, float]:
    """Waits of the light tenant, and their bound.

    The bound: each neighbour's quantum and dearest request at the rate of the pool (a token a
    millisecond in each slot), and one request's service.
    """
    running = sim(policy(LIGHT, fairness=fairness, quantum=DEAREST), LIGHT_SLOTS)
    served = _until_served(running, light_asks(seed, backlog, asked), "light", asked)
    return {
        "p99_ms": percentile([job.wait_us / 1000 for job in served], 99),
        "bound_ms": 2 * (DEAREST + DEAREST) / LIGHT_SLOTS + DEAREST,
    }


def requests_first(seed: int, backlog: int, asked: int = 60) -> int:
    """Most requests of one neighbour picked while a light one waits, at a cost of 1 each."""
    running = sim(policy(LIGHT, model=CostModel.REQUEST), LIGHT_SLOTS)
    light = _until_served(running, light_asks(seed, backlog, asked), "light", asked)
    picks = [moment for moment in running.moments if moment.what == "picked"]
    most = 0
    for mine in light:
        since = [p for p in picks if mine.arrived_us <= p.at_us <= mine.picked_us]
        between = Counter(pick.job.tenant for pick in since)
        del between["light"]
        most = max([most, *between.values()])
    return most


def _until_served(running: Direct, asks: list[Ask], tenant: str, count: int) -> list[Job]:
    served: list[Job] = []

    def on_ended(job: Job) -> None:
        if job.tenant == tenant:
            served.append(job)

    running.on_ended = on_ended
    running.run(asks, lambda: len(served) == count)
    return served


def deadlines(seed: int, seconds: int, *, learned: bool = False) -> dict[str, float]:
    """Load 1.5 with deadlines of 1 to 5 s; a request takes 100 ms and 5 ms a token.

    `goodput`: service of what ended in time, of all that the slots could do meanwhile.
    """
    slots, mean_ms = 10, 100 + 5 * 110
    random = stream(seed, "deadlines")
    asks, at_ms = [], 0.0
    while at_ms < seconds * 1000:
        at_ms += random.expovariate(1.5 * slots / mean_ms)
        size = random.randint(20, 200)
        asks.append(
            Ask(
                int(at_ms) * 1000,
                f"t{random.randrange(3)}",
                size,
                0,
                110 if learned else size,
                deadline_us=1000 * random.randint(1_000, 5_000),
            )
        )

    def took_ms(job: Job) -> int:
        return 100 + 5 * job.tokens

    server = Server(lambda jobs: 1000 * sum(map(took_ms, jobs)), lambda _: 100_000)
    times = {} if learned else {"service_ms": 100, "token_us": 5_000}
    model = CostModel.ADAPTIVE if learned else CostModel.TOKEN
    under = policy(dict.fromkeys(("t0", "t1", "t2"), 1), model=model, quantum=110, endpoint=times)

    def measured(job: Job) -> Usage:
        return Usage(job.tokens, service_ms=took_ms(job))

    running = Direct(CoreChooser(under, slots, measured), server).run(asks)
    warm_us, until_us = 5_000_000, seconds * 1_000_000
    late, good = 0, 0
    for job in running.jobs:
        if job.picked_us < 0:
            continue
        due_us = job.arrived_us + job.ask.deadline_us
        expected_ms = job.charge if learned else took_ms(job)
        late += job.picked_us + 1000 * expected_ms > due_us
        if job.end_us <= due_us:
            good += max(0, min(job.end_us, until_us) - max(job.picked_us, warm_us))
    return {"late_dispatched": late, "goodput": good / (slots * (until_us - warm_us))}


# --- batches and order


def batch_fill(seed: int, load: float, fairness: Fairness) -> float:
    """How full batches are (32 requests or 8,192 tokens), of what arrives at this load.

    A batch takes 20 ms and 50 us a token; two slots; eight tenants with lognormal sizes.
    """
    random = stream(seed, "batches")
    seconds, mean, per_s = 60, 330, load * 2 * 8_192 / (0.02 + 8_192 * 50e-6) / 330
    asks, at_s = [], 0.0
    while at_s < seconds:
        at_s += random.expovariate(per_s)
        size = min(2_000, max(20, int(random.lognormvariate(0, 1) * mean / 1.65)))
        asks.append(Ask(int(at_s * 1e6), f"t{min(7, int(random.expovariate(0.5)))}", size, 0, size))
    limits = {
        "batch_requests": 32,
        "batch_tokens": 8_192,
        "batch_wait_ms": 100,
        "tokens_max": 2_000,
        "wait_ms_max": WAIT_MS_MAX,
    }
    tenants = {f"t{n}": 1 for n in range(8)}
    under = policy(tenants, fairness=fairness, quantum=500, endpoint=limits)
    server = Server(lambda jobs: 20_000 + 50 * sum(job.tokens for job in jobs), lambda _: 20_000)
    running = Direct(CoreChooser(under, 2, usage), server).run(asks)
    fills = [
        max(len(made.jobs) / 32, sum(job.tokens for job in made.jobs) / 8_192)
        for made in running.loads
        if made.start_us < seconds * 1e6
    ]
    return sum(fills) / len(fills)


def stream_twice(seed: int, picks: int, weight: int = 1, fairness: Fairness = Fairness.DRR) -> int:
    """Picks of one tenant twice running: request cost, quantum 1, six tenants who come and go."""
    random = stream(seed, "streaming")
    names = [f"t{n}" for n in range(6)]
    asks, at_us = [], 0
    for _ in range(picks):
        at_us += int(random.expovariate(1 / 160_000))
        asks += [
            Ask(at_us, random.choice(names), 10, 1 + int(random.expovariate(1 / 20)), 30)
        ] * random.choice((1, 1, 1, 4))
    under = policy(dict.fromkeys(names, weight), fairness=fairness, model=CostModel.REQUEST)
    ran = core_run(asks, under, 5)
    return twice_running(ran.moments, dict.fromkeys(names, weight))


def priorities_matter(seed: int, requests: int, fairness: Fairness = Fairness.DRR) -> int:
    """How often another tenant's order of service differs when only a's priorities do."""
    random = stream(seed, "priorities")
    plain, at_us = [], 0
    for _ in range(requests):
        at_us += int(random.expovariate(1 / 90_000))
        plain.append(Ask(at_us, random.choice("abc"), 50, 50, 100, random.randrange(1_000)))
    urgent = [
        ask._replace(priority=random.randrange(1_000)) if ask.tenant == "a" else ask
        for ask in plain
    ]
    orders = []
    for asks in (plain, urgent):
        under = policy(dict.fromkeys("abc", 1), fairness=fairness, model=CostModel.REQUEST)
        ran = core_run(asks, under, 4, fixed_server(450_000))
        picks = [moment for moment in ran.moments if moment.what == "picked"]
        orders.append([m.job.number for m in picks if m.job.tenant != "a"])
    return sum(one != two for one, two in zip(*orders, strict=True))
