"""The stack's secrets: made once, unlike one another, each readable by one user alone."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Copies = tuple[Any, ...]


@pytest.fixture
def mine(make_secrets: ModuleType) -> Copies:
    """The copies as the stack has them, but owned by whoever runs the tests."""
    return tuple(dataclasses.replace(copy, owner=os.geteuid()) for copy in make_secrets.COPIES)


@pytest.fixture
def root(tmp_path: Path, mine: Copies) -> Path:
    """The folders as the container has them: empty volumes."""
    for folder in {"vault", *(copy.folder for copy in mine)}:
        (tmp_path / folder).mkdir()
    return tmp_path


def _contents(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in files}


def test_every_secret_is_made_and_handed_out(
    make_secrets: ModuleType, mine: Copies, root: Path
) -> None:
    make_secrets.main(root, mine)
    assert {f"{copy.folder}/{copy.file}" for copy in mine} <= _contents(root).keys()


def test_a_second_run_changes_nothing(make_secrets: ModuleType, mine: Copies, root: Path) -> None:
    """Postgres keeps the first password for ever: a second one would lock everybody out."""
    make_secrets.main(root, mine)
    before = _contents(root)
    make_secrets.main(root, mine)
    assert _contents(root) == before


def test_no_two_secrets_are_alike_and_none_is_short(
    make_secrets: ModuleType, mine: Copies, root: Path
) -> None:
    make_secrets.main(root, mine)
    values = [path.read_text() for path in (root / "vault").iterdir()]
    assert len(set(values)) == len(values)
    assert min(map(len, values)) >= 43  # 32 bytes in base64


def test_every_file_is_readable_by_its_owner_alone(
    make_secrets: ModuleType, mine: Copies, root: Path
) -> None:
    make_secrets.main(root, mine)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in root.rglob("*") if p.is_file()}
    assert modes == {0o400}


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_every_file_belongs_to_the_user_of_its_service(
    make_secrets: ModuleType, root: Path
) -> None:
    make_secrets.main(root)
    for copy in make_secrets.COPIES:
        assert (root / copy.folder / copy.file).stat().st_uid == copy.owner


def test_a_copy_that_was_lost_is_handed_out_again(
    make_secrets: ModuleType, mine: Copies, root: Path
) -> None:
    """A new service, or a volume removed by hand, gets the secret that the others know."""
    make_secrets.main(root, mine)
    before = _contents(root)
    (root / "trainer/token").unlink()
    make_secrets.main(root, mine)
    assert _contents(root) == before


def test_both_sides_of_a_service_know_the_same_secret(
    make_secrets: ModuleType, mine: Copies, root: Path
) -> None:
    make_secrets.main(root, mine)
    made = _contents(root)
    assert made["migrate/trainer_token"] == made["trainer/token"]
    assert made["migrate/prometheus_token"] == made["prometheus/token"]
    assert f":{made['roles/database_password']}@" in made["server/database_url"]
    assert f":{made['roles/owner_password']}@" in made["migrate/owner_database_url"]


def test_the_owners_password_reaches_no_service_that_lasts(
    make_secrets: ModuleType, mine: Copies, root: Path
) -> None:
    """Whoever breaks into the server must not find the role that can change the audit."""
    make_secrets.main(root, mine)
    secret = (root / "vault/owner_password").read_text()
    holders = {path.split("/")[0] for path, text in _contents(root).items() if secret in text}
    assert holders == {"vault", "roles", "migrate"}


def test_no_secret_is_printed(
    make_secrets: ModuleType, mine: Copies, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_secrets.main(root, mine)
    said = capsys.readouterr().out
    assert "trainer_token" in said
    assert not any(value in said for value in _contents(root).values())
