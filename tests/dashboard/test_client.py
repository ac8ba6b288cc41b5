"""Calls over a real socket: what arrives, and how failures are said."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator

import pytest

from spikeguard_client import ApiError
from spikeguard_dashboard.client import PageClient
from spikeguard_dashboard.settings import SettingError, read_settings
from spikeguard_protocol import IncidentId, RunId
from tests.dashboard import story
from tests.dashboard.stand_in import (
    VIEWER_TOKEN,
    World,
    answer_json,
    error,
    serving,
)

RUN = RunId("default", "llama-8b-c4")


@pytest.fixture
def world() -> World:
    return story.world()


@pytest.fixture
def client(world: World) -> Iterator[PageClient]:
    with serving(world) as address:
        yield PageClient(address, VIEWER_TOKEN)


def test_every_documented_answer_is_read(client: PageClient) -> None:
    assert client.run_page({}).items[0]["id"] == "llama-8b-c4"
    assert client.run(RUN)["targets"][0]["name"] == "step-1200"
    assert client.newest_incidents(RUN)[0]["number"] == 2
    evidence = client.incident(IncidentId(RUN, 2))["evidence"]
    assert evidence["worst_z"]["grad_norm"] == math.inf
    assert client.newest_audit(RUN)[0]["actor"] == "policy"


def test_the_servers_own_words_are_kept(client: PageClient, world: World) -> None:
    world.broken = lambda: error(503, "starting", "The database is being migrated", "Wait.")
    with pytest.raises(ApiError) as caught:
        client.run_page({})
    assert (caught.value.message, caught.value.remedy) == (
        "The database is being migrated",
        "Wait.",
    )


def test_a_token_that_is_refused_says_to_sign_in_again(client: PageClient, world: World) -> None:
    world.broken = lambda: (401, "text/plain", b"no")
    with pytest.raises(ApiError) as caught:
        client.run_page({})
    assert "Sign in again" in caught.value.remedy


@pytest.mark.parametrize(
    "body", [[], {}, {"items": [{"name": "a"}]}, {"items": [7]}, {"items": None}, "text"]
)
def test_an_answer_of_another_shape_is_said_so(
    client: PageClient, world: World, body: object
) -> None:
    world.broken = lambda: answer_json(200, body)
    with pytest.raises(ApiError) as caught:
        client.run_page({})
    assert caught.value.code == "not_understood"


def test_columns_of_unequal_length_are_refused(client: PageClient, world: World) -> None:
    series = story.series([story.segment(0, 1, [2.0, 2.1], current=True, skipped=0)])
    series["segments"][0]["values"]["loss"].pop()
    world.broken = lambda: answer_json(200, series)
    with pytest.raises(ApiError) as caught:
        client.incident_curves(IncidentId(RUN, 2), ["loss"])
    assert caught.value.code == "not_understood"


def test_an_absent_server_is_named_with_the_remedy() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ApiError) as caught:
            PageClient(address, VIEWER_TOKEN).run_page({})
    assert address in caught.value.message
    assert "spikeguard up" in caught.value.remedy


def test_settings_have_defaults_and_the_public_address_follows_the_server() -> None:
    settings = read_settings({"SPIKEGUARD_SERVER": "http://server:8000/"})
    assert (settings.server, settings.public_url) == ("http://server:8000", "http://server:8000")


@pytest.mark.parametrize(
    "environment",
    [
        {"SPIKEGUARD_SERVER": "server:8000"},
        {"SPIKEGUARD_PUBLIC_URL": "javascript:alert(1)"},
        {"SPIKEGUARD_DASHBOARD_REFRESH": "often"},
        {"SPIKEGUARD_SERVER": "http://server:99999"},
        {"SPIKEGUARD_SERVR": "http://server:8000"},
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(environment: dict[str, str]) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(environment)
    assert caught.value.remedy
