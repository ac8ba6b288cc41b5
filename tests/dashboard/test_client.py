"""Calls over a real socket: what arrives, and how failures are said."""

from __future__ import annotations

import socket

import pytest

from spikeguard_client import ApiError
from spikeguard_dashboard.client import PageClient
from spikeguard_dashboard.settings import SettingError, read_settings


def test_an_absent_server_is_named_with_the_remedy() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ApiError) as caught:
            PageClient(address, "viewer-token-of-the-dashboard").run_page({})
    assert address in caught.value.message
    assert "Is the server up" in caught.value.remedy


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
