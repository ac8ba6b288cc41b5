"""Where the server is, and how often a page asks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spikeguard_protocol.plain_http import is_address
from spikeguard_protocol.variables import misspelt

DEFAULT_SERVER = "http://127.0.0.1:8000"
VARIABLES: Mapping[str, str] = {
    "SPIKEGUARD_SERVER": f"the server, as this process reaches it; unset: {DEFAULT_SERVER}",
    "SPIKEGUARD_PUBLIC_URL": "the same as people's browsers reach it; unset: the same",
    "SPIKEGUARD_DASHBOARD_REFRESH": "1 to 3600 seconds between two looks at the server while a "
    "page is open; unset: 5",
}


class SettingError(Exception):
    """A setting is wrong; says which one and what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says."""

    server: str  # called by this process, without a trailing slash
    public_url: str  # the same server as the person's browser reaches it
    refresh_s: float = 5.0  # between two looks at the server while a page is open


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read `SPIKEGUARD_*`; raise `SettingError` where a value is wrong."""
    if (meant := misspelt(environment, VARIABLES)) is not None:
        raise SettingError(f"{meant[0]} is no setting", f"Write {meant[1]}, or unset it.")
    server = environment.get("SPIKEGUARD_SERVER", "").rstrip("/") or DEFAULT_SERVER
    public = environment.get("SPIKEGUARD_PUBLIC_URL", "").rstrip("/") or server
    return Settings(
        _address("SPIKEGUARD_SERVER", server),
        _address("SPIKEGUARD_PUBLIC_URL", public),
        _seconds(environment.get("SPIKEGUARD_DASHBOARD_REFRESH", "5")),
    )


def _address(name: str, url: str) -> str:
    if not is_address(url):
        raise SettingError(f"{name} is {url!r}", "Write it as http://HOST:PORT or https://HOST.")
    return url


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 3600.0:
        raise SettingError(
            f"SPIKEGUARD_DASHBOARD_REFRESH is {text!r}", "Set it to 1 to 3600 seconds."
        )
    return seconds
