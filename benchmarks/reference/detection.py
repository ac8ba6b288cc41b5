"""The settings of detection, and the constants behind them."""

from __future__ import annotations

import math
from dataclasses import Field
from typing import Any, get_type_hints

from benchmarks.reference.table import members, shown, span, table
from spikeguard_core.detection.own_signals import (
    MOST_OWN,
    USUAL_LIMITS,
    WHAT_TO_CHECK,
    Direction,
    Opens,
    OwnChoice,
)
from spikeguard_core.policy.settings import Detection, SignalSettings
from spikeguard_core.setting_fields import settings_of

HEAD = """# Detection settings

What a user may set of detection, by policy, project, run and signal or with `--set`.

What detection does: [detection](../detection.md).

## Settings

`[detection]` of a policy, or `--set NAME=VALUE`.
"""
OWN = f"""## Signals of your own, and limits

`[detection.signals.NAME]`, at most {MOST_OWN} of a run; NAME as in `guard.log`, or a column of a
replayed file. What they do: [detection](../detection.md#limits-in-your-own-units).
"""
LIMITS = """### Limits that hold by default

A row of the policy with the same NAME replaces one. They warn and open no incident.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, _declared(), OWN, _own(), LIMITS, _limits()])


def _declared() -> str:
    rows = [
        (
            f"`{name}`", shown(one.default), span(one.metadata["limit"].least,
            one.metadata["limit"].most), one.metadata["limit"].unit + _whole(one),
            one.metadata["meaning"],
        )
        for name, one in settings_of(Detection).items()
        if one.metadata["limit"] is not None
    ]  # fmt: skip
    return table(("setting", "default", "range", "unit", "meaning"), rows)


def _whole(one: Field[Any]) -> str:
    return ", whole" if get_type_hints(Detection)[one.name] is int else ""


def _own() -> str:
    rows = [
        (f"`{name}`", shown(one.default), _range(one), one.metadata["meaning"])
        for name, one in settings_of(SignalSettings).items()
    ]
    return table(("setting", "default", "range", "meaning"), rows)


def _range(one: Field[Any]) -> str:
    words = {"direction": Direction, "opens": Opens}
    limit = one.metadata["limit"]
    if limit is None:
        return members(words[one.name])
    return "any number" if limit.least == -math.inf else span(limit.least, limit.most)


def _limits() -> str:
    rows = [
        (f"`{name}`", _limit(one), f"{one.rows}", f"`{one.opens}`", WHAT_TO_CHECK[name])
        for name, one in USUAL_LIMITS.items()
    ]
    return table(("signal", "limit", "rows", "opens", "what to check"), rows)


def _limit(one: OwnChoice) -> str:
    if one.usual_part is not None:
        return f"below {one.usual_part:g} of its usual value"
    return f"below {one.below:g}" if one.below is not None else f"above {one.above:.2g}"
