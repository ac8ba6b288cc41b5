"""The wheel in environments of its own: what each extra brings, and what is said without it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from spikeguard_cli.extras import requirement
from spikeguard_cli.main import find_commands
from tests.agent.job import Job
from tests.agent.wire import Wire, served

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
OURS = {path.parent.name: path.parent for path in ROOT.glob("*/spikeguard*/__init__.py")}

Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A new environment with the wheel and no extra."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip("install", str(wheel), into=folder)
    return folder


@pytest.fixture
def typed(environment: Path, tmp_path: Path) -> Typed:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = environment / "bin" / words[0]
        return subprocess.run(
            [program, *words[1:]], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=120
        )

    return run


def pip(*words: str, into: Path | None = None) -> None:
    python = Path(sys.base_prefix) / "bin/python3"  # whose pip may be missing in .venv
    other = ("--python", str(into / "bin/python")) if into else ()
    done = subprocess.run(
        [str(python), "-m", "pip", *other, *words], capture_output=True, text=True, timeout=500
    )
    if "Could not find a version" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip(f"no package index is reached: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr


def test_every_command_without_its_extra_says_what_to_install(typed: Typed) -> None:
    heavy = {one.name: one for one in find_commands() if one.extra is not None}
    light = {one.name for one in find_commands()} - heavy.keys()
    assert light == {"sync", "journal", "doctor"}
    given = {"show": ["gpt-1"], "token": ["list"], "replay": ["a.csv"], "backtest": ["."]}
    for name in ("up", "serve", "migrate", "demo", "runs", *given):
        said = typed("spikeguard", name, *given.get(name, []))
        assert said.returncode == 1
        assert f"pip install 'spikeguard[{heavy[name].extra}] @ file:" in said.stderr
    assert (
        "`spikeguard doctor` needs torch: type it in the"
        in typed("spikeguard", "doctor", ".").stderr
    )
    assert typed("spikeguard", "--help").returncode == 0


def test_the_import_without_torch_says_what_is_missing_and_where_to_install(typed: Typed) -> None:
    for line in ("import spikeguard; spikeguard.attach", "from spikeguard import attach"):
        said = typed("python", "-c", line)
        last = said.stderr.splitlines()[-1]
        assert last.startswith("ImportError: spikeguard.attach needs torch"), said.stderr
        assert "the environment that your training job runs in" in last


def test_a_runs_directory_is_read_and_uploaded_without_torch(typed: Typed, tmp_path: Path) -> None:
    """Someone else's machine has the directory, not the job's environment."""
    job = Job(tmp_path / "run").train_to(5)
    job.guard.finish()
    read = typed("spikeguard", "journal", str(tmp_path))
    assert read.returncode == 0, read.stderr
    token = tmp_path / "token"
    token.write_text("any")
    with served(Wire()) as wire:
        sent = typed("spikeguard", "sync", ".", "--server", wire.url, "--token-file", str(token))
    assert sent.returncode == 0, sent.stderr
    assert sorted(step for _, step in wire.column("loss")) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("origin", "says"),
    [
        (None, "'spikeguard[up]'"),
        ('{"url": "https://a/b.whl", "archive_info": {}}', "'spikeguard[up] @ https://a/b.whl'"),
        ('{"url": "file:///a%20b/c", "dir_info": {}}', "'spikeguard[up] @ file:///a%20b/c'"),
        (
            '{"url": "file:///a%20b", "dir_info": {"editable": true}}',
            "--editable '/a b[up]'",
        ),
        (
            '{"url": "https://a/b", "vcs_info": {"vcs": "git", "commit_id": "c0"}}',
            "'spikeguard[up] @ git+https://a/b@c0'",
        ),
    ],
)
def test_a_hint_names_where_this_copy_came_from(origin: str | None, says: str) -> None:
    assert requirement("up", origin) == says


@pytest.mark.parametrize(
    ("extra", "packages", "apart"),
    [
        ("cli", ("spikeguard_cli", "spikeguard_client"), ()),
        ("replay", ("spikeguard_replay", "spikeguard_core"), ("drawing.py", "stores.py")),
        ("plot", ("spikeguard_replay", "spikeguard_core"), ("stores.py",)),
        ("tensorboard", ("spikeguard_replay",), ("drawing.py",)),
        ("server", ("spikeguard_server", "spikeguard_core"), ("embedded_postgres.py",)),
        ("dashboard", ("spikeguard_dashboard",), ()),
        ("up", ("spikeguard_server", "spikeguard_dashboard", "spikeguard_core"), ()),
        ("demo", ("spikeguard_trainer", "spikeguard_server", "spikeguard_dashboard"), ()),
    ],
)
def test_an_extra_brings_all_that_its_code_imports(
    wheel: Path, extra: str, packages: tuple[str, ...], apart: tuple[str, ...]
) -> None:
    brought, owners = set(_brought(wheel, extra)), _owners()
    for package in packages:
        for path in OURS[package].rglob("*.py"):
            for module in _foreign(path) if path.name not in apart else ():
                assert brought & {_plain(one) for one in owners.get(module, ())}, (path, module)


def test_every_extra_that_a_command_names_is_in_the_wheel(wheel: Path) -> None:
    named = {command.extra for command in find_commands() if command.extra}
    assert named | {"plot", "tensorboard", "dev"} <= set(_metadata(wheel, "Provides-Extra"))


@cache  # it reads what every distribution installed
def _owners() -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def _foreign(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - OURS.keys()


def _metadata(wheel: Path, field: str) -> Iterator[str]:
    with ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        head = archive.read(name).decode().partition("\n\n")[0]
    return iter(re.findall(rf"^{field}: (.*)$", head, re.MULTILINE))


def _brought(wheel: Path, extra: str) -> Iterator[str]:
    """Every distribution that pip would install for `extra`, by the metadata of those here."""
    waiting = [
        wanted
        for wanted in map(Requirement, _metadata(wheel, "Requires-Dist"))
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra})
    ]
    seen: set[tuple[str, str]] = set()
    while waiting:
        one = waiting.pop()
        if _plain(one.name) == "spikeguard":
            for other in one.extras:
                yield from _brought(wheel, other)
            continue
        yield _plain(one.name)
        for part in {"", *one.extras} - {p for name, p in seen if name == one.name}:
            seen.add((one.name, part))
            waiting += [
                each
                for each in map(Requirement, requires(one.name) or ())
                if each.marker is None or each.marker.evaluate({"extra": part})
            ]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
