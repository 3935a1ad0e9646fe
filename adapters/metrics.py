"""Counters and gauges, by prometheus-client; `/metrics` on 127.0.0.1 when a port is given.

Labels come from bounded vocabularies (tier, pool, endpoint, reason: names of the policy
and of tables); this file holds callers to it, so that a mistake can't fill the memory:
label names are a fixed set, and a metric has a bounded number of label sets, beyond which
everything is counted under `other`.
"""

import threading
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)

HOST = "127.0.0.1"
PREFIX = "fairlane_"
#: Label names that may be used; a tenant's name is none, tenants come and go by thousands.
LABELS = frozenset(
    {
        "tier",
        "pool",
        "endpoint",
        "reason",
        "topic",
        "lane",
        "shard",
        "outcome",
        "kind",
        "end",
        "route",
        "status",
        "mode",
        "limit",
    }
)
#: Label sets of one metric: endpoints x tiers x reasons of a large policy stay below.
LABEL_SETS_MAX = 2_000
OTHER = "other"

M = TypeVar("M", Counter, Gauge)


class MetricsError(Exception):
    """A metric is used in a way that it was not made for, or the port can't be opened."""


class PrometheusMeter:
    """Counts and gauges by name; a metric's label names are those of its first use."""

    def __init__(self, process: str = "") -> None:
        """Make an empty registry.

        `process` tells one of several behind the same address: it is a label of every metric,
        so that no rate is made up from counters of different ones.
        """
        self._process = process
        # They are a second series for each counter that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Counter | Gauge] = {}
        self._label_names: dict[str, tuple[str, ...]] = {}
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self._counters: dict[tuple[object, ...], Counter] = {}  #: as asked for, without a search
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter. Raises MetricsError for other label names than before."""
        asked = (name, *labels.items())
        metric = self._counters.get(asked)
        if metric is None:
            metric = self._metric(Counter, name, labels)
            if len(self._counters) < LABEL_SETS_MAX:
                self._counters[asked] = metric
        metric.inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. Raises MetricsError for other label names than before."""
        metric = self._metric(Gauge, name, labels)
        metric.set(value)

    def serve(self, port: int) -> int:
        """Serve `/metrics` on 127.0.0.1 from a thread of its own; returns the port (0: any)."""
        try:
            server, _ = start_http_server(port, addr=HOST, registry=self._registry)
        except OSError as error:
            raise MetricsError(f"port {port} for metrics can't be opened: {error}") from error
        return int(server.server_port)

    def text(self) -> bytes:
        """What a scrape reads."""
        return generate_latest(self._registry)

    def value(self, name: str, **labels: str) -> float | None:
        """Return what a metric stands at (a counter by its name with `_total`); None: unused."""
        return self._registry.get_sample_value(PREFIX + name, labels | self._own())

    def _own(self) -> dict[str, str]:
        return {"process": self._process} if self._process else {}

    def _metric(self, kind: type[M], name: str, labels: dict[str, str]) -> M:
        with self._lock:
            metric = self._metrics.get(name)
            if metric is None:
                metric = self._make(kind, name, labels)
            if not isinstance(metric, kind):
                raise MetricsError(f"metric {name} is a {type(metric).__name__.lower()}")
            values = self._values(name, labels)
            return metric.labels(*values) if values else metric

    def _values(self, name: str, labels: dict[str, str]) -> tuple[str, ...]:
        """Values of a metric's labels, the process's last."""
        seen, names = self._seen[name], self._label_names[name]
        if labels.keys() != set(names):
            raise MetricsError(f"metric {name} has the labels {names}, not {sorted(labels)}")
        values = tuple(labels[label] for label in names)
        if values not in seen:
            if len(seen) >= LABEL_SETS_MAX:
                values = (OTHER,) * len(names)
            seen.add(values)
        return (*values, *self._own().values())

    def _make(self, kind: type[M], name: str, labels: dict[str, str]) -> M:
        unknown = labels.keys() - LABELS
        if unknown:
            raise MetricsError(
                f"metric {name}: label {', '.join(sorted(unknown))} is in no bounded vocabulary; "
                f"there are: {', '.join(sorted(LABELS))}"
            )
        names = tuple(sorted(labels))
        all_names, text = names + tuple(self._own()), name.replace("_", " ")
        metric = kind(PREFIX + name, text, all_names, registry=self._registry)
        self._metrics[name] = metric
        self._label_names[name] = names
        self._seen[name] = set()
        return metric
