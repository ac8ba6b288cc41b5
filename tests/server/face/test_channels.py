"""Channels, silences, the delivery log and the test button, by the API."""

from __future__ import annotations

from typing import Any

import pytest

from spikeguard_protocol import Role
from tests.server.face.conftest import Live
from tests.server.notify.listener import Listener

SECRET = "a secret of more than sixteen signs"


def webhook(listener: Listener, **rules: Any) -> dict[str, Any]:
    target = {"url": f"{listener.url}/hook?word=hidden", "secret": SECRET}
    return {"kind": "webhook", "target": target, **rules}


def test_an_admin_writes_a_channel_and_nobody_reads_its_target(
    live: Live, listener: Listener
) -> None:
    with live.client(Role.ADMIN) as admin, live.client(Role.VIEWER) as viewer:
        path = "/v1/channels/default/first"
        made = admin.put(path, json=webhook(listener, runs=["none-*"]))
        assert made.status_code == 200, made.text
        shown = viewer.get("/v1/channels").json()
        assert viewer.put(path, json=webhook(listener)).status_code == 403
        changed = admin.put(path, json={"kind": "webhook", "cooldown_s": 5, "runs": ["none"]})
        assert (changed.json()["cooldown_s"], changed.json()["runs"]) == (5, ["none"])
        assert admin.delete(path).status_code == 204
        assert admin.delete(path).status_code == 404
    for text in (made.text, str(shown), changed.text):
        assert "hidden" not in text
        assert SECRET not in text
    assert changed.json()["target"]["url"].startswith("http://127.0.0.1")


def test_the_test_button_sends_at_once_and_says_what_became_of_it(
    live: Live, listener: Listener
) -> None:
    with live.client(Role.ADMIN) as admin, live.person("Ada") as ada:
        admin.put("/v1/channels/default/button", json=webhook(listener, runs=["none"]))
        done = ada.post("/v1/channels/default/button/test")
        assert (done.status_code, done.json()["result"]) == (200, "sent"), done.text
        assert "by Ada" in listener.received[0].json()["title"]
        admin.put(
            "/v1/channels/default/refused",
            json={"kind": "webhook", "target": {"url": "http://10.0.0.1/", "secret": SECRET}},
        )
        refused = ada.post("/v1/channels/default/refused/test").json()
        assert refused["result"] == "given_up"
        assert "no public address" in refused["reason"]
        log = [e for e in ada.get("/v1/deliveries").json()["items"] if e["channel"] == "button"]
        assert [(entry["topics"], entry["run"]) for entry in log] == [(["test"], None)]
        for name in ("button", "refused"):
            admin.delete(f"/v1/channels/default/{name}")


def test_a_silence_is_made_listed_and_taken_back_in_a_persons_name(live: Live) -> None:
    wanted = {"project": "default", "run": "nobody", "lasts_s": 600, "reason": "moving"}
    with live.person("Ada") as ada, live.client(Role.OPERATOR) as nobody:
        made = ada.post("/v1/silences", json=wanted)
        assert (made.status_code, made.json()["created_by"]) == (201, "Ada")
        number = made.json()["number"]
        listed = ada.get("/v1/silences").json()["items"]
        assert number in {entry["number"] for entry in listed}
        assert nobody.post("/v1/silences", json=wanted).json()["error"]["code"] == "no_person"
        assert ada.delete(f"/v1/silences/default/{number}").status_code == 204
        assert ada.delete(f"/v1/silences/default/{number}").status_code == 404


SILENCE = {"project": "default", "lasts_s": 60, "reason": "w"}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("channels/default/my%20channel", {}, "channel: this is not a name"),
        ("channels/default/c", {"kind": "fax"}, "kind: input should be 'webhook', 'pagerduty' or"),
        ("silences", {**SILENCE, "lasts_s": 1e7}, "lasts_s: input should be less than or equal to"),
        ("silences", {"lasts_s": 60, "reason": "w"}, "project: field required"),
        ("silences", {**SILENCE, "runs": "x"}, "runs: extra inputs are not permitted"),
        ("runs?limit=x", {}, "limit: input should be a valid integer"),
    ],
)
def test_a_bad_field_is_refused_with_its_limit_and_what_to_write(
    live: Live, path: str, body: dict[str, Any], message: str
) -> None:
    method = {"c": "PUT", "s": "POST", "r": "GET"}[path[0]]
    with live.client(Role.ADMIN) if method == "PUT" else live.person("Ada") as caller:
        error = caller.request(method, f"/v1/{path}", json=body).json()["error"]
    assert error["message"].startswith(message)
    assert "letters" in error["remedy"] or "openapi" in error["remedy"]


TARGETS = {"webhook": {"url": "https://x", "secret": SECRET}, "apprise": {"url": "a://b"}}


@pytest.mark.parametrize(
    ("target", "rules", "field"),
    [
        ({"url": "ftp://x"}, {}, "target.url"),
        ({"url": "https://u:p@x"}, {}, "target.url"),
        ({"url": "https://[::1/"}, {}, "target.url"),
        ({"url": "https://x:y"}, {}, "target.url"),
        ({"secret": "short"}, {}, "target.secret"),
        ({"picture": "gif"}, {}, "target.picture"),
        ({"word": "y"}, {"kind": "pagerduty"}, "target.word"),
        ({"url": "https://x"}, {"kind": "pagerduty"}, "target.routing_key"),
        ({"url": "slack"}, {"kind": "apprise"}, "target.url"),
        ({"url": f"a://b\n{SECRET}"}, {"kind": "apprise"}, "target.url"),
        ({}, {"about": ["lunch"]}, "about.0"),
        ({}, {"level": 9}, "level"),
        ({}, {"runs": ["*a"]}, "runs.0"),
        ({}, {"person": "the server"}, "person"),
        ({}, {"color": "red"}, "color"),
    ],
)
def test_a_bad_channel_names_the_field_and_repeats_no_secret(
    live: Live, target: dict[str, str], rules: dict[str, Any], field: str
) -> None:
    body = {"kind": "webhook", **rules}
    whole = {**TARGETS.get(body["kind"], {}), **target}
    with live.client(Role.ADMIN) as admin:
        refused = admin.put("/v1/channels/default/bad", json={**body, "target": whole})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field), refused.text
    assert SECRET not in refused.text
