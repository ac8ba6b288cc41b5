"""What the documentation points at exists: pages, sections, modules, files of the architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
OURS = "|".join(p.parent.name for p in ROOT.glob("*/spikeguard*/__init__.py"))
IMPORT = re.compile(rf"from ((?:{OURS})(?:\.\w+)*) import ([\w, ]+)")
MODULE = re.compile(rf"(?:`|from |import )((?:{OURS})(?:\.[a-z_]\w*)+)\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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
    [page for page in PAGES if page.name != "CHANGELOG.md"],  # which speaks of what was
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
