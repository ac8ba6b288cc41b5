"""Every metric of /metrics and /metrics/fleet, with the alerts that watch it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.reference.table import members, table
from spikeguard_core.notification.channel import ChannelKind
from spikeguard_core.notification.delivery import Result
from spikeguard_protocol import CommandState, Kind, Outcome, Verb
from spikeguard_server.metrics import Fleet, Metrics
from spikeguard_server.store.engine import OTHER_OUTAGE, OUTAGES

ALERTS = Path(__file__).parents[2] / "deploy/prometheus/rules/spikeguard.yml"
HEAD = """# Metrics

What Prometheus scrapes: `/metrics` of every replica, `/metrics/fleet` of one.

Both take a token of role metrics. Names that end in `_total` are counters; the rest are gauges,
unless they are called histograms. Where an alert watches a metric, its runbook is linked.
`/metrics` also has what prometheus-client says of a process (`process_…`).
"""
_WORDS: tuple[tuple[str, type[StrEnum]], ...] = (
    ("`kind` of incidents", Kind),
    ("`outcome`", Outcome),
    ("`verb`", Verb),
    ("`state` of commands", CommandState),
    ("`kind` of notifications and conversations", ChannelKind),
    ("`result` of notifications", Result),
)
_OUTAGES = dict.fromkeys(f"`{outage.cause}`" for outage in (*OUTAGES.values(), OTHER_OUTAGE))


def page() -> str:
    """The whole page."""
    process = Metrics(CollectorRegistry())
    return "\n".join([
        HEAD,
        "## `/metrics`: this process\n",
        _table(_of_process(process)),
        "## `/metrics/fleet`: all runs, as the database knows them\n",
        _table(_of_fleet()),
        "## Values of labels\n",
        table(("label", "values"), [
            *((label, members(kind)) for label, kind in _WORDS),
            ("`cause` of what the database did not do", ", ".join(_OUTAGES)),
        ]),
    ])  # fmt: skip


Row = tuple[Metric, tuple[str, ...]]  # with its labels


def _of_process(process: Metrics) -> Iterator[Row]:
    own = [one for one in vars(process).values() if isinstance(one, MetricWrapperBase)]
    named = {metric.name: one._labelnames for one in own for metric in one.describe()}
    for metric in process.registry.collect():
        yield metric, tuple(named.get(metric.name, ()))


def _of_fleet() -> Iterator[Row]:
    for metric in text_string_to_metric_families(generate_latest(everything()).decode()):
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        yield metric, tuple(sorted(labels))


def everything() -> Fleet:
    """A fleet in which every metric has a value."""
    columns = ("last_step", "last_loss", "last_grad_norm", "last_z", "tokens_per_second", "age_s")
    run = {
        "project": "default", "name": "gpt", "kind": Kind.LINGERING.value, "open_incident": 1,
        "own_z": '{"entropy": 1.0}', **dict.fromkeys((*columns, "approval_age_s", "spikes"), 1.0),
    }  # fmt: skip
    return Fleet(
        runs={"live": 1},
        open_incidents={Kind.LINGERING: 1},
        closed_incidents={(Kind.LINGERING, Outcome.HEALED): 1},
        unfinished={(Verb.ROLLBACK, CommandState.PROPOSED): 1},
        finished={(Verb.ROLLBACK, CommandState.JUDGED): 1},
        approvals_waiting=1,
        oldest_approval_s=1.0,
        dropped_samples=1,
        live=(run,),
        budgets_spent={("default", Verb.ROLLBACK): 1},
        failing={ChannelKind.WEBHOOK: 1},
    )


def _table(rows: Iterable[Row]) -> str:
    return table(("metric", "meaning"), [
        (_name(metric, labels), f"{_kind(metric)}{metric.documentation}{_alerts(metric.name)}")
        for metric, labels in sorted(rows, key=lambda row: row[0].name)
        if not metric.name.startswith("process_")
    ])  # fmt: skip


def _name(metric: Metric, labels: tuple[str, ...]) -> str:
    """As it stands in a query, with the labels it has."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return f"`{name}{{{', '.join(labels)}}}`" if labels else f"`{name}`"


def _kind(metric: Metric) -> str:
    return "Histogram: " if metric.type == "histogram" else ""


def _alerts(name: str) -> str:
    found = [one["alert"] for one in _rules() if name in one["expr"]]
    links = ", ".join(f"[{alert}](../alerts.md#{alert.lower()})" for alert in found)
    return f" Alert: {links}" if links else ""


@cache
def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]
