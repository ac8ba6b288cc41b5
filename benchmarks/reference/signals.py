"""Every signal: what it is, in which unit, and what an anomaly in it leads to."""

from __future__ import annotations

from enum import StrEnum

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import table
from spikeguard_core.detection.norms import LEADING
from spikeguard_protocol import Signal
from spikeguard_protocol.vocabulary import OptionalSignal

HEAD = """# Signals

What is measured at a step, as it is called in charts, columns and messages.

How each is taken: [measurement](../measurement.md); what is judged and how:
[detection](../detection.md). Names outside these lists are signals of your own: they are kept
and drawn.
"""
OPENS = "opens incidents"
WARNS = "opens precursors"
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
    return table(("signal", "unit and meaning", "an anomaly"), rows)
