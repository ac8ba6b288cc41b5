"""The Python client against a live server, and its shapes against the OpenAPI document."""

from __future__ import annotations

import math
import socket
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import httpx
import pytest

from spikeguard_client import ApiError, Client, shapes
from spikeguard_client.reading import NotUnderstood, read
from spikeguard_protocol import CommandId, IncidentId, Role, RunId

if TYPE_CHECKING:
    from tests.server.face.conftest import Job, Live

NAMES = {  # of our shapes in the document, where they are others
    "Run": "RunBody", "Attempt": "AttemptBody", "Segment": "SegmentBody", "Target": "TargetBody",
    "Cost": "CostBody", "Command": "CommandBody", "Trend": "TrendBody", "Incident": "IncidentBody",
    "Precursor": "PrecursorBody", "Evidence": "EvidenceBody", "Series": "SeriesBody",
    "Policy": "PolicyBody", "Channel": "ChannelBody", "ChannelTest": "TestBody",
    "Delivery": "DeliveryBody", "Silence": "SilenceBody", "Point": "PointRef",
    "Cause": "CauseBody", "FirstLayer": "FirstLayerBody", "Layers": "LayersBody",
}  # fmt: skip
OURS = sorted(
    name
    for name, shape in vars(shapes).items()
    if hasattr(shape, "__required_keys__") and name != "HappenedEvent"
)


@pytest.fixture(scope="module")
def document(live: Live) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{live.url}/openapi.json").json()
    return found


@pytest.mark.parametrize("name", OURS)
def test_a_shape_is_what_the_document_says(document: dict[str, Any], name: str) -> None:
    """A key that the server may add is no promise yet; one that we name has to be there."""
    described = document["components"]["schemas"][NAMES.get(name, name)]["properties"]
    for key, hint in get_type_hints(getattr(shapes, name)).items():
        assert key in described, key
        optional = "null" in str(described[key].get("anyOf", ""))
        named = described[key].get("type") or "anyOf" in described[key] or "$ref" in described[key]
        assert not named or optional is (NoneType in get_args(hint)), (key, described[key], hint)


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
    assert detail["commands"][-1]["cost"]["steps"] >= 0
    assert client.incident_layers(IncidentId(run, incident["number"]))["steps"] == []
    assert next(iter(client.audit(run)))["number"] > 0
    assert client.policy("default")["version"] >= 1
    assert isinstance(client.channels("default"), list)
    assert isinstance(list(client.deliveries("default")), list)
    with pytest.raises(ApiError) as refused:
        client.postmortem(IncidentId(run, incident["number"]))
    assert (refused.value.code, refused.value.status) == ("not_closed", 409)


def test_a_person_decides_and_silences(live: Live, job: Job) -> None:
    with live.person("Ada") as ada:
        token = ada.headers["authorization"].removeprefix("Bearer ")
    client, run = Client(live.url, token), RunId("default", job.run)
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


def test_an_admin_writes_channels_and_policies(live: Live) -> None:
    client = Client(live.url, live.tokens[Role.ADMIN])
    target = {"url": "json://example.org"}
    made = client.put_channel("of-client", "a", {"kind": "apprise", "target": target})
    assert made["target"] == {"url": "json://…"}
    client.delete_channel("of-client", "a")
    assert client.channels("of-client") == []
    written = client.put_policy("of-client", {"price_per_hour": 98.0})
    with pytest.raises(ApiError) as refused:
        client.put_policy("of-client", {}, replaces=written["version"] - 1)
    assert refused.value.code == "conflict"


def test_words_for_floats_become_floats_and_nothing_else_does() -> None:
    plain = {"step": 3, "signal": "nan", "value": "inf", "z": 4}
    found = read(shapes.Precursor, plain)
    assert (found["signal"], found["value"], found["z"]) == ("nan", math.inf, 4.0)
    for change in ({"value": "tall"}, {"step": 3.5}, {"signal": None}):
        with pytest.raises(NotUnderstood):
            read(shapes.Precursor, {**plain, **change})
    with pytest.raises(NotUnderstood, match="Precursor has no z"):
        read(shapes.Precursor, {"step": 3, "signal": "loss", "value": 1.0})


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ApiError) as refused:
        Client(f"http://127.0.0.1:{port}", "x").me()
    assert refused.value.code == "unreachable"
