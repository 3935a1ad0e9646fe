"""The report of benchmarks.fairness as a person reads it."""

from typing import Any

from benchmarks.fairness_load import FLOWS


def text(report: dict[str, Any]) -> str:
    lines = [f"worst of {report['seeds']} seeds, virtual time, {report['duration_s']} s", ""]
    lines += [*_workloads(report), "", *_claims(report), ""]
    for file, loads in report["traces"].items():
        for load, policies in loads.items():
            lines += [*_trace(file, load, policies), ""]
    return "\n".join(lines).rstrip()


def _workloads(report: dict[str, Any]) -> list[str]:
    head = (
        f"{'gap while both wait, tokens':28}{'learned':>9}{'bound':>9}{'exact':>8}{'vtc':>9}"
        f"{'fifo':>10}{'gap since start':>17}{'vtc':>9}{'made':>8}"
    )
    rows = []
    for name in FLOWS:
        found = report[name]
        rows.append(
            f"{name:28}{found['gap_backlogged_tokens']:>9,.0f}{found['bound_tokens']:>9,.0f}"
            f"{found['exact']['gap_backlogged_tokens']:>8,.0f}"
            f"{found['vtc_gap_backlogged_tokens']:>9,.0f}"
            f"{found['fifo_gap_backlogged_tokens']:>10,.0f}{found['gap_tokens']:>17,.0f}"
            f"{found['vtc_gap_tokens']:>9,.0f}{found['throughput_vs_fifo']:>8.3f}"
        )
    return [head, *rows]


def _claims(report: dict[str, Any]) -> list[str]:
    light, gain = report["light_wait"], 100
    weights = "   ".join(f"{parts} {error:.3f}" for parts, error in report["weights"].items())
    late = report["deadlines"]
    return f"""\
light tenant's p99 wait beside 1,000 / {light["larger_backlog"]:,}: \
{light["backlog_1000_p99_ms"]:.0f} / {light["backlog_1000000_p99_ms"]:.0f} ms \
(bound {light["bound_ms"]:.0f}); requests of a neighbour first: \
{light["requests_of_a_neighbour_first"]}
error of shares, points: {weights}
gain by ten keys under one parent {gain * report["split_gain"]:.2f} % \
(without a parent {gain * report["split_gain_without_parent"]:.0f} %), by leaving and coming back \
{gain * report["rejoin_gain"]:.2f} %, \
with pauses {gain * report["rejoin_gain_with_pauses"]:.2f} %, \
with understated costs {gain * report["rejoin_gain_understated"]:.2f} %
long outputs' share of tokens {report["long_tenant_share"]:.3f} \
(without settlement {report["long_tenant_share_unsettled"]:.3f})
load 1.5 with deadlines: {late["late_dispatched"]} dispatched too late, \
goodput {late["goodput"]:.3f} (learned costs {late["goodput_learned"]:.3f})
batch fill {report["batch_fill_vs_fifo"]:.3f} of fifo's; twice running \
{report["streaming_twice_running"]} (fifo {report["streaming_twice_running_fifo"]}); \
others' order changed by priorities {report["priorities_change_others"]}""".splitlines()


def _trace(file: str, load: str, policies: dict[str, Any]) -> list[str]:
    slots = policies["fifo"]["slots"]
    lines = [f"{file}, load {load}, {slots} slots: p50 / p99 wait in s, share of tokens"]
    lines.append(
        f"{'':8}{'entitled':>9}" + "".join(f"{name:>28}" for name in policies) + "  below a share"
    )
    for tenant, first in policies["fifo"]["tenants"].items():
        cells = []
        for found in policies.values():
            own = found["tenants"][tenant]
            waits = f"{own['wait_p50_s']:.1f} / {own['wait_p99_s']:.1f}"
            cells.append(f"{waits:>20}{100 * own['share']:>6.1f} %")
        mark = "  *" if first["is_below_share"] else ""
        lines.append(f"{tenant:8}{100 * first['entitled']:>7.1f} %" + "".join(cells) + mark)
    below = "   ".join(
        f"{name} {found['below_share_p99_vs_fifo']['median']:g} / "
        f"{found['below_share_p99_vs_fifo']['max']:g} (made {found['throughput_vs_fifo']:.3f})"
        for name, found in policies.items()
    )
    return [*lines, f"p99 of those below a share, of fifo's, median / worst: {below}"]
