"""The server's own metrics, in Prometheus' text format. One registry, passed in, no globals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lattice.base.pauses import LoopPauses


class OwnMetrics:
    """Counts what the server does."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "lattice_calls", "Calls by rpc and outcome", ["rpc", "outcome"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "lattice_http_request_seconds",
            "Time to answer a REST request",
            ["rpc", "status"],
            registry=self.registry,
        )
        self.limit_refusals = Counter(
            "lattice_limit_refusals", "Refusals by a limit", ["kind"], registry=self.registry
        )

    def limit_refused(self, kind: str) -> None:
        """Count a refusal by the limit of this name."""
        self.limit_refusals.labels(kind).inc()

    def watch(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Show counters of another part, read at each scrape."""
        self.registry.register(_Borrowed(read))

    def show(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Show gauges, read at each scrape."""
        self.registry.register(_Borrowed(read, GaugeMetricFamily))

    def count_by(self, name: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Show a counter by one label. Its values and counts are read at each scrape."""
        self.registry.register(_Labelled(name, label, read))

    def show_pauses(self, pauses: LoopPauses) -> None:
        """Show how long the event loop of this process is busy without a break."""
        self.show(lambda: {"event_loop_longest_pause_seconds": pauses.longest_s})

        def counts() -> dict[str, float]:
            turns = {} if pauses.turns is None else {"event_loop_turns_total": float(pauses.turns)}
            return {"event_loop_busy_seconds_total": pauses.busy_s, **turns}

        self.watch(counts)

    def text(self) -> str:
        """All metrics as text, for a scrape."""
        return generate_latest(self.registry).decode()


class _Borrowed(Collector):
    def __init__(
        self,
        read: Callable[[], Mapping[str, float]],
        family: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily,
    ) -> None:
        self._read = read
        self._family = family

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        for name, value in self._read().items():
            yield self._family(f"lattice_{name}", name.replace("_", " "), value=value)


class _Labelled(Collector):
    def __init__(self, name: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name = name
        self._label = label
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        description = self._name.replace("_", " ")
        family = CounterMetricFamily(f"lattice_{self._name}", description, labels=[self._label])
        for value, count in self._read().items():
            family.add_metric([value], count)
        yield family
