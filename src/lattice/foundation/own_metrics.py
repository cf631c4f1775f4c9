"""The server's own metrics, in Prometheus' text format. One registry, passed in, no globals.

`server_series` is the catalogue: it has the HELP text and the labels of each.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lattice import __version__
from lattice.base.pauses import LoopPauses
from lattice.foundation.series import SeriesValue
from lattice.foundation.server_series import SERIES

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class OwnMetrics:
    """Counts what the server does."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("lattice_calls", "", ["rpc", "outcome"], registry=self.registry)
        self.request_seconds = self._durations("lattice_http_request_seconds", "rpc", "status")
        self.grpc_seconds = self._durations("lattice_grpc_request_seconds", "rpc", "code")
        self.limit_refusals = Counter(
            "lattice_limit_refusals", "", ["kind"], registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        build = SeriesValue("lattice_build_info", 1.0, (__version__, platform.python_version()))
        self.read(lambda: (build,))

    def _durations(self, name: str, *labels: str) -> Histogram:
        return Histogram(name, "", labels, buckets=_BUCKETS_S, registry=self.registry)

    def limit_refused(self, kind: str) -> None:
        """Count a refusal by the limit of this name."""
        self.limit_refusals.labels(kind).inc()

    def read(self, read: Callable[[], Iterable[SeriesValue]]) -> None:
        """Show series of the catalogue, read at each scrape. One without a value is absent."""
        self.registry.register(_Readings(read))

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
        return generate_latest(_Described(self.registry)).decode()


class _Described(Collector):
    """The families of a registry with the HELP of the catalogue, without times of creation."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if (known := SERIES.get(name)) is not None:
                family.documentation = known.help_text
            created = f"{family.name}_created"
            family.samples = [each for each in family.samples if each.name != created]
            yield family


class _Readings(Collector):
    def __init__(self, read: Callable[[], Iterable[SeriesValue]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for each in self._read():
            family = families.get(each.series)
            if family is None:
                family = families[each.series] = _family(each.series)
            family.add_metric(each.labels, each.value)
        return families.values()

    def describe(self) -> Iterable[Metric]:
        """Nothing: what is read now is not there yet when it is registered."""
        return ()


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    known = SERIES[name]
    kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
    return kind(name, known.help_text, labels=known.labels)


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
            yield self._family(f"lattice_{name}", "", value=value)


class _Labelled(Collector):
    def __init__(self, name: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._name = name
        self._label = label
        self._read = read

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(f"lattice_{self._name}", "", labels=[self._label])
        for value, count in self._read().items():
            family.add_metric([value], count)
        yield family
