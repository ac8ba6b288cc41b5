"""A bad setting is an error that names its variable."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import spikeguard_server
from spikeguard_core.setting_fields import SettingError
from spikeguard_server.settings import Settings, read_settings


def test_every_setting_is_read_by_somebody() -> None:
    """One that nobody reads promises what does not happen."""
    server = Path(spikeguard_server.__file__).parent
    readers = [path for path in server.rglob("*.py") if path.name != "settings.py"]
    code = "\n".join(path.read_text() for path in readers)
    unread = [e.name for e in fields(Settings) if not re.search(rf"\.{e.name}\b", code)]
    assert unread == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPIKEGUARD_PORT", "eighty"),
        ("SPIKEGUARD_ENDED_AFTER_S", "1e99"),  # no time has so many seconds
        ("SPIKEGUARD_KEEP_SAMPLES_DAYS", "1e99"),
        ("SPIKEGUARD_PORT", "70000"),
        ("SPIKEGUARD_TICK_S", "0"),
        ("SPIKEGUARD_DECISIONS_BY", "nobody"),
        ("SPIKEGUARD_LOG_FORMAT", "xml"),
        ("SPIKEGUARD_TICK_S", "nan"),
        ("SPIKEGUARD_POOL_SIZE", "2.5"),
        ("SPIKEGUARD_NOTIFY_NETWORKS", "10.0.0.1/8"),
        ("SPIKEGUARD_TRUSTED_PROXIES", "proxy.example"),
        ("DATABASE_URL", "mysql://root@localhost/db"),
        ("DATABASE_URL", "not a url"),
        ("DATABASE_URL", "postgresql://h:99999/db"),
        ("SPIKEGUARD_SIGN_IN_PERSON_HEADER", "X Forwarded:"),  # no proxy sends it: nobody signs in
        ("SPIKEGUARD_KEEP_SAMPLE_DAYS", "90"),  # KEEP_SAMPLES_DAYS is meant
        ("DATABASE_URL_FILE", "/nowhere"),
        ("SPIKEGUARD_PORT_FILE", "/nowhere"),
    ],
)
def test_a_bad_value_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_settings({variable: value})
    assert refused.value.field == variable
    assert variable in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"LOST_AFTER_S": "30"},  # it would give up orders of a live run
        {"SILENT_AFTER_S": "1000"},
        {"ENDED_AFTER_S": "600"},
        {"SILENT_AFTER_S": "30", "LOST_AFTER_S": "20"},
    ],
)
def test_a_run_falls_silent_before_its_orders_are_lost_and_these_before_it_has_ended(
    given: dict[str, str],
) -> None:
    variables = {f"SPIKEGUARD_{name}": value for name, value in given.items()}
    with pytest.raises(SettingError, match="silent <= lost <= ended") as refused:
        read_settings(variables)
    assert all(name in str(refused.value) for name in variables)
    longer = {"SPIKEGUARD_SILENT_AFTER_S": "1000", "SPIKEGUARD_LOST_AFTER_S": "1000"}
    assert read_settings(longer).silent_after_s == 1000


def test_every_number_can_be_set_and_has_limits() -> None:
    for entry in fields(Settings):
        if not isinstance(entry.default, str):
            assert entry.metadata["limit"] is not None, entry.name
            text = str(entry.default)
            variable = f"SPIKEGUARD_{entry.name.upper()}"
            assert getattr(read_settings({variable: text}), entry.name) == entry.default


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_any_spelling_of_postgres_gets_our_driver(scheme: str) -> None:
    settings = read_settings({"DATABASE_URL": f"{scheme}://me:pw@db:5432/spikes"})
    assert settings.database_url == "postgresql+psycopg://me:pw@db:5432/spikes"


def test_secrets_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://me@db/spikes\n")
    (tmp_path / "password").write_text("p@ss/word\n")
    (tmp_path / "owner").write_text("postgresql://owner:kkk@db/spikes\n")
    settings = read_settings(
        {
            "DATABASE_URL_FILE": str(tmp_path / "url"),
            "SPIKEGUARD_DATABASE_PASSWORD_FILE": str(tmp_path / "password"),
            "SPIKEGUARD_OWNER_DATABASE_URL_FILE": str(tmp_path / "owner"),
        }
    )
    assert settings.database_url == "postgresql+psycopg://me:p%40ss%2Fword@db/spikes"
    assert settings.owner_database_url == "postgresql+psycopg://owner:kkk@db/spikes"
    assert "word" not in repr(settings)
    assert "kkk" not in repr(settings)
    owner = {"SPIKEGUARD_OWNER_DATABASE_URL_FILE": str(tmp_path / "owner")}
    assert read_settings(owner).database_url == ""


@pytest.mark.parametrize("name", ["DASHBOARD_URL", "PUBLIC_URL"])
@pytest.mark.parametrize("url", ["https://[::1/", "https://host:port", "ftp://host", "host:8501"])
def test_an_address_that_cannot_be_read_is_an_error_at_the_start(name: str, url: str) -> None:
    """Every answer names it in a header, so each would fail."""
    with pytest.raises(SettingError, match=f"SPIKEGUARD_{name}"):
        read_settings({f"SPIKEGUARD_{name}": url})
