"""Every variable of the environment, by who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import shown, span, table, unit_of
from spikeguard import Settings as AgentSettings
from spikeguard.settings import ARGUMENT_VARIABLES, SETTING_VARIABLES
from spikeguard_cli import credentials
from spikeguard_dashboard import settings as dashboard
from spikeguard_protocol.variables import PREFIX
from spikeguard_server.settings import Settings

HEAD = """# Variables of the environment

What server, agent, dashboard and command line read from their environment.

A bad value, and a name nearly like one of these, ends the program with the variable and the
remedy. Further variables of the compose file: [operations](../operations.md#settings).
"""
SERVER = """## Server

`spikeguard serve`, `up`, `migrate` and what works on the database itself. A variable marked "or
`_FILE`" may stand in a file instead, which the variable with `_FILE` behind its name points to;
`SPIKEGUARD_DATABASE_PASSWORD_FILE` holds the password of a URL that names none.
"""
AGENT = """## Agent

A training job. They stand in for arguments of `attach`, and win over its
[settings](agent.md).
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
        limits = one.metadata
        rows.append((
            f"`{PREFIX}{one.name.upper()}`" + ("" if one.repr else " or `_FILE`"),
            shown(one.default),
            span(limits["least"], limits["most"]) if "least" in limits else "",
            unit_of(one.name) if "least" in limits else "",
            limits["meaning"],
        ))  # fmt: skip
    return table(("variable", "default", "range", "unit", "meaning"), rows)


def _agent() -> str:
    settings = {
        variable: f"`{name}`{_switch(name)}: {meaning_of(AgentSettings, name)}"
        for name, variable in SETTING_VARIABLES.items()
    }
    return _listed({**ARGUMENT_VARIABLES, **settings})


def _switch(name: str) -> str:
    return ", `1` or `0`" if isinstance(getattr(AgentSettings(), name), bool) else ""


def _listed(variables: Mapping[str, str]) -> str:
    rows = [(f"`{name}`", meaning) for name, meaning in variables.items()]
    return table(("variable", "meaning"), rows)
