"""What the documentation says and points at: a reference made of the code, pages and modules.

Where a page of the reference differs: `python -m benchmarks.reference`.
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
from spikeguard_core.policy.settings import Detection, Policy
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


EVERY_PAGE = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
OURS = "|".join(p.parent.name for p in ROOT.glob("*/spikeguard*/__init__.py"))
IMPORT = re.compile(rf"from ((?:{OURS})(?:\.\w+)*) import ([\w, ]+)")
MODULE = re.compile(rf"(?:`|from |import )((?:{OURS})(?:\.[a-z_]\w*)+)\b")


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, section = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if section and target.suffix == ".md":
            assert section in set(_sections(target)), link


def test_every_message_that_troubleshooting_quotes_is_one_that_the_code_says() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text().partition("## Messages")[2]
    rows = re.findall(r"^\| (`.*?) \|", page.partition("\n## ")[0], re.MULTILINE)
    said = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text())  # one text over several lines
        for package in ROOT.glob("*/spikeguard*")
        for path in package.rglob("*.py")
    )
    quoted = [part.strip() for row in rows for quote in re.findall("`(.*?)`", row)
              for part in quote.split("…") if part.strip()]  # fmt: skip
    assert len(quoted) > 5
    assert [part for part in quoted if part not in said] == []


def test_the_first_page_leads_to_every_page() -> None:
    first = (ROOT / "README.md").read_text()
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in LINK.findall(first)}
    assert set((ROOT / "docs").glob("*.md")) <= linked


@pytest.mark.parametrize(
    ("part", "package"),
    [("agent", "agent/spikeguard"), ("server", "server/spikeguard_server")],
)
def test_the_architecture_names_files_that_exist(part: str, package: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    inside = text.partition(f"\n## Inside the {part}\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(?!tests/)([\w/]+\.py)`|^\| `([\w/]+/)`", inside, re.MULTILINE)
    paths = {file or folder for file, folder in named} - {f"{package}/"}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / package / path).exists()] == []


def _is_there(module: str) -> bool:
    """Whether the dotted name is a module of ours, or something that a module defines."""
    package, *parts = module.split(".")
    place = next(ROOT.glob(f"*/{package}"))
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if parts and (place / f"{parts[0]}.py").exists():
        place /= f"{parts.pop(0)}.py"
    source = place / "__init__.py" if place.is_dir() else place
    return len(parts) < 2 and all(part in source.read_text() for part in parts)


@pytest.mark.parametrize(
    "page",
    [page for page in EVERY_PAGE if page.name != "CHANGELOG.md"],  # which speaks of what was
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    imported = [
        f"{module}.{name.strip()}"
        for module, names in IMPORT.findall(text)
        for name in names.split(",")
    ]
    named = [*MODULE.findall(text), *imported]
    assert [module for module in named if not _is_there(module)] == []


def _sections(page: Path) -> Iterator[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
