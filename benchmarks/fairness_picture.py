"""Pictures of the fairness benchmark as SVG: service over time, and waits of a trace.

Colours and type as in docs/fairlane.svg; no scripts, no fonts to fetch.
"""

from math import log10
from pathlib import Path
from typing import Any

from benchmarks.fairness_load import (
    SLOTS,
    US_PER_TOKEN,
    Estimator,
    core_run,
    cost,
    policy,
    slot_server,
    workload,
)
from benchmarks.fairness_workloads import QUANTUM
from benchmarks.peers import PublishedVtc
from schemas.policy import CostModel, Fairness
from simulation.direct import Direct

INK, GREY = "#1d2430", "#5b6472"
TENANT_COLOURS = ("#c2410c", "#15803d", "#1d4ed8", "#a21caf", "#b45309", "#0e7490", "#be123c",
                  "#4d7c0f")  # fmt: skip
POLICY_COLOURS = {
    "fifo": "#c2410c",
    "drr_request": "#d97706",
    "drr_token": "#15803d",
    "vtc": "#1d4ed8",
}
_WIDTH, _HEIGHT, _LEFT, _TOP = 250, 200, 60, 60


def _svg(width: int, height: int, label: str, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{label}">\n'
        f'  <rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(f"  {part}" for part in parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, **style: Any) -> str:
    style.setdefault("fill", INK)
    given = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{given}>{words}</text>'


def save_service(folder: Path, seconds: int = 360) -> Path:
    """Service over time of VTC's two and eight tenants: one queue, VTC as published, DRR."""
    parts = [
        _text(20, 24, "Service of each tenant since the start, thousand tokens", font_weight=600)
    ]
    for row, name in enumerate(("overload2", "overload8")):
        load = workload(name, 1, seconds, Estimator.LEARNED)
        weights = dict.fromkeys(load.tenants, 1)
        fifo = policy(weights, fairness=Fairness.FIFO)
        ours = policy(weights, model=CostModel.ADAPTIVE, quantum=QUANTUM)
        runs = {
            "one queue": core_run(load.asks, fifo),
            "VTC as published": Direct(PublishedVtc(SLOTS, US_PER_TOKEN), slot_server()).run(
                load.asks
            ),
            "Fairlane: DRR, learned costs": core_run(load.asks, ours),
        }
        curves = {title: _curves(run, load.tenants, seconds) for title, run in runs.items()}
        top = max(max(line) for lines in curves.values() for line in lines.values())
        for column, (title, lines) in enumerate(curves.items()):
            x = _LEFT + column * (_WIDTH + 40)
            y = _TOP + row * (_HEIGHT + 70)
            parts += _panel(x, y, f"{name}: {title}", lines, top, seconds)
    label = "Service over time per tenant under one queue, VTC and Fairlane"
    path = folder / "fairness-service.svg"
    path.write_text(_svg(_LEFT + 3 * (_WIDTH + 40), _TOP + 2 * (_HEIGHT + 70), label, parts))
    return path


def _curves(run: Direct, tenants: tuple[str, ...], seconds: int) -> dict[str, list[float]]:
    """Thousand tokens picked by the end of each of 60 stretches."""
    lines = {tenant: [0.0] * 61 for tenant in tenants}
    for job in run.jobs:
        if 0 <= job.picked_us < seconds * 1e6:
            lines[job.tenant][int(job.picked_us * 60 / (seconds * 1e6)) + 1] += cost(job) / 1000
    for line in lines.values():
        for number in range(1, 61):
            line[number] += line[number - 1]
    return lines


def _panel(
    x: int, y: int, title: str, lines: dict[str, list[float]], top: float, seconds: int
) -> list[str]:
    bottom = y + _HEIGHT
    parts = [
        _text(x, y - 8, title, font_weight=600),
        f'<path d="M{x} {y}V{bottom}H{x + _WIDTH}" stroke="{GREY}" fill="none"/>',
        _text(x - 6, y + 10, f"{top:,.0f}", text_anchor="end", fill=GREY),
        _text(x - 6, bottom, "0", text_anchor="end", fill=GREY),
        _text(x + _WIDTH, bottom + 16, f"{seconds} s", text_anchor="end", fill=GREY),
    ]
    for number, (tenant, line) in enumerate(lines.items()):
        colour = TENANT_COLOURS[number % len(TENANT_COLOURS)]
        points = " ".join(
            f"{x + _WIDTH * place / 60:.1f},{bottom - _HEIGHT * value / top:.1f}"
            for place, value in enumerate(line)
        )
        parts.append(
            f'<polyline points="{points}" stroke="{colour}" stroke-width="1.5" fill="none" '
            f'stroke-opacity="0.85"/>'
        )
        parts.append(_text(x + 8 + 28 * number, y + 14, tenant, fill=colour))
    return parts


def save_waits(folder: Path, traces: dict[str, Any]) -> Path:
    """p99 waits of every tenant of the traces, on a scale of powers of ten, by policy."""
    parts = [_text(20, 24, "p99 wait of each tenant, seconds, least tokens first", font_weight=600)]
    for number, (name, colour) in enumerate(POLICY_COLOURS.items()):
        parts.append(f'<circle cx="{430 + 110 * number}" cy="20" r="4" fill="{colour}"/>')
        parts.append(_text(440 + 110 * number, 24, name))
    y, width = 50, 880
    for file, loads in traces.items():
        for load, policies in loads.items():
            title = f"{file}, load {load}; * asked for less than an equal share"
            parts.append(_text(20, y + 14, title, fill=GREY))
            parts += _strip(y + 24, width, policies)
            y += 210
    path = folder / "fairness-waits.svg"
    path.write_text(_svg(width + 20, y, "p99 wait of each tenant by policy", parts))
    return path


def _strip(y: int, width: int, policies: dict[str, Any]) -> list[str]:
    left, height = 50, 130
    tenants = sorted(
        policies["fifo"]["tenants"], key=lambda t: policies["fifo"]["tenants"][t]["entitled"]
    )
    step = (width - left) / len(tenants)
    parts = []
    for power in (-1, 0, 1, 2, 3):
        at = _height(10.0**power, y, height)
        parts.append(f'<path d="M{left} {at:.1f}H{width}" stroke="#e5e7eb"/>')
        parts.append(_text(left - 6, at + 4, f"{10.0**power:g}", text_anchor="end", fill=GREY))
    for place, tenant in enumerate(tenants):
        x = left + step * (place + 0.5)
        mark = "*" if policies["fifo"]["tenants"][tenant]["is_below_share"] else ""
        parts.append(_text(x, y + height + 18, tenant[1:] + mark, text_anchor="middle"))
        for name, colour in POLICY_COLOURS.items():
            at = _height(policies[name]["tenants"][tenant]["wait_p99_s"], y, height)
            parts.append(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="3.5" fill="{colour}"/>')
    return parts


def _height(seconds: float, y: int, height: int) -> float:
    """From 0.1 s, and all below, to 1,000 s."""
    power = min(3.0, max(-1.0, log10(seconds) if seconds > 0 else -1.0))
    return y + height * (3 - power) / 4
