"""What a demo found: its figures side by side, as JSON and as one sentence.

Pure: tallies in, values and words out.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fairlane.demo_scene import Scene
from fairlane.demo_tally import Tally, waits_of


class Report(NamedTuple):
    """The runs of one scene by name, each on the same traffic; `facts` go into the JSON."""

    scene: Scene
    fairlane: Tally
    one_queue: Tally | None
    tiers_only: Tally | None
    duration_s: float
    facts: Mapping[str, Any]

    @property
    def runs(self) -> dict[str, Tally]:
        """The runs to show, the controls first; a control that equals another is left out."""
        runs = {"one queue": self.one_queue}
        if self.tiers_only is not self.one_queue:
            runs["tiers only"] = self.tiers_only
        runs["Fairlane"] = self.fairlane
        return {name: tally for name, tally in runs.items() if tally is not None}

    def slowest_ms(self, tally: Tally) -> int:
        """The longest wait of the light tenant in a run."""
        return tally.waits(self.scene.light).max


def document(report: Report) -> dict[str, Any]:
    """The JSON of `fairlane demo --json`; waits in milliseconds, null for a run not made."""
    scene = report.scene
    found: dict[str, Any] = {
        "tenants": [_tenant(report, name) for name in report.fairlane.tenants],
        "duration_s": round(report.duration_s, 3),
        "batch_ms": report.fairlane.batch_ms(),
        "batch_fill": {_key(n): round(_fill(report, run), 4) for n, run in report.runs.items()},
        **report.facts,
    }
    if scene.light:
        found["heavy_tenant"] = scene.heavy
        found["light_tenant"] = scene.light
        found["light_slowest_ms"] = {
            _key(name): report.slowest_ms(tally) for name, tally in report.runs.items()
        }
    return found


def _key(run: str) -> str:
    return run.lower().replace(" ", "_")


def _tenant(report: Report, name: str) -> dict[str, Any]:
    tally = report.fairlane.tenants[name]
    return {
        "name": name,
        "tier": tally.tier,
        "weight": tally.weight,
        "requests": len(tally.arrived_ms),
        "served": len(tally.waits_ms),
        "wait_ms": _waits(report.fairlane, name),
        "one_queue_wait_ms": _waits(report.one_queue, name),
        "tiers_only_wait_ms": _waits(report.tiers_only, name),
    }


def _waits(tally: Tally | None, name: str) -> dict[str, int] | None:
    return tally.waits(name)._asdict() if tally else None


def _fill(report: Report, tally: Tally) -> float:
    """How full batches were while the heavy tenant's burst waited, or all the time."""
    batch_requests = report.scene.policy.endpoints[0].batch_requests
    heavy = tally.tenants.get(report.scene.heavy)
    if heavy is None or not heavy.arrived_ms:
        return tally.fill(0, tally.last_ended_ms() + 1, batch_requests)
    until_ms = heavy.last_picked_ms
    return tally.fill(heavy.arrived_ms[0], until_ms, batch_requests)


def verdict(report: Report) -> list[str]:
    """What happened, with the figures: a sentence first, then what else should be known."""
    if report.scene.light:
        return _story_verdict(report)
    return _trace_verdict(report)


def _story_verdict(report: Report) -> list[str]:
    scene, fairlane = report.scene, report.fairlane
    count = len(fairlane.tenants[scene.light].arrived_ms)
    mine = seconds(report.slowest_ms(fairlane))
    if report.one_queue is None or report.tiers_only is None:
        heavy = seconds(fairlane.waits(scene.heavy).max)
        sentence = (
            f"The slowest of {scene.light}'s {count} requests waited {mine}, {scene.heavy}'s last "
            f"one {heavy}: {scene.heavy} waits behind itself alone."
        )
        return [sentence]
    queue, tiers = (seconds(report.slowest_ms(t)) for t in (report.one_queue, report.tiers_only))
    burst = len(fairlane.tenants[scene.heavy].arrived_ms)
    fills = [f"{100 * _fill(report, t):.0f} %" for t in (fairlane, report.one_queue)]
    ends = [_heavy_took(report, tally) for tally in (fairlane, report.one_queue)]
    sentence = (
        f"Behind {scene.heavy}'s {burst:,}, the slowest of {scene.light}'s {count} waited {queue} "
        f"in one queue and {tiers} with tiers alone; with Fairlane it waited {mine}."
    )
    price = (
        f"The price: {scene.heavy}'s burst took {ends[0]} instead of {ends[1]}. Batches were "
        f"{fills[0]} full (one queue: {fills[1]}). The {scene.policy.tiers[-1].name} tier is "
        "served after the others, in both runs with tiers."
    )
    return [sentence, price]


def _heavy_took(report: Report, tally: Tally) -> str:
    heavy = tally.tenants[report.scene.heavy]
    return seconds(heavy.last_ended_ms - heavy.arrived_ms[0])


def _trace_verdict(report: Report) -> list[str]:
    fairlane, control = report.fairlane, report.one_queue
    heaviest = max(fairlane.tenants.values(), key=lambda t: len(t.arrived_ms)).name
    mine = fairlane.waits(heaviest).p95
    others = [name for name in fairlane.tenants if name != heaviest]
    if control is None:
        worst = max((fairlane.waits(name).p95 for name in others), default=0)
        sentence = (
            f"The heaviest tenant, {heaviest}, waited {seconds(mine)} at p95; the worst p95 of "
            f"the {len(others)} others is {seconds(worst)}."
        )
        return [sentence]
    shorter = [n for n in others if fairlane.waits(n).p95 < control.waits(n).p95]
    medians = [
        waits_of([run.waits(name).p95 for name in others]).p50 for run in (fairlane, control)
    ]
    sentence = (
        f"Of the {len(others)} tenants beside the heaviest, {len(shorter)} waited less at p95 "
        f"than in one queue: {seconds(medians[0])} instead of {seconds(medians[1])} for the "
        f"median tenant. The heaviest, {heaviest}, waited {seconds(mine)} instead of "
        f"{seconds(control.waits(heaviest).p95)}."
    )
    return [sentence]


def figure(wait_ms: int) -> str:
    """Seconds in at most four characters up to 9,999: 0.25, 12.5, 125."""
    whole, _, _ = text = f"{wait_ms / 1000:.2f}".partition(".")
    return "".join(text) if len(whole) == 1 else f"{wait_ms / 1000:.{max(0, 3 - len(whole))}f}"


def seconds(wait_ms: int) -> str:
    """A wait for people: `0.25 s`."""
    return f"{figure(wait_ms)} s"
