"""The settings of the agent, as `attach(settings=...)` takes them."""

from __future__ import annotations

from dataclasses import fields

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import shown, span, table
from spikeguard import Settings
from spikeguard.settings import SETTING_VARIABLES, limits_of

HEAD = """# Settings of the agent

What `attach(settings=Settings(...))` takes, with the variables that win over it.

Names end in their unit (`_s`: seconds, `_bytes`), cadences are steps. `attach()` refuses what is
out of range. What the calls of the loop do: [agent](../agent.md).
"""


def page() -> str:
    """The whole page."""
    rows = [
        (
            f"`{one.name}`" + _variable(one.name),
            shown(one.default) + _range(one.name, one.default),
            meaning_of(Settings, one.name),
        )
        for one in fields(Settings)
    ]  # fmt: skip
    return f"{HEAD}\n{table(('setting or variable', 'default (range)', 'meaning'), rows)}"


def _range(name: str, default: object) -> str:
    if isinstance(default, bool) or not isinstance(default, int | float):
        return ""
    return f" ({span(*limits_of(name))})"


def _variable(name: str) -> str:
    return f" or `{SETTING_VARIABLES[name]}`" if name in SETTING_VARIABLES else ""
