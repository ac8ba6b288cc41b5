"""Every variable of the environment, by who reads it, and the settings of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from benchmarks.reference.table import meaning_of, shown, span, table
from spikeguard import Settings as AgentSettings
from spikeguard.settings import ARGUMENT_VARIABLES, SETTING_VARIABLES, limits_of
from spikeguard_cli import credentials
from spikeguard_dashboard import settings as dashboard
from spikeguard_protocol.variables import PREFIX
from spikeguard_server.settings import Settings

HEAD = """# Variables of the environment

What server, agent, dashboard and command line read from their environment.

A bad value, or a name nearly like one of these, ends the program. Names end in their unit (`_S`:
seconds). Variables of the compose file: [operations](../operations.md#settings).
"""
SERVER = """## Server

`spikeguard serve`, `up`, `migrate` and what works on the database. A variable with `_FILE` behind
its name points to a file that holds the value, as for a secret. The file that
`SPIKEGUARD_DATABASE_PASSWORD_FILE` names holds the password of a URL that has none.
"""
AGENT = """## Agent

They stand in for arguments of `attach`, and win over its [settings](agent.md).
"""


def page() -> str:
    """The whole page."""
    return "\n".join([
        HEAD, SERVER, _server(), AGENT, _agent(),
        "## Dashboard\n", _listed(dashboard.VARIABLES),
        "## Command line\n", _listed(credentials.VARIABLES),
    ])  # fmt: skip


def _server() -> str:
    rows = []
    for one in fields(Settings):
        limit = one.metadata["limit"]
        rows.append((
            f"`{PREFIX}{one.name.upper()}`",
            shown(one.default) + (f" ({span(limit.least, limit.most)})" if limit else ""),
            one.metadata["meaning"],
        ))  # fmt: skip
    return table(("variable", "default (range)", "meaning"), rows)


def _agent() -> str:
    settings = {
        variable: f"the setting `{name}`{_switch(name)}"
        for name, variable in SETTING_VARIABLES.items()
    }
    return _listed({**ARGUMENT_VARIABLES, **settings})


def _switch(name: str) -> str:
    return ", `1` or `0`" if isinstance(getattr(AgentSettings(), name), bool) else ""


def _listed(variables: Mapping[str, str]) -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in variables.items()]
    return table(("variable", "meaning"), rows)


SETTINGS = """# Settings of the agent

What `attach(settings=Settings(...))` takes, with the variables that win over it.

Names end in their unit (`_s`: seconds, `_bytes`), cadences are steps. `attach()` refuses what is
out of range. What the calls of the loop do: [agent](../agent.md).
"""


def agent() -> str:
    """The whole page of the agent's settings."""
    rows = [
        (
            f"`{one.name}`" + _variable(one.name),
            shown(one.default) + _range(one.name, one.default),
            meaning_of(AgentSettings, one.name),
        )
        for one in fields(AgentSettings)
    ]  # fmt: skip
    return f"{SETTINGS}\n{table(('setting or variable', 'default (range)', 'meaning'), rows)}"


def _range(name: str, default: object) -> str:
    if isinstance(default, bool) or not isinstance(default, int | float):
        return ""
    return f" ({span(*limits_of(name))})"


def _variable(name: str) -> str:
    return f" or `{SETTING_VARIABLES[name]}`" if name in SETTING_VARIABLES else ""
