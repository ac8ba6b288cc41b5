"""The agent's pages name everything that a user of the agent can give, call, set or read."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import spikeguard
from spikeguard import Guard, attach
from spikeguard.loop.context import GuardState
from spikeguard.uplink.transport import Advice
from spikeguard_protocol import OptionalSignal

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "agent",
    "attach",
    "updates",
    "data-order",
    "rewind",
    "orders",
    "topologies",
    "outbox",
    "measurement",
)
TOLD = "\n".join((DOCS / f"{page}.md").read_text() for page in PAGES)
SOURCES = [path.read_text() for path in Path(spikeguard.__file__).parent.rglob("*.py")]


def in_a_table(section: str) -> set[str]:
    """What stands in backticks in the first cell of a row of `section`."""
    body = TOLD.split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def named_in(pattern: str) -> set[str]:
    return {name for source in SOURCES for name in re.findall(pattern, source)}


def test_every_argument_of_attach_has_a_row() -> None:
    arguments = set(inspect.signature(attach).parameters)
    assert sorted(arguments - in_a_table("Arguments of `attach`")) == []


def test_every_optional_signal_is_told() -> None:
    assert [signal.value for signal in OptionalSignal if f"`{signal.value}`" not in TOLD] == []


def test_everything_public_of_the_guard_is_told() -> None:
    names = {name for name in vars(Guard) if not name.startswith("_")}
    assert [name for name in sorted(names) if not re.search(rf"`(guard)?\.{name}\b", TOLD)] == []


def test_every_field_of_the_guards_state_is_told() -> None:
    assert [field.name for field in fields(GuardState) if f"`{field.name}`" not in TOLD] == []


def test_every_place_of_a_fault_has_a_row_and_no_other_has() -> None:
    places = named_in(r'(?:shield|shield_thread|note)\(\s*"([a-z_]+)"') | named_in(
        r'faults\.note, "([a-z_]+)"'
    )
    places |= {f"server ({advice})" for advice in Advice if advice is not Advice.STORED}
    assert in_a_table("Failures of the agent") == places
