"""The record says why, and of a channel and a policy what became of each field; never a secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from spikeguard_cli.credentials import Credentials, save_credentials
from spikeguard_cli.main import main
from spikeguard_protocol import Role
from tests.server.face.conftest import Job, Live

SECRET = "a secret of more than sixteen signs"
TARGET = {"url": "https://example.org/hook?word=hidden", "secret": SECRET}


@pytest.fixture
def root(live: Live) -> Iterator[httpx.Client]:
    """An admin with a name."""
    with live.person("Root", Role.ADMIN) as calls:
        yield calls


def done(answer: httpx.Response) -> Any:
    """What was answered to a call that is not refused."""
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def newest(root: httpx.Client, many: int, path: str = "/v1/audit") -> list[dict[str, Any]]:
    """The last entries of a record, the oldest of them first."""
    entries: list[dict[str, Any]] = done(root.get(path, params={"limit": many}))["items"]
    return entries[::-1]


def fields(entry: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {c["field"]: (c["before"], c["after"]) for c in entry["changes"]}


def test_whoever_changes_something_may_say_why(root: httpx.Client) -> None:
    wanted = {"role": "viewer", "reason": "a screen in the hall"}
    token = done(root.post("/v1/tokens", json=wanted))["id"]
    done(root.delete(f"/v1/tokens/{token}", params={"reason": "it was stolen"}))
    channel = "/v1/channels/of-record/a"
    done(root.put(channel, json={"kind": "webhook", "target": TARGET, "reason": "we start"}))
    done(root.delete(channel, params={"reason": "we end"}))
    quiet = {"project": "of-record", "lasts_s": 60, "reason": "the racks are moved"}
    silence = done(root.post("/v1/silences", json=quiet))["number"]
    done(root.delete(f"/v1/silences/of-record/{silence}", params={"reason": "they stand"}))
    for price, reason in ((98.0, "a new contract"), (97.0, "another & one")):
        policy = {"project": "of-record", "policy": {"price_per_hour": price}, "reason": reason}
        done(root.put("/v1/policy", json=policy))
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


def test_a_changed_channel_says_which_fields_and_hides_what_is_secret(root: httpx.Client) -> None:
    channel, other = "/v1/channels/of-record/c", {**TARGET, "secret": SECRET[::-1]}
    for rules in (
        {"target": TARGET},
        {"cooldown_s": 5, "runs": ["gpt-*"]},
        {"target": other, "cooldown_s": 5},
    ):
        done(root.put(channel, json={"kind": "webhook", **rules}))
    done(root.delete(channel))
    made, ruled, hidden, gone = newest(root, 4)
    assert fields(made)["target.url"] == (None, "https://example.org/…")
    assert fields(ruled) == {"cooldown_s": (120.0, 5.0), "runs": ([], ["gpt-*"])}
    assert fields(hidden) == {"target.secret": ("…", "…"), "runs": (["gpt-*"], [])}
    assert fields(gone)["cooldown_s"] == (5.0, None)
    text = json.dumps([made, ruled, hidden, gone])
    for secret in ("hidden", SECRET, SECRET[::-1]):
        assert secret not in text


def test_a_policy_says_which_settings_changed_also_in_the_record_of_its_run(
    root: httpx.Client, job: Job
) -> None:
    policy = {"price_per_hour": 7.5, "approval": {"rollback": {"mode": "auto"}}}
    done(root.put(f"{job.path}/policy", json={"policy": policy, "reason": "rented"}))
    done(root.delete(f"{job.path}/policy", params={"reason": "given back"}))
    written, dropped = newest(root, 2, f"{job.path}/audit")
    assert (written["reason"], dropped["reason"]) == ("rented", "given back")
    assert fields(written) == {
        "price_per_hour": (None, 7.5),
        "approval.rollback.mode": ("manual", "auto"),
    }
    assert fields(dropped) == {name: pair[::-1] for name, pair in fields(written).items()}
    for word, reason in (("halt", "we look first"), ("resume", "we have")):
        thrown = {"project": "of-record-switch", "reason": reason}
        done(root.post(f"/v1/policy/{word}", json=thrown))
    assert [fields(entry) for entry in newest(root, 2)] == [
        {"halted": (False, True)},
        {"halted": (True, False)},
    ]


def test_the_commands_take_a_reason_and_the_record_is_read_with_its_changes(
    root: httpx.Client, live: Live, job: Job, face_url: str, tmp_path: Path,
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
