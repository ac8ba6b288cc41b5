"""What closed incidents came to, as Prometheus reads it: histograms and counters by project.

Invariants: the database counts, from figures that are written once an incident, so that no restart
and no second replica counts anything twice. The first `MAX_PROJECTS` projects have series of their
own; those that came later are added up as `OTHERS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from spikeguard_core.lifecycle.incident_figures import PERSON, POLICY
from spikeguard_protocol import Outcome

MAX_PROJECTS: Final = 100
OTHERS: Final = "(others)"
_RECOVERED: Final = (Outcome.HEALED.value, Outcome.RECOVERED.value)
_STEPS: Final = (1, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_MINUTES: Final = (10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400)


@dataclass(frozen=True, slots=True)
class IncidentHistogram:
    """A figure of every incident, told as a histogram."""

    name: str
    about: str
    column: str  # of the incident's figures
    edges: tuple[float, ...]
    label: str | None = None  # beside the project
    label_column: str | None = None
    label_values: tuple[str, ...] = ()


HISTOGRAMS: Final = (
    IncidentHistogram(
        "spikeguard_detection_delay_steps",
        "Optimizer steps from a spike's onset to its detection, of incidents that have closed.",
        "detection_steps",
        (0, 1, 2, 3, 5, 10, 20, 50, 100, 500),
    ),
    IncidentHistogram(
        "spikeguard_detection_delay_seconds",
        "Seconds of training from a spike's onset to its detection, of incidents that have closed.",
        "detection_s",
        (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600),
    ),
    IncidentHistogram(
        "spikeguard_decision_delay_seconds",
        "Seconds from an incident's first proposal to the first approval or rejection, by person or"
        " policy.",
        "decision_s",
        (1, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 86400),
        "by",
        "decided_by",
        (PERSON, POLICY),
    ),
    IncidentHistogram(
        "spikeguard_recovery_duration_seconds",
        "Seconds from a spike's onset to its close, of those that are back on their trend: by"
        " themselves (healed) or after a command (recovered).",
        "recovery_s",
        _MINUTES,
        "outcome",
        "outcome",
        _RECOVERED,
    ),
    IncidentHistogram(
        "spikeguard_recovery_duration_steps",
        "Optimizer steps from a spike's onset to its close, those that were trained again included,"
        " of those that are back on their trend.",
        "recovery_steps",
        _STEPS,
        "outcome",
        "outcome",
        _RECOVERED,
    ),
)
SUMS: Final = {  # name of the counter -> (meaning, column)
    "spikeguard_lost_steps": (
        "Optimizer steps that incidents cost: trained again, kept out of the weights, or damaged.",
        "lost_steps",
    ),
    "spikeguard_lost_seconds": (
        "Seconds of training that the steps which incidents cost took.",
        "lost_s",
    ),
    "spikeguard_saved_steps": (
        "Optimizer steps that rollbacks did not train again, and a restart from the newest"
        " checkpoint on disk from before the onset would have.",
        "saved_steps",
    ),
    "spikeguard_saved_seconds": (
        "Seconds of training that the steps which rollbacks saved took.",
        "saved_s",
    ),
}
MONEY: Final = {
    "spikeguard_lost_money": ("The price of the lost steps, where the policy sets one.", "lost"),
    "spikeguard_saved_money": ("The price of the saved steps, where the policy sets one.", "saved"),
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram as the database counts it."""

    within: tuple[int, ...]  # how many are not above each edge
    count: int
    total: float

    @classmethod
    def empty(cls, measured: IncidentHistogram) -> Distribution:
        """Of no incident."""
        return cls((0,) * len(measured.edges), 0, 0.0)


@dataclass(frozen=True, slots=True)
class IncidentTotals:
    """What all closed incidents came to; the keys of each begin with the project."""

    distributions: Mapping[str, Mapping[tuple[str, ...], Distribution]] = field(
        default_factory=dict
    )  # name -> labels -> its values
    sums: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # name -> project -> sum
    money: Mapping[str, Mapping[tuple[str, str], float]] = field(
        default_factory=dict
    )  # name -> (project, currency) -> sum


class IncidentFamilies(Collector):
    """What Prometheus is told of `totals`."""

    def __init__(self, totals: IncidentTotals) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Every histogram and counter."""
        for measured in HISTOGRAMS:
            yield _histogram(measured, self._totals.distributions.get(measured.name, {}))
        for name, (about, _) in SUMS.items():
            counter = CounterMetricFamily(name, about, labels=("project",))
            for project, value in self._totals.sums.get(name, {}).items():
                counter.add_metric((project,), value)
            yield counter
        for name, (about, _) in MONEY.items():
            counter = CounterMetricFamily(name, about, labels=("project", "currency"))
            for labels, value in self._totals.money.get(name, {}).items():
                counter.add_metric(labels, value)
            yield counter


def _histogram(
    measured: IncidentHistogram, found: Mapping[tuple[str, ...], Distribution]
) -> HistogramMetricFamily:
    labels = ("project",) if measured.label is None else ("project", measured.label)
    family = HistogramMetricFamily(measured.name, measured.about, labels=labels)
    for values, one in found.items():
        edges = [str(float(edge)) for edge in measured.edges]
        buckets = [*zip(edges, one.within, strict=True), ("+Inf", one.count)]
        family.add_metric(values, buckets, sum_value=one.total)
    return family
