"""A job takes signed orders only: who can give it one, and what the server can do to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sql

from spikeguard_cli.credentials import Credentials, credentials_path, save_credentials
from spikeguard_cli.main import main
from spikeguard_protocol import AttemptStarted, Order
from spikeguard_protocol.order_signature import OrderKey, signature_problem
from spikeguard_server.settings import SettingError, read_settings

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

KEY, OTHER = (OrderKey(bytes([n]) * 32) for n in (7, 8))
VERBS = ("rollback", "skip_batches", "scale_lr", "checkpoint_now", "watch", "stop")


@pytest.fixture
def proposal(job: Job) -> dict[str, Any]:
    """A rollback that waits for a person, in a job that has keys."""
    keys = {"order_keys": f"{KEY.name},{OTHER.name}"}
    job.send(AttemptStarted(None, 1, VERBS, "test", 4096, keys))
    found: dict[str, Any] = job.spike().incident()["proposal"]
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a person who works at the command line."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def key_file(home: Path, key: OrderKey) -> str:
    (home / "order_key").write_text(f"{key.secret.hex()}\n")
    return str(home / "order_key")


def order_of(job: Job, command: str) -> Order:
    return next(order for order in job.train(1, excess=3.0).orders if order.command == command)


def sign_in(live: Live) -> None:
    with live.person("Ada Lovelace") as ada:
        token = ada.headers["authorization"].removeprefix("Bearer ")
    save_credentials(Credentials(live.url, token), credentials_path())


def test_what_a_person_signs_at_the_command_line_reaches_the_job_and_no_change_of_it_does(
    live: Live, job: Job, proposal: dict[str, Any], home: Path
) -> None:
    """The server holds no key: what it, or its database, makes of the order shows."""
    sign_in(live)
    asked = ["approve", proposal["id"], "--yes", "--order-key", key_file(home, KEY)]
    assert main(asked) == 0
    order = order_of(job, proposal["id"])
    assert signature_problem((OTHER, KEY), order, order.signature, time.time()) is None
    with live.engine.begin() as connection:
        changed = sql.text(
            "update commands set arguments = jsonb_set(arguments, '{skip,end}', '900')"
            " from runs where runs.run_id = commands.run_id and runs.name = :name and verb = :verb"
        )
        connection.execute(changed, {"name": job.run, "verb": "rollback"})
    order = order_of(job, proposal["id"])
    problem = signature_problem((KEY,), order, order.signature, time.time())
    assert problem == f"its signature with key {KEY.name} is of another order"


@pytest.mark.parametrize("key", [None, OrderKey(bytes([9]) * 32)])
def test_a_yes_that_the_job_would_refuse_is_refused_at_once_with_the_remedy(
    live: Live,
    proposal: dict[str, Any],
    home: Path,
    key: OrderKey | None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    sign_in(live)
    signed = [] if key is None else ["--order-key", key_file(home, key)]
    assert main(["approve", proposal["id"], "--yes", *signed]) == 1
    said = capfd.readouterr().err
    assert f"signed with key {KEY.name}, {OTHER.name} only" in said
    assert "--order-key FILE" in said


def test_a_job_without_keys_gets_orders_as_before(live: Live, job: Job, home: Path) -> None:
    proposal = job.spike().incident()["proposal"]
    sign_in(live)
    assert main(["approve", proposal["id"], "--yes", "--order-key", key_file(home, KEY)]) == 0
    assert order_of(job, proposal["id"]).signature is None


def test_a_key_of_the_server_is_one_key_and_is_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY.secret.hex())
    settings = read_settings({"SPIKEGUARD_ORDER_KEY_FILE": str(path)})
    assert settings.order_key == KEY.secret.hex()
    assert settings.order_key not in repr(settings)
    path.write_text(f"{KEY.secret.hex()[:-1]}z")
    with pytest.raises(SettingError, match="SPIKEGUARD_ORDER_KEY is a key") as error:
        read_settings({"SPIKEGUARD_ORDER_KEY_FILE": str(path)})
    assert KEY.secret.hex()[:8] not in str(error.value)
