"""The Python client against a live server, and its shapes against the OpenAPI document."""

from __future__ import annotations

import json
import math
import socket
from typing import TYPE_CHECKING, Any

import pytest

from spikeguard_client import ApiError, Client, shapes
from spikeguard_client.calls import MAX_CONTAINERS, read
from spikeguard_protocol import (
    CommandId,
    IncidentId,
    Role,
    RunId,
)
from spikeguard_server.identity.permissions import TABLE

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live


def test_every_reading_call_is_answered(live: Live, spiked: Job) -> None:
    client = Client(live.url, live.tokens[Role.VIEWER])
    run = RunId("default", spiked.run)
    assert client.me()["role"] == "viewer"
    assert spiked.run in {found["name"] for found in client.runs()}
    assert client.run(run)["targets"]
    series = client.series(run, "loss", "grad_norm", points=50)
    assert len(series["segments"][0]["values"]["loss"]) == len(series["segments"][0]["steps"])
    [incident] = client.incidents(run)
    detail = client.incident(IncidentId(run, incident["number"]))
    cost = detail["commands"][-1]["cost"]
    assert cost is not None
    assert cost["steps"] >= 0
    assert client.incident_layers(IncidentId(run, incident["number"]))["steps"] == []
    assert client.incident_batch(IncidentId(run, incident["number"]))["batches"] == []
    assert next(iter(client.audit(run)))["number"] > 0
    assert client.policy("default")["version"] >= 1
    assert isinstance(client.channels("default"), list)
    assert isinstance(list(client.deliveries("default")), list)
    with pytest.raises(ApiError) as refused:
        client.postmortem(IncidentId(run, incident["number"]))
    assert (refused.value.code, refused.value.status) == ("not_closed", 409)


def test_a_person_decides_and_silences(live: Live, job: Job) -> None:
    client, run = Client(live.url, live.session("Ada")), RunId("default", job.run)
    job.spike()
    proposal = next(iter(client.incidents(run)))["proposal"]
    assert proposal is not None
    id = CommandId.parse(proposal["id"])
    with pytest.raises(ApiError) as refused:
        client.approve(id, proposal["revision"] + 1)
    assert refused.value.code == "revision_changed"
    assert refused.value.error["current"]["revision"] == proposal["revision"]
    rejected = client.reject(id, proposal["revision"], "we wait")
    assert (rejected["state"], rejected["decided_by"]) == ("rejected", "Ada")
    made = client.silence("default", run=job.run, lasts_s=60, reason="quiet")
    assert made["number"] in {entry["number"] for entry in client.silences("default")}
    client.end_silence("default", made["number"])


