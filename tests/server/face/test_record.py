"""The record says why, and of a channel and a policy what became of each field; never a secret."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from spikeguard_cli.credentials import Credentials, save_credentials
from spikeguard_cli.main import main
from spikeguard_client import Client
from spikeguard_client.shapes import AuditEntry
from spikeguard_protocol import Role
from tests.server.face.conftest import Job, Live

SECRET = "a secret of more than sixteen signs"
TARGET = {"url": "https://example.org/hook?word=hidden", "secret": SECRET}


@pytest.fixture
def root(live: Live) -> Client:
    """An admin with a name."""
    return Client(live.url, live.tokens[Role.ADMIN]).signed_in("Root")


def newest(client: Client, many: int) -> list[AuditEntry]:
    """The last entries of what belongs to no run, the oldest of them first."""
    return list(islice(client.fleet_audit(), many))[::-1]


def fields(entry: AuditEntry) -> dict[str, tuple[Any, Any]]:
    return {c["field"]: (c["before"], c["after"]) for c in entry["changes"]}


def test_whoever_changes_something_may_say_why(root: Client) -> None:
    token = root.make_token(Role.VIEWER, reason="a screen in the hall")
    root.revoke_token(token["id"], "it was stolen")
    root.put_channel("of-record", "a", {"kind": "webhook", "target": TARGET}, "we start")
    root.delete_channel("of-record", "a", "we end")
    made = root.silence("of-record", lasts_s=60, reason="the racks are moved")
    root.end_silence("of-record", made["number"], "they stand")
    root.put_policy("of-record", {"price_per_hour": 98.0}, reason="a new contract")
    root.put_policy("of-record", {"price_per_hour": 97.0}, reason="another & one")
    told = [(entry["action"], entry["reason"]) for entry in newest(root, 8)]
    assert told == [
        ("token.created", "a screen in the hall"),
        ("token.revoked", "it was stolen"),
        ("channel.created", "we start"),
        ("channel.removed", "we end"),
        ("silence.created", "the racks are moved"),
        ("silence.ended", "they stand"),
        ("policy.written", "a new contract"),
        ("policy.written", "another & one"),
    ]


def test_a_changed_channel_says_which_fields_and_hides_what_is_secret(root: Client) -> None:
    root.put_channel("of-record", "c", {"kind": "webhook", "target": TARGET})
    root.put_channel("of-record", "c", {"kind": "webhook", "cooldown_s": 5, "runs": ["gpt-*"]})
    other = {**TARGET, "secret": SECRET[::-1]}
    root.put_channel("of-record", "c", {"kind": "webhook", "target": other, "cooldown_s": 5})
    root.delete_channel("of-record", "c")
    made, ruled, hidden, gone = newest(root, 4)
    assert fields(made)["target.url"] == (None, "https://example.org/…")
    assert fields(ruled) == {"cooldown_s": (120.0, 5.0), "runs": ([], ["gpt-*"])}
    assert fields(hidden) == {"target.secret": ("…", "…"), "runs": (["gpt-*"], [])}
    assert fields(gone)["cooldown_s"] == (5.0, None)
    text = json.dumps([made, ruled, hidden, gone])
    for secret in ("hidden", SECRET, SECRET[::-1]):
        assert secret not in text


def test_a_policy_says_which_settings_changed_also_in_the_record_of_its_run(
    root: Client, job: Job
) -> None:
    run = job.id
    approval = {"rollback": {"mode": "auto"}}
    root.put_run_policy(run, {"price_per_hour": 7.5, "approval": approval}, reason="rented")
    root.drop_run_policy(run, "given back")
    dropped, written = islice(root.audit(run), 2)
    assert (written["reason"], dropped["reason"]) == ("rented", "given back")
    assert fields(written) == {
        "price_per_hour": (None, 7.5),
        "approval.rollback.mode": ("manual", "auto"),
    }
    assert fields(dropped) == {name: pair[::-1] for name, pair in fields(written).items()}
    root.halt("of-record-switch", "we look first")
    root.resume("of-record-switch", "we have")
    assert [fields(entry) for entry in newest(root, 2)] == [
        {"halted": (False, True)},
        {"halted": (True, False)},
    ]


def test_the_commands_take_a_reason_and_the_record_is_read_with_its_changes(
    root: Client, live: Live, job: Job, face_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("DATABASE_URL", face_url)
    file = tmp_path / "credentials.json"
    monkeypatch.setenv("SPIKEGUARD_CREDENTIALS", str(file))
    save_credentials(Credentials(live.url, live.tokens[Role.ADMIN], "root"), file)
    policy = tmp_path / "policy.toml"
    policy.write_text('price_per_hour = 7.5\ncurrency = "EUR"\n')
    load = ["policy", "import", str(policy), "--run", job.run, "--reason"]
    assert main([*load, "x" * 501]) == 1
    assert "reason" in capsys.readouterr().err
    assert main([*load, "a new contract"]) == 0
    assert main(["policy", "drop", "--run", job.run, "--reason", "it ended"]) == 0
    assert main(["token", "create", "--role", "viewer", "--reason", "a screen"]) == 0
    number = capsys.readouterr().err.split()[1].rstrip(":")
    assert main(["token", "revoke", number, "--reason", "it is gone"]) == 0
    assert [entry["reason"] for entry in newest(root, 2)] == ["a screen", "it is gone"]
    capsys.readouterr()
    assert main(["audit", job.run, "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("it ended")
    assert lines[4].endswith("a new contract")
    assert lines[5:] == ["    currency: USD -> EUR", "    price_per_hour: - -> 7.5"]
