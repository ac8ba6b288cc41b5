"""Prometheus metrics: of this process, and of the fleet as the database knows it.

Registries are passed in. Names carry their unit; a label takes values from a closed set, but for
`project` and `run` of the fleet: `MAX_RUNS` runs at most, and gone when a run is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import product
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from spikeguard_core.notification.channel import ChannelKind
from spikeguard_core.notification.delivery import Result
from spikeguard_protocol import Verb
from spikeguard_server.report.facts import PostMortem
from spikeguard_server.report.figures import BACK, spent_by

MAX_RUNS: Final = 500  # with gauges of their own
# Of what an alert is about there is always a series, so that the first is seen as a rise.
NOT_CARRIED_OUT: Final = dict.fromkeys(
    product((verb.value for verb in Verb), ("failed", "refused", "unknown")), 0
)
# One more series for each counter, which no query needs: rates find restarts by themselves.
disable_created_metrics()  # type: ignore[no-untyped-call]
_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What this process did since it started."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        ProcessCollector(registry=registry)
        self.info = gauge(
            "spikeguard_server_info",
            "1: the server's release, and its address as people and links reach it.",
            ("version", "public_url"),
        )
        self.requests = counter(
            "spikeguard_http_requests",
            "Requests answered, by call and status.",
            ("method", "route", "status"),
        )
        self.latency = histogram(
            "spikeguard_http_request_duration_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ("method", "route"),
            buckets=_FAST,
        )
        self.samples = counter(
            "spikeguard_ingest_samples", "Samples in the messages that were acknowledged."
        )
        self.ingest_waiting = gauge(
            "spikeguard_ingest_waiting", "Messages that wait or are being taken."
        )
        self.notices = counter(
            "spikeguard_notifications",
            "Messages to people's channels, by kind of channel and what became of them.",
            ("kind", "result"),
        )
        for kind, result in product(ChannelKind, Result):  # so that the first is seen as a rise
            self.notices.labels(kind.value, result.value)
        self.ticker_up = gauge(
            "spikeguard_ticker_up", "1 while this process drives what time alone moves."
        )
        self._detection_steps = histogram(
            "spikeguard_detection_delay_steps",
            "Optimizer steps from a spike's onset to its detection, of incidents that have closed.",
            ("project",),
            buckets=(0, 1, 2, 3, 5, 10, 20, 50, 100, 500),
        )
        self._decision_s = histogram(
            "spikeguard_decision_delay_seconds",
            "Seconds from an incident's first proposal to the first decision, by person or policy.",
            ("project", "by"),
            buckets=(1, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 86400),
        )
        self._recovery_s = histogram(
            "spikeguard_recovery_duration_seconds",
            "Seconds from a spike's detection to its close, of those that are back on their trend.",
            ("project", "outcome"),
            buckets=(10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400),
        )
        self._lost_steps = counter(
            "spikeguard_lost_steps",
            "Optimizer steps that incidents cost: trained again, dropped, or damaged.",
            ("project",),
        )
        self._lost_s = counter(
            "spikeguard_lost_seconds",
            "Seconds of training that the lost steps took.",
            ("project",),
        )

    def count_notice(self, kind: str, result: str) -> None:
        """A message to a channel of this kind was sent, held, dropped, failed or given up."""
        self.notices.labels(kind, result).inc()

    def count_incident(self, facts: PostMortem) -> None:
        """An incident closed. To watch asks nobody, so it is no decision."""
        incident, spent, asked = facts.incident, spent_by(facts), facts.acting
        project, delay = facts.run.project, incident.detected_step - incident.onset_step
        self._detection_steps.labels(project).observe(max(0, delay))
        self._lost_steps.labels(project).inc(spent.steps_lost)
        self._lost_s.labels(project).inc(spent.seconds or 0.0)
        decided = min(((c.decided_at, c.automatic) for c in asked if c.decided_at), default=None)
        if decided is not None:
            waited = decided[0] - min(c.proposed_at for c in asked)
            by = "policy" if decided[1] else "person"
            self._decision_s.labels(project, by).observe(max(0.0, waited.total_seconds()))
        if incident.outcome in BACK:
            lasted = facts.closed_at - facts.opened_at
            self._recovery_s.labels(project, incident.outcome).observe(lasted.total_seconds())


_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _family(kind: _Family, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Any:
    """A field that is told as a metric: a number, or numbers by the values of `labels`."""
    metadata = {"family": partial(kind, name, meaning, labels=labels)}
    return field(default_factory=dict if labels else int, metadata=metadata)


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


@dataclass(frozen=True, kw_only=True)
class Fleet(Collector):
    """The whole fleet, as the database knows it: its counters too, so that no restart begins them
    anew."""

    runs: Mapping[str, int] = _gauge(
        "spikeguard_runs",
        "Runs known, by state: live, silent, ended.",
        ("state",),
    )
    open_incidents: Mapping[str, int] = _gauge(
        "spikeguard_incidents_open",
        "Incidents that are open now, by kind.",
        ("kind",),
    )
    closed_incidents: Mapping[tuple[str, str], int] = _counter(
        "spikeguard_incidents_closed",
        "Incidents that have closed, by kind and outcome.",
        ("kind", "outcome"),
    )
    unfinished: Mapping[tuple[str, str], int] = _gauge(
        "spikeguard_commands_unfinished",
        "Commands to which something can still happen, by verb and state.",
        ("verb", "state"),
    )
    finished: Mapping[tuple[str, str], int] = _counter(
        "spikeguard_commands_finished",
        "Commands to which nothing more can happen, by verb and state.",
        ("verb", "state"),
    )
    budgets_spent: Mapping[tuple[str, str], int] = _gauge(
        "spikeguard_automatic_budgets_spent",
        "Runs whose automatic approvals of the last 24 hours are used up, by project and verb.",
        ("project", "verb"),
    )
    dropped_samples: int = _counter(
        "spikeguard_dropped_samples", "Samples that agents had to drop, by their own count."
    )
    approvals_waiting: int = _gauge(
        "spikeguard_approvals_waiting", "Proposals that wait for a person."
    )
    oldest_approval_s: float = _gauge(
        "spikeguard_approval_oldest_age_seconds",
        "Seconds that the oldest proposal has waited for a person; 0 if none waits.",
    )
    not_shown: int = _gauge(
        "spikeguard_runs_not_shown",
        f"Runs not ended, or with an open spike, without gauges of their own: beyond {MAX_RUNS}.",
    )
    agent_tokens_expiring: int = _gauge(
        "spikeguard_agent_tokens_expiring",
        "Training jobs' tokens that end within 14 days.",
    )
    oldest_notice_s: float = _gauge(
        "spikeguard_notification_oldest_age_seconds",
        "Seconds that the oldest message to people has been due; 0 if none is.",
    )
    failing: Mapping[str, int] = _gauge(
        "spikeguard_conversations_failing",
        "Conversations whose last message did not arrive, or was given up, by kind of channel.",
        ("kind",),
    )
    # Runs that have not ended or whose spike is open, by their columns: open incidents first,
    # projects in turn.
    live: Sequence[Mapping[str, Any]] = ()

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        for one in fields(self):
            if "family" in one.metadata:
                told, family = getattr(self, one.name), one.metadata["family"]()
                values = told if isinstance(told, Mapping) else {(): told}
                for key, value in values.items():  # by one word or several
                    family.add_metric((key,) if isinstance(key, str) else key, value)
                yield family
        yield from _of_runs(self.live)


_NON_FINITE: Final = "spikeguard_run_loss_non_finite"
_RUN_GAUGES: Final = {
    "spikeguard_run_last_step": ("Newest optimizer step of a live run.", "last_step"),
    "spikeguard_run_loss_nats": ("Loss at its newest step; NaN and Inf are real.", "last_loss"),
    _NON_FINITE: (
        "1 while the loss at its newest step is NaN or infinite: a gap in a graph of the loss.",
        "last_loss",
    ),
    "spikeguard_run_grad_norm": ("Global gradient norm (L2) at its newest step.", "last_grad_norm"),
    "spikeguard_run_z": ("Robust deviations of its newest loss above the trend.", "last_z"),
    "spikeguard_run_tokens_per_second": (
        "Tokens that it trains on in a second.",
        "tokens_per_second",
    ),
    "spikeguard_run_data_age_seconds": (
        "Seconds since a run's last message, until it ends.",
        "age_s",
    ),
    "spikeguard_run_incident_open": ("1 while a spike of the run is open.", "spikes"),
    "spikeguard_run_approval_age_seconds": (
        "Seconds that its oldest proposal has waited for a person.",
        "approval_age_s",
    ),
}


def _of_runs(live: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ("project", "run")
    for name, (help_text, column) in _RUN_GAUGES.items():
        gauge = GaugeMetricFamily(name, help_text, labels=labels)
        for run in live:
            if (value := run.get(column)) is not None:
                shown = not math.isfinite(value) if name == _NON_FINITE else float(value)
                gauge.add_metric((run["project"], run["name"]), shown)
        yield gauge
    info = GaugeMetricFamily(
        "spikeguard_run_incident_info",
        "1 while a spike is open: of what kind it is so far, and its number.",
        labels=(*labels, "kind", "incident"),
    )
    own = GaugeMetricFamily(
        "spikeguard_run_signal_z",
        "Robust deviations of the newest value of a signal of the user's own that the policy names,"
        " in the direction that it names; +Inf where the value is not finite.",
        labels=(*labels, "signal"),
    )
    for run in live:
        mine = (run["project"], run["name"])
        if (kind := run.get("kind")) is not None:
            info.add_metric((*mine, kind, str(run["open_incident"])), 1.0)
        for signal, z in json.loads(run.get("own_z") or "{}").items():
            own.add_metric((*mine, signal), z)
    yield info
    yield own
