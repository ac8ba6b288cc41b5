"""A job takes signed orders only: who can give it one, and what the server can do to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import sqlalchemy as sql

from spikeguard_cli.credentials import Credentials, credentials_path, save_credentials
from spikeguard_cli.main import main
from spikeguard_protocol import Action, AttemptStarted, Order, Role, TargetDeleted, from_json
from spikeguard_protocol.order_signature import OrderKey, Signed, sign, signature_problem
from spikeguard_protocol.orders import read_action
from spikeguard_server.settings import SettingError, read_settings
from tests.server.face.test_decisions import state_of
from tests.server.face.test_two_people import asks_two, named

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

KEY, OTHER = (OrderKey(bytes([n]) * 32) for n in (7, 8))
VERBS = ("rollback", "skip_batches", "scale_lr", "checkpoint_now", "watch", "stop")


@pytest.fixture
def proposal(job: Job) -> dict[str, Any]:
    """A rollback that waits for a person, in a job that has keys."""
    found: dict[str, Any] = with_keys(job).spike().incident()["proposal"]
    return found


def with_keys(job: Job) -> Job:
    """`job`, which says that it takes signed orders only."""
    keys = {"order_keys": f"{KEY.name},{OTHER.name}"}
    job.send(AttemptStarted(None, 1, VERBS, "test", 4096, keys))
    return job


def signature_of(command: dict[str, Any]) -> str:
    """What somebody who looks at `command` signs."""
    action = from_json(Action, read_action(command["verb"], command["arguments"]))
    signed = Signed(command["id"], command["attempt"], action, command["expires_at_step"])
    return sign(KEY, signed, time.time() + 600)


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
    assert main(["approve", proposal["id"], "--yes", *signed]) == 5
    said = capfd.readouterr().err
    assert f"signed with key {KEY.name}, {OTHER.name} only" in said
    assert "--order-key FILE" in said


def test_what_the_policy_may_approve_alone_waits_where_the_job_asks_for_a_signature(
    live: Live, job: Job
) -> None:
    auto = {"approval": {"rollback": {"mode": "auto", "cooldown_s": 0}}}
    with live.client(Role.ADMIN) as admin:
        assert admin.put(f"{job.path}/policy", json={"policy": auto}).status_code == 200
    command = with_keys(job).spike().incident()["proposal"]
    job.train(20, excess=3.0)
    assert (command["verb"], state_of(job, command)["state"]) == ("rollback", "proposed")
    body = {"revision": command["revision"], "signature": signature_of(command)}
    with named(live, "Ada Lovelace") as ada:
        done = ada.post(f"{job.command_path(command)}/approve", json=body).json()
    assert (done["state"], done["decided_by"]) == ("approved", "Ada Lovelace")
    assert order_of(job, command["id"]).signature == body["signature"]


def test_of_two_people_one_signs_and_a_new_revision_takes_the_signature_back(
    live: Live, job: Job
) -> None:
    """Else the second yes would send what was signed before, and the job would refuse it."""
    command = with_keys(asks_two(live, job)).spike().incident()["proposal"]
    with named(live, "Ada Lovelace") as ada, named(live, "Grace Hopper") as grace:

        def approve(person: httpx.Client, signature: str | None = None) -> dict[str, Any]:
            now = state_of(job, command)
            body = {"revision": now["revision"], "signature": signature}
            answer = person.post(f"{job.command_path(command)}/approve", json=body).json()
            return dict(answer)

        assert approve(ada)["error"]["code"] == "illegal_move"
        assert approve(ada, signature_of(command))["state"] == "approved_once"
        job.send(TargetDeleted(command["arguments"]["target"]))
        assert state_of(job, command)["revision"] > command["revision"]
        assert "has to be signed" in approve(grace)["error"]["message"]
        signature = signature_of(state_of(job, command))
        assert approve(grace, signature)["state"] == "approved_once"
        assert approve(ada)["decided_by"] == "Grace Hopper and Ada Lovelace"
    order = order_of(job, command["id"])
    assert signature_problem((KEY,), order, order.signature, time.time()) is None


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
