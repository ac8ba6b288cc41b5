"""The settings of the detectors, and the constants behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import number, span, table
from spikeguard_server.detectors import DEFAULT, GENERAL, SHIPPED
from spikeguard_server.domain.detection.detectors.contract import Setting
from spikeguard_server.domain.detection.settings import DetectionSettings

HEAD = """# Detection settings

What a user may set of the detectors, by policy, project, run and signal or with `--set`; and the
constants that are the same for every run.

A number that is none, an unknown name or a value outside its range is refused with the field, its
limit and what to write instead. What the detectors do: [detection](../detection.md#detectors).
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
    parts += ["## With every detector\n", _declared(GENERAL), CONSTANTS, _constants()]
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


def _constants() -> str:
    rows = [
        (f"`{one.name}`", f"{one.default}", meaning_of(DetectionSettings, one.name))
        for one in fields(DetectionSettings)
    ]
    return table(("constant", "value", "meaning"), rows)
