"""What the compose file and the Dockerfiles promise, read without any engine."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from spikeguard_server.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = [ROOT / name / "Dockerfile" for name in ("server", "dashboard", "trainer")]
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?")
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY$|DATABASE_URL")


def _builds(service: dict[str, Any]) -> Path | None:
    """The Dockerfile of the image that `service` runs, if the project builds it."""
    for other in SERVICES.values():
        if other["image"] == service["image"] and "build" in other:
            return ROOT / str(other["build"]["dockerfile"])
    return None


def _user(service: dict[str, Any]) -> int:
    """The user id that `service` runs as: its own setting or the last USER of its Dockerfile."""
    if "user" in service:
        return int(service["user"].split(":")[0])
    dockerfile = _builds(service)
    assert dockerfile, "a stock image's user has to be written down"
    return int(re.findall(r"^USER (\d+):", dockerfile.read_text(), re.M)[-1])


def _mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Source -> (target, read-only) of every volume that `service` mounts."""
    entries = (entry.split(":") for entry in service.get("volumes", []))
    return {parts[0]: (parts[1], parts[2:] == ["ro"]) for parts in entries}


def test_the_stack_is_the_documented_one() -> None:
    assert SERVICES.keys() == {
        "init", "postgres", "roles", "migrate", "server", "proxy", "dashboard", "prometheus",
        "alertmanager", "grafana", "trainer",
    }  # fmt: skip
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["trainer"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_bound_to_loopback_unless_told_otherwise(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("${SPIKEGUARD_BIND:-127.0.0.1}:"), port


def test_postgres_is_reached_by_the_server_its_migration_and_its_roles_alone() -> None:
    near = {name for name, service in SERVICES.items() if "database" in service.get("networks", [])}
    assert near == {"postgres", "roles", "migrate", "server"}
    assert COMPOSE["networks"]["database"]["internal"] is True
    assert "ports" not in SERVICES["postgres"]


def test_what_asks_for_no_token_is_published_nowhere() -> None:
    """Any website that a browser on the host shows could read it, and silence alerts."""
    published = {name for name, service in SERVICES.items() if service.get("ports")}
    assert published == {"proxy", "dashboard", "grafana"}


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_runs_as_root_but_the_one_that_gives_files_away(name: str) -> None:
    service = SERVICES[name]
    if name == "init":
        assert service["cap_add"] == ["CHOWN"]
        assert service["network_mode"] == "none"
    else:
        assert _user(service) > 0
        assert "cap_add" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_closed_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}
    assert service["logging"]["options"]["max-size"]
    assert "privileged" not in service


def test_the_database_asks_for_a_password_on_its_own_loopback_too() -> None:
    asked = SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"].split()
    assert {"--auth-local=scram-sha-256", "--auth-host=scram-sha-256"} <= set(asked)


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_stands_in_an_environment(name: str) -> None:
    """A secret comes as a file of the service's own volume; it has no default and no variable."""
    for variable, value in SERVICES[name].get("environment", {}).items():
        if SECRET.search(variable):
            assert variable.endswith("_FILE"), variable
            assert value.startswith("/run/spikeguard/"), value


@pytest.mark.parametrize("name", ["alertmanager", "dashboard", "proxy"])
def test_what_needs_no_secret_is_given_none(name: str) -> None:
    assert not any(source.startswith("secrets-") for source in _mounts(SERVICES[name]))


@pytest.mark.parametrize(
    "name", sorted(SERVICES.keys() - {"init", "alertmanager", "dashboard", "proxy"})
)
def test_a_service_sees_its_own_secrets_only_and_cannot_change_them(name: str) -> None:
    secret = {s: where for s, where in _mounts(SERVICES[name]).items() if s.startswith("secrets-")}
    assert secret == {f"secrets-{name}": ("/run/spikeguard", True)}


def test_every_secret_goes_to_the_user_that_its_service_runs_as(make_secrets: ModuleType) -> None:
    mounted = {source for source in _mounts(SERVICES["init"]) if source.startswith("secrets-")}
    assert mounted == {f"secrets-{c.folder}" for c in make_secrets.COPIES} | {"secrets-vault"}
    for copy in make_secrets.COPIES:
        assert _user(SERVICES[copy.folder]) == copy.owner, copy


def test_one_file_holds_every_setting_of_an_operator() -> None:
    """But what the stack sets itself: the database, and where the server listens inside."""
    (given,) = SERVICES["server"]["env_file"]
    assert given == {"path": ".env", "required": False}
    text = (ROOT / ".env.example").read_text()
    listed = set(re.findall(r"^# ?([A-Z_]+)=", text, re.M))
    own = {"database_url", "owner_database_url", "host", "oidc_client_secret"}
    settings = {entry.name for entry in fields(Settings)} - own
    assert {f"SPIKEGUARD_{name.upper()}" for name in settings} <= listed
    asked = set(re.findall(r"\$\{(\w+):?-", (ROOT / "docker-compose.yml").read_text()))
    assert asked <= listed
    assert listed - asked <= {f"SPIKEGUARD_{name.upper()}" for name in settings}
    assert not re.search(r"^\w", text, re.M)  # all of it is a comment: the defaults hold


def test_the_stack_forgets_samples_after_90_days_unless_told_otherwise() -> None:
    environment = SERVICES["server"]["environment"]
    kept = {name: value for name, value in environment.items() if "_KEEP_" in name}
    assert kept == {"SPIKEGUARD_KEEP_SAMPLES_DAYS": "${SPIKEGUARD_KEEP_SAMPLES_DAYS:-365}"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_stock_image_is_pinned(name: str) -> None:
    if _builds(SERVICES[name]) is None:
        assert PINNED.fullmatch(SERVICES[name]["image"]), SERVICES[name]["image"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_is_pinned_built_in_stages_and_ends_without_build_tools(path: Path) -> None:
    text = path.read_text()
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", text, re.M)
    assert PINNED.fullmatch(python)
    build, final = text.split("\nFROM ${PYTHON_IMAGE}\n")
    assert "FROM ${PYTHON_IMAGE} AS dependencies" in build
    assert "pip uninstall --yes --quiet --root-user-action=ignore pip" in final
    assert "install" not in final.replace("install -d", "").replace("uninstall", "")
    for line in re.findall(r"pip .*install .*", build):
        assert "--constraint constraints.txt" in line or "--no-deps" in line, line


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_holds_the_dependencies_of_its_own_extra(path: Path) -> None:
    assert f"requirements.py pyproject.toml {path.parent.name} " in path.read_text()


def test_each_service_gets_the_least_role() -> None:
    script = SERVICES["migrate"]["command"][-1]
    calls = [shlex.split(line) for line in script.splitlines() if "register" in line]
    roles = {call[call.index("--name") + 1]: call[call.index("--role") + 1] for call in calls}
    assert roles == {"trainer": "agent", "prometheus": "metrics"}