FOR_BROWSERS = {
    "/",
    "/login",
    "/logout",
    "/pages/style.css",
    "/docs",
    "/docs/{file}",
    "/approve/{token}",
    "/login/{link}",
    "/login/oidc",
    "/login/oidc/callback",
}
FOR_MACHINES = {"/v1/messages", "/healthz", "/readyz", "/openapi.json", "/metrics"}
METHODS = {
    "DELETE /v1/channels/{project}/{channel}": Client.delete_channel,
    "DELETE /v1/runs/{project}/{name}": Client.delete_run,
    "DELETE /v1/runs/{project}/{name}/policy": Client.drop_run_policy,
    "DELETE /v1/sessions/current": Client.sign_out,
    "DELETE /v1/silences/{project}/{number}": Client.end_silence,
    "DELETE /v1/tokens/{id}": Client.revoke_token,
    "DELETE /v1/runs/{project}/{name}/incidents/{number}/acknowledgement": (
        Client.take_back_acknowledgement
    ),
    "POST /v1/runs/{project}/{name}/incidents/{number}/acknowledgement": Client.acknowledge,
    "POST /v1/runs/{project}/{name}/incidents/{number}/assignee": Client.assign,
    "POST /v1/runs/{project}/{name}/incidents/{number}/comments": Client.comment,
    "GET /v1/audit": Client.fleet_audit,
    "GET /v1/channels": Client.channels,
    "GET /v1/deliveries": Client.deliveries,
    "GET /v1/incidents": Client.incidents,
    "GET /v1/inbox": Client.inbox,
    "GET /v1/me": Client.me,
    "GET /v1/policy": Client.policy,
    "GET /v1/runs": Client.runs,
    "GET /v1/runs/{project}/{name}": Client.run,
    "GET /v1/runs/{project}/{name}/audit": Client.audit,
    "GET /v1/runs/{project}/{name}/incidents/{number}": Client.incident,
    "GET /v1/runs/{project}/{name}/incidents/{number}/batch": Client.incident_batch,
    "GET /v1/runs/{project}/{name}/incidents/{number}/layers": Client.incident_layers,
    "GET /v1/runs/{project}/{name}/incidents/{number}/postmortem": Client.postmortem,
    "GET /v1/runs/{project}/{name}/incidents/{number}/series": Client.incident_series,
    "GET /v1/runs/{project}/{name}/commands": Client.run_commands,
    "POST /v1/runs/{project}/{name}/commands": Client.order,
    "POST /v1/runs/{project}/{name}/incidents/{number}/commands": Client.order_instead,
    "GET /v1/runs/{project}/{name}/options": Client.options,
    "GET /v1/runs/{project}/{name}/interventions": Client.interventions,
    "POST /v1/runs/{project}/{name}/commands/{command}/reject": Client.reject,
    "GET /v1/runs/{project}/{name}/notes": Client.notes,
    "GET /v1/runs/{project}/{name}/policy": Client.run_policy,
    "GET /v1/runs/{project}/{name}/series": Client.series,
    "GET /v1/silences": Client.silences,
    "GET /v1/tokens": Client.tokens,
    "POST /v1/channels/{project}/{channel}/test": Client.test_channel,
    "POST /v1/policy/halt": Client.halt,
    "POST /v1/policy/resume": Client.resume,
    "POST /v1/runs/{project}/{name}/archive": Client.archive_run,
    "POST /v1/runs/{project}/{name}/incidents/{number}/commands/{command}/approve": Client.approve,
    "POST /v1/runs/{project}/{name}/incidents/{number}/commands/{command}/reject": Client.reject,
    "POST /v1/runs/{project}/{name}/notes": Client.note,
    "POST /v1/runs/{project}/{name}/unarchive": Client.unarchive_run,
    "POST /v1/sessions": Client.signed_in,
    "POST /v1/sessions/links": Client.sign_in_link,
    "POST /v1/silences": Client.silence,
    "POST /v1/tokens": Client.make_token,
    "PUT /v1/channels/{project}/{channel}": Client.put_channel,
    "PUT /v1/policy": Client.put_policy,
    "PUT /v1/runs/{project}/{name}/policy": Client.put_run_policy,
}  # fmt: skip


def test_every_call_that_a_program_makes_has_a_method() -> None:
    """Left out: pages for browsers, and what agents, scrapers and balancers ask."""
    apart = FOR_BROWSERS | FOR_MACHINES | {"/metrics/fleet"}
    served = {
        f"{method} {path}"
        for method, path in TABLE
        if path not in apart and not path.startswith(("/confirm/", "/incident/", "/act/", "/inbox"))
    }
    assert served == set(METHODS)


def test_words_for_floats_become_floats_and_nothing_else_does() -> None:
    plain = {"step": 3, "signal": "nan", "value": "inf", "z": 4}
    found = read(shapes.Precursor, json.dumps(plain).encode())
    assert (found["signal"], found["value"], found["z"]) == ("nan", math.inf, 4.0)
    for change in ({"value": "tall"}, {"step": 3.5}, {"signal": None}):
        with pytest.raises(ApiError, match="not in the form"):
            read(shapes.Precursor, json.dumps({**plain, **change}).encode())
    entry: dict[str, Any] = dict.fromkeys(shapes.AuditEntry.__required_keys__)
    entry |= {"number": 1, "at": "", "actor": "", "action": "", "subject": ""}
    with pytest.raises(ApiError, match=r"Expected `array`, got `null` - at `\$.changes`"):
        read(shapes.AuditEntry, json.dumps({**entry, "changes": None}).encode())
    with pytest.raises(ApiError, match="missing required field `z`"):
        read(shapes.Precursor, b'{"step": 3, "signal": "loss", "value": 1.0}')


def test_an_answer_of_nothing_but_empty_lists_is_refused_before_it_is_read() -> None:
    """64 MiB of them took 1.4 GB at the command line."""
    with pytest.raises(ApiError, match="lists and tables"):
        read(list, b"[" + b"[]," * MAX_CONTAINERS + b"[]]")


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ApiError) as refused:
        Client(f"http://127.0.0.1:{port}", "x").me()
    assert refused.value.code == "unreachable"


def test_a_server_that_says_nothing_is_given_up_on_after_the_calls_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ApiError) as refused:
            Client(f"http://127.0.0.1:{port}", "x", timeout_s=0.3).me()
    assert refused.value.code == "timeout"
