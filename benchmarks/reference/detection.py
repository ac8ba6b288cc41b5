"""The settings of the detectors, and the constants behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum

from spikeguard_core.detection.detectors.contract import Setting

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import number, span, table
from spikeguard_core.detection.own_signals import MOST_OWN, Direction, Opens
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_server.detectors import DEFAULT, GENERAL, SHIPPED

HEAD = """# Detection settings

What a user may set of the detectors, by policy, project, run and signal or with `--set`; and the
constants that are the same for every run.

A number that is none, an unknown name or a value outside its range is refused with the field, its
limit and what to write instead. What the detectors do: [detection](../detection.md#detectors).
"""
OWN = f"""## Signals of your own

`[detection.signals.NAME]`, at most {MOST_OWN} of a run; NAME as in `guard.log`, or a column of a
replayed file. What they do: [detection](../detection.md#signals-of-your-own).
"""
CONSTANTS = """## Constants of detection

Internal: the same for every run, changed with the code. The settings above move some of them.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, kind in SHIPPED.items():
        usual = ", the default" if name == DEFAULT else ""
        parts += [f"## Detector `{name}`{usual}\n", _declared(kind.settings)]
    parts += ["## With every detector\n", _declared(GENERAL)]
    parts += [OWN, _own(), *(_words(kind) for kind in (Direction, Opens))]
    parts += [CONSTANTS, _constants()]
    return "\n".join(parts)


def _declared(settings: Sequence[Setting]) -> str:
    rows = [
        (
            f"`{one.name}`", number(one.default), span(one.least, one.most),
            one.unit + (", whole" if one.whole else ""), one.meaning,
        )
        for one in settings
    ]  # fmt: skip
    return table(("setting", "default", "range", "unit", "meaning"), rows)


def _own() -> str:
    rows = [
        ("`direction`", "", _listed(Direction), "which way it has to move; needed"),
        ("`opens`", f"`{Opens.PRECURSOR}`", _listed(Opens), "what it opens when it does"),
        ("`precursor_threshold`", "as above", "as above", "distance at which it does"),
    ]
    return table(("setting", "default", "range", "meaning"), rows)


def _listed(kind: type[StrEnum]) -> str:
    return ", ".join(f"`{one.value}`" for one in kind)


def _words(kind: type[StrEnum]) -> str:
    known = [(f"`{one.value}`", meaning_of(kind, one.name)) for one in kind]
    return f"{kind.__doc__}\n\n{table(('word', 'meaning'), known)}"


def _constants() -> str:
    rows = [
        (f"`{one.name}`", f"{one.default}", meaning_of(DetectionSettings, one.name))
        for one in fields(DetectionSettings)
    ]
    return table(("constant", "value", "meaning"), rows)
