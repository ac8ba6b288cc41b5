"""Every signal: what it is, in which unit, and what an anomaly in it leads to."""

from __future__ import annotations

from enum import StrEnum

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import table
from spikeguard_core.detection.norms import LEADING
from spikeguard_protocol import Signal
from spikeguard_protocol.vocabulary import OptionalSignal

HEAD = """# Signals

What is measured at a step.

How: [measurement](../measurement.md). What is judged: [detection](../detection.md). Other names are
signals of your own.
"""
OPENS = "incidents"
WARNS = "precursors"
_JUDGED = {Signal.LOSS.value: OPENS, **dict.fromkeys(LEADING, WARNS)}


def page() -> str:
    """The whole page."""
    return "\n".join([
        HEAD,
        "## Of every run\n",
        _table(Signal),
        "## Of some runs\n",
        f"{OptionalSignal.__doc__}\n",
        _table(OptionalSignal),
    ])  # fmt: skip


def _table(kind: type[StrEnum]) -> str:
    rows = [
        (f"`{one.value}`", meaning_of(kind, one.name), _JUDGED.get(one.value, "")) for one in kind
    ]
    return table(("signal", "unit and meaning", "an anomaly opens"), rows)
