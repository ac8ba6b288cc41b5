"""The architecture, held: who may import whom, how modules are called, what files hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks import published

pytestmark = pytest.mark.slow  # `make check` runs them

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "spikeguard_protocol": ROOT / "agent/spikeguard_protocol",
    "spikeguard_cli": ROOT / "agent/spikeguard_cli",
    "spikeguard_client": ROOT / "agent/spikeguard_client",
    "spikeguard": ROOT / "agent/spikeguard",
    "spikeguard_core": ROOT / "server/spikeguard_core",
    "spikeguard_replay": ROOT / "server/spikeguard_replay",
    "spikeguard_server": ROOT / "server/spikeguard_server",
    "spikeguard_dashboard": ROOT / "dashboard/spikeguard_dashboard",
    "spikeguard_trainer": ROOT / "trainer/spikeguard_trainer",
}
MAY_IMPORT = {
    "spikeguard_protocol": set(),
    "spikeguard_cli": {"spikeguard_protocol", "spikeguard_client"},
    "spikeguard_client": {"spikeguard_protocol"},
    "spikeguard": {"spikeguard_protocol", "spikeguard_cli", "spikeguard_core"},
    "spikeguard_core": {"spikeguard_protocol"},
    "spikeguard_replay": {"spikeguard_protocol", "spikeguard_cli", "spikeguard_core"},
    "spikeguard_server": {
        *("spikeguard_protocol", "spikeguard_cli", "spikeguard_core", "spikeguard_replay"),
    },
    "spikeguard_dashboard": {"spikeguard_protocol", "spikeguard_client"},
    "spikeguard_trainer": {"spikeguard_protocol", "spikeguard_cli", "spikeguard"},
}
BROUGHT = {  # by other distributions; among ourselves MAY_IMPORT holds
    "spikeguard_protocol": set[str](),
    "spikeguard_cli": set[str](),
    "spikeguard_client": {"httpx", "msgspec"},
    "spikeguard_core": {"numpy"},
    "spikeguard_replay": {"numpy"},
}
BROUGHT_BY_FILE = {"drawing.py": {"matplotlib"}, "stores.py": {"tensorboard", "google"}}
AGENT_MAY = {"torch", "numpy"}
INTEGRATION_MAY = AGENT_MAY | {
    *("accelerate", "lightning", "safetensors", "torchtitan", "transformers"),
}
REPORT_MAY = {
    *("numpy", "spikeguard_protocol", "spikeguard_core", "spikeguard_server"),
    *("PIL", "jinja2", "markupsafe", "matplotlib"),
}
_FACTS = {"events", "suspicion"}  # what detection and diagnosis tell everybody
CORE_MAY = {  # inside the core: what each package may import of the others
    "detection": _FACTS,
    "diagnosis": _FACTS | {"detection"},
    "monitor": _FACTS | {"detection", "diagnosis"},
    "lifecycle": _FACTS | {"diagnosis"},
    "notification": {"setting_fields"},
    "policy": _FACTS | {"detection", "diagnosis", "lifecycle", "monitor", "setting_fields"},
}
SERVER_MAY = {  # inside the server: what each package may import of the others
    "identity": set[str](),
    "report": set[str](),
    "store": {"identity"},
    "access": {"identity", "store"},
    "ingest": {"identity", "store", "access"},
    "notify": {"identity", "store", "access", "jobs", "report"},
    "jobs": {"identity", "store", "ingest", "report"},
    "http": {"identity", "store", "access", "ingest", "notify", "jobs", "report"},
    "cli": {"identity", "store", "access", "http", "jobs"},
}
SERVER_SHARED = {  # modules that belong to no package
    *("entities", "errors", "settings", "metrics", "log_format"),
    "retries",
}
AGENT_LAYERS = (  # inside the agent: each may import those before it, and what all may
    *("ranks", "optim", "measure", "state", "data", "commands", "uplink", "doctor", "loop"),
)
AGENT_SHARED = {"errors", "faults", "settings"}
AGENT_CLI_MAY = {"cli", "data", "commands", "uplink"} | AGENT_SHARED
MADE = "agent/spikeguard_client/shapes.py"  # by a program, from the OpenAPI document
BUDGETS = {  # lines of Python, at most; lower them when lines go
    "spikeguard_protocol": 2_374,
    "spikeguard_cli": 2_811,
    "spikeguard_client": 887,
    "spikeguard": 16_976,
    "spikeguard_core": 9_259,
    "spikeguard_replay": 3_031,
    "spikeguard_server": 18_642,
    "spikeguard_dashboard": 2_662,
    "spikeguard_trainer": 1_987,
    "benchmarks": 12_370,
    "tests": 39_415,
}
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|base|helpers?|managers?|common|misc)(_|$)")
IMPURE = {
    "time",
    "random",
    "socket",
    "datetime",
    "os",
    "subprocess",
    "threading",
    "secrets",
    "uuid",
}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _imports(path: Path) -> set[str]:
    """Every module that `path` imports at any depth of its code, by full name."""
    found: set[str] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_another_only_along_the_arrows(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    for path in _files(PACKAGES[package]):
        crossing = (_tops(path) & PACKAGES.keys()) - allowed
        assert not crossing, f"{path.relative_to(ROOT)} imports {crossing}"


@pytest.mark.parametrize("package", BROUGHT)
def test_a_package_needs_what_its_extra_brings_and_no_more(package: str) -> None:
    for path in _files(PACKAGES[package]):
        may = BROUGHT[package] | BROUGHT_BY_FILE.get(path.name, set())
        foreign = _tops(path) - sys.stdlib_module_names - PACKAGES.keys() - may
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_of_the_server_only_its_command_line_knows_replay() -> None:
    for path in _files(PACKAGES["spikeguard_server"]):
        if path.parent.name != "cli":
            assert "spikeguard_replay" not in _tops(path), path.relative_to(ROOT)


REMOVES = {  # files and folders: checkpoints in one place, and what it wrote for itself
    "loop/attempt.py": {"unlink"},  # its own note of a restore that failed
    "state/folders.py": {"rmtree", "unlink", "rmdir"},
    "uplink/backlog.py": {"unlink", "rmdir"},
}


def test_the_agent_removes_files_of_the_job_in_one_place_alone() -> None:
    """Where it is known whose a folder is."""
    for path in _files(PACKAGES["spikeguard"]):
        called = {n.attr for n in ast.walk(_parsed(path)) if isinstance(n, ast.Attribute)}
        removing = called & {"rmtree", "unlink", "rmdir", "removedirs"}
        place = path.relative_to(PACKAGES["spikeguard"]).as_posix()
        assert removing == REMOVES.get(place, set()), place


def test_the_agent_brings_nothing_into_the_training_environment() -> None:
    for path in _files(PACKAGES["spikeguard"]):
        may = INTEGRATION_MAY if path.parent.name == "integrations" else AGENT_MAY
        if path.parent.name == "doctor":  # for a file to look at, where the command runs
            may = may | {"safetensors"}
        foreign = _tops(path) - sys.stdlib_module_names - PACKAGES.keys() - may
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_nothing_else_in_the_agent_loads_an_integration() -> None:
    for path in _files(PACKAGES["spikeguard"]):
        if path.parent.name != "integrations":
            assert "spikeguard.integrations" not in _imports(path), path.relative_to(ROOT)


def test_of_the_agent_only_its_own_watch_knows_the_core() -> None:
    for path in _files(PACKAGES["spikeguard"]):
        if path.stem != "local_watch":
            assert "spikeguard_core" not in _tops(path), path.relative_to(ROOT)


def _parts_of_the_agent(path: Path) -> set[str]:
    """The modules and packages right below `spikeguard` that `path` imports."""
    names = (name.split(".") for name in _imports(path) if name.startswith("spikeguard."))
    parts = {name[1] for name in names}
    return {p for p in parts if any(PACKAGES["spikeguard"].glob(f"{p}.py")) or p in _FOLDERS}


_FOLDERS = {path.parent.name for path in PACKAGES["spikeguard"].glob("*/__init__.py")}


@pytest.mark.parametrize("layer", AGENT_LAYERS)
def test_the_packages_of_the_agent_import_those_below(layer: str) -> None:
    may = {*AGENT_LAYERS[: AGENT_LAYERS.index(layer) + 1], *AGENT_SHARED}
    paths = list(_files(PACKAGES["spikeguard"] / layer))
    assert paths, f"the agent has no package called {layer}"
    for path in paths:
        reached = _parts_of_the_agent(path) - may
        assert not reached, f"{path.relative_to(ROOT)} imports {reached}"


def test_the_agents_commands_need_no_training_loop() -> None:
    for path in _files(PACKAGES["spikeguard"] / "cli"):
        reached = _parts_of_the_agent(path) - AGENT_CLI_MAY
        assert not reached, f"{path.relative_to(ROOT)} imports {reached}"


def test_every_package_of_the_agent_has_its_place() -> None:
    assert {*AGENT_LAYERS, "cli", "integrations"} == _FOLDERS


WRITES = re.compile(r"sql\.(insert|update|delete)\b|\binsert\(|with_for_update|lock_run|\.commit\(")
SQL = re.compile(r"\bsql\.(select|insert|update|delete|text)\(")


def test_what_reads_neither_writes_nor_locks() -> None:
    for path in _files(PACKAGES["spikeguard_server"] / "store/reads"):
        assert WRITES.search(path.read_text()) is None, path.name


def test_no_sql_is_written_outside_the_store() -> None:
    server = PACKAGES["spikeguard_server"]
    assert SQL.search((server / "store/runs.py").read_text())
    for path in _files(server):
        place = path.relative_to(server).parts
        if "store" not in place and path.name != "embedded_postgres.py":  # which starts a database
            assert SQL.search(path.read_text()) is None, path.relative_to(server)


def test_post_mortems_need_no_framework() -> None:
    for path in _files(PACKAGES["spikeguard_server"] / "report"):
        foreign = _tops(path) - sys.stdlib_module_names - REPORT_MAY
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_the_core_has_no_clock_no_randomness_and_no_io() -> None:
    for path in _files(PACKAGES["spikeguard_core"]):
        impure = _tops(path) & IMPURE
        assert not impure, f"{path.relative_to(ROOT)} imports {impure}"


@pytest.mark.parametrize(
    ("root", "package", "may"),
    [
        *(("spikeguard_core", package, may) for package, may in CORE_MAY.items()),
        *(("spikeguard_server", name, may | SERVER_SHARED) for name, may in SERVER_MAY.items()),
    ],
)
def test_packages_import_those_below(root: str, package: str, may: set[str]) -> None:
    paths = list(_files(PACKAGES[root] / package))
    assert paths, f"{root} has no package called {package}"
    own = f"{root}."
    for path in paths:
        names = {name.removeprefix(own) for name in _imports(path) if name.startswith(own)}
        reached = {name.split(".")[0] for name in names} - may - {package}
        reached = {name for name in reached if not _is_a_name_in(PACKAGES[root], name)}
        assert not reached, f"{path.relative_to(ROOT)} imports {reached}"


def _is_a_name_in(root: Path, name: str) -> bool:
    """Whether it is neither a module nor a package there: something that a package exports."""
    path = root / name.replace(".", "/")
    return not path.is_dir() and not path.with_suffix(".py").is_file()


def test_every_package_of_core_and_server_has_its_place() -> None:
    for name, known in (("spikeguard_core", CORE_MAY), ("spikeguard_server", SERVER_MAY)):
        assert {p.parent.name for p in PACKAGES[name].glob("*/__init__.py")} == known.keys()
    root = PACKAGES["spikeguard_server"]
    loose = {path.stem for path in root.glob("*.py")} - {"__init__"}
    assert loose == SERVER_SHARED


def test_no_file_hides_behind_a_name_that_says_nothing() -> None:
    for folder in PACKAGES.values():
        for path in _files(folder):
            assert not FORBIDDEN_NAMES.search(path.stem), path.relative_to(ROOT)


def test_every_module_opens_with_what_it_owns() -> None:
    for folder in PACKAGES.values():
        for path in _files(folder):
            assert ast.get_docstring(_parsed(path)), path.relative_to(ROOT)


def test_files_stay_small_enough_to_read_at_once() -> None:
    for folder in PACKAGES.values():
        for path in _files(folder):
            if path.relative_to(ROOT).as_posix() == MADE:
                continue
            lines = len(path.read_text().splitlines())
            assert lines <= 450, f"{path.relative_to(ROOT)} has {lines} lines"


@pytest.mark.parametrize("name", BUDGETS)
def test_a_package_grows_within_its_budget(name: str) -> None:
    folder = PACKAGES.get(name, ROOT / name)
    lines = sum(len(path.read_text().splitlines()) for path in _files(folder))
    assert lines <= BUDGETS[name], (
        f"{name} has {lines:,} lines and may have {BUDGETS[name]:,}. Take some away; where they "
        "are worth it, raise the number in BUDGETS (tests/test_architecture.py) by hand, in a "
        "commit that says what the lines buy"
    )


def test_every_package_has_a_budget() -> None:
    assert BUDGETS.keys() == PACKAGES.keys() | {"benchmarks", "tests"}


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.slow
def test_nothing_large_and_no_path_of_one_machine_is_kept() -> None:
    """Data sets, weights and absolute paths have no place in the repository."""
    places = re.compile(rb"(?<![\w.])/(?:work|root|home/\w+)/(?!\.local|\.config)[\w.-]+")
    for path in _tracked():
        content = path.read_bytes()
        assert len(content) < 400_000, f"{path.relative_to(ROOT)} is {len(content)} bytes"
        if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".json", ".txt"}:
            assert not places.search(content), f"{path.relative_to(ROOT)}: {places.search(content)}"


def test_migrations_stand_in_one_line() -> None:
    """Each follows another one, and none follows the same: two heads would stop every upgrade."""
    folder = ROOT / "server/spikeguard_server/store/migrations/versions"
    found = [
        re.search(r"^down_revision(?:: [^=]*)? = (.*)$", file.read_text(), re.M)
        for file in folder.glob("[0-9]*.py")
    ]
    assert all(found)
    followed = [line[1] for line in found if line]
    assert sorted(followed) == sorted(set(followed))


def test_every_published_table_is_made_of_its_results() -> None:
    """Where it fails: `python -m benchmarks.published`."""
    for page in published.pages():
        assert published.rendered(page.read_text()) == page.read_text(), page.name


def test_the_first_page_stays_one_page() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_no_public_name_of_the_server_stands_for_two_things() -> None:
    """A search for a name finds one definition; `run` is what each command of `cli` does."""
    server = PACKAGES["spikeguard_server"]
    found: dict[str, list[str]] = {}
    for path in sorted(server.rglob("*.py")):
        if "migrations" not in path.parts:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    found.setdefault(node.name, []).append(str(path.relative_to(server)))
    twice = {
        name: places
        for name, places in found.items()
        if len(places) > 1 and not name.startswith("_") and name != "run"
    }
    assert twice == {}
