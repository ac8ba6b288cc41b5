"""The reference: every page is what the code says, and leaves nothing out.

Where a page differs: `python -m benchmarks.reference`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.reference import client_shapes
from benchmarks.reference.pages import FOLDER, PAGES
from spikeguard import Settings as AgentSettings
from spikeguard_core.policy.detection import Detection
from spikeguard_core.policy.settings import Policy
from spikeguard_protocol import Cause, Signal
from spikeguard_protocol.variables import PREFIX
from spikeguard_protocol.vocabulary import OptionalSignal
from spikeguard_server.settings import Settings

pytestmark = pytest.mark.slow  # `make check` runs them

ROOT = Path(__file__).parent.parent
PROGRAMS = (
    ROOT / "agent/spikeguard",
    ROOT / "agent/spikeguard_cli",
    ROOT / "agent/spikeguard_protocol",
    ROOT / "dashboard/spikeguard_dashboard",
    ROOT / "server/spikeguard_replay",
    ROOT / "server/spikeguard_server",
)


def written(name: str) -> str:
    return (FOLDER / name).read_text()


def first_cells(name: str) -> list[str]:
    """What stands in the first column of a page's tables, without marks and labels."""
    rows = re.findall(r"^\| (?!---)([^|]+) \|", written(name), re.MULTILINE)
    return [re.sub(r"[`\[\]]|\(#\w+\)|\{.*\}", "", cell).split(" or ")[0] for cell in rows]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_made_of_the_code(name: str) -> None:
    assert written(name) == PAGES[name]()


def test_the_clients_types_are_made_of_the_document() -> None:
    assert client_shapes.FILE.read_text() == client_shapes.module()


def test_no_page_is_left_from_before() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def constants(folder: Path) -> Iterator[str]:
    """Every text in the code below `folder`."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_variable_that_a_program_names_stands_on_the_page() -> None:
    shown = set(re.findall(r"SPIKEGUARD_[A-Z_]+", written("environment.md")))
    named = {
        word
        for folder in PROGRAMS
        for text in constants(folder)
        for word in re.findall(r"\bSPIKEGUARD_[A-Z_]*[A-Z]\b", text)
    }
    assert len(named) > 20
    assert {name for name in named if name.removesuffix("_FILE") not in shown} <= shown
    assert {PREFIX + one.name.upper() for one in fields(Settings)} <= shown


def test_every_variable_of_the_agent_stands_under_the_agent() -> None:
    agent = written("environment.md").partition("## Agent")[2].partition("## Dashboard")[0]
    sources = "\n".join(constants(ROOT / "agent/spikeguard"))
    named = set(re.findall(r"\bSPIKEGUARD_[A-Z_]*[A-Z]\b", sources))
    assert len(named) > 10
    assert {name for name in named if f"`{name}`" not in agent} <= {"SPIKEGUARD_CREDENTIALS"}


def test_every_metric_that_the_server_names_stands_on_the_page() -> None:
    source = (ROOT / "server/spikeguard_server/metrics.py").read_text()
    named = set(re.findall(r'"(spikeguard_[a-z_]+)"', source))
    assert len(named) > 30
    assert {name.removesuffix("_total") for name in first_cells("metrics.md")} >= named


def test_every_option_that_a_command_takes_stands_on_the_page() -> None:
    calls = re.compile(r'add_argument\(\s*"(--[a-z-]+)"')
    folders = (ROOT / "agent/spikeguard_cli", ROOT / "server/spikeguard_server")
    named = {
        option
        for folder in folders
        for path in folder.rglob("*.py")
        for option in calls.findall(path.read_text())
    }
    named -= {"--version"}  # of no command
    assert len(named) > 40
    assert named <= set(re.findall(r"`(--[a-z-]+)`", written("commands.md")))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("agent.md", [one.name for one in fields(AgentSettings)]),
        ("policy.md", [one.name for one in fields(Policy) if one.name != "scope"]),
        ("signals.md", [*Signal, *OptionalSignal]),
        ("causes.md", [*Cause, "replicas_apart"]),
        ("detection.md", [one.name for one in fields(Detection) if one.name != "signals"]),
    ],
)
def test_every_entry_has_a_row(name: str, wanted: list[str]) -> None:
    assert set(wanted) <= set(first_cells(name))


def test_every_row_says_what_it_is() -> None:
    """Some tables leave defaults empty."""
    column = {"metrics.md": 1, "words.md": 1, "signals.md": 1, "detection.md": -1, "policy.md": -1}
    for name, at in column.items():
        for line in re.findall(r"^\| `.*$", written(name), re.MULTILINE):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert cells[min(at, len(cells) - 1)].strip(), (name, line)
