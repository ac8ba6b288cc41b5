"""The steps of a release: links that work on a package's page, and who has the name."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.http_server import answering

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("release", ROOT / "deploy/release.py")
assert SPEC is not None
assert SPEC.loader is not None
release = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(release)
REPOSITORY = "https://git.example.com/lab/spikeguard"


def test_a_released_page_has_whole_addresses_and_the_package_names_the_repository() -> None:
    made = release.published(ROOT, REPOSITORY, "1.2.3")
    links = re.findall(r"\]\(([^)\s]+)\)", made["README.md"])
    assert [one for one in links if not one.startswith(("https://", "#"))] == []
    assert f"{REPOSITORY}/raw/v1.2.3/docs/pictures/incident-1280.png" in links
    assert f"{REPOSITORY}/blob/v1.2.3/docs/agent.md" in links
    assert tomllib.loads(made["pyproject.toml"])["project"]["urls"]["Repository"] == REPOSITORY


def test_the_notes_are_the_versions_own_section() -> None:
    text = "# Changelog\n\n## 0.2.0\n\nNew.\n\n## 0.1.0, first release\n\nFirst.\n"
    assert release.notes_of(text, "0.1.0") == "First.\n"
    assert release.notes_of(text, "0.2.0") == "New.\n"
    with pytest.raises(SystemExit, match=r"no text below `## 0\.3\.0`"):
        release.notes_of(text, "0.3.0")


def test_what_an_image_installs_is_pinned_with_its_hash() -> None:
    def installed(name: str) -> dict[str, object]:
        return {
            "metadata": {"name": name, "version": "1.2"},
            "download_info": {"archive_info": {"hashes": {"sha256": "ab" * 32}}},
        }

    said = release.hashed_pins([installed(name) for name in ("uvicorn", "spikeguard", "Anyio")])
    assert said == "".join(
        f"{name}==1.2 --hash=sha256:{'ab' * 32}\n" for name in ("Anyio", "uvicorn")
    )


def test_the_index_is_asked_who_has_the_name_and_whether_the_version_is_there() -> None:
    with answering(lambda _: (404, {}, b"")) as free:
        (said,) = release.index_words(free, "0.1.0")
        assert "this upload takes the name" in said
    with answering(lambda _: (200, {}, b"spikeguard-0.1.0-py3-none-any.whl")) as taken:
        (said,) = release.index_words(taken, "0.2.0")
        assert "make sure that the project there is ours" in said
        with pytest.raises(SystemExit, match="take the next number"):
            release.index_words(taken, "0.1.0")
