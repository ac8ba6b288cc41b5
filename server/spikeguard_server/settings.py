"""What an operator can set, read once from `SPIKEGUARD_*` variables.

A bad value is an error that names its variable, never a silent default. Secrets may come from files
(`NAME_FILE`), so that containers need none in their environment. Nothing else in the server reads
the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from spikeguard_protocol.plain_http import is_address
from spikeguard_protocol.variables import PREFIX, misspelt
from spikeguard_server.identity.permissions import read_accesses
from spikeguard_server.log_format import FORMS

OWNER = PREFIX + "OWNER_DATABASE_URL"


class SettingError(Exception):
    """A variable holds what it must not hold, or one that is needed is missing."""

    def __init__(self, variable: str, limit: str, remedy: str) -> None:
        super().__init__(f"{variable} {limit}. {remedy}")
        self.variable = variable


def _number(default: float, least: float, most: float, meaning: str) -> Any:
    """A number from `least` to `most`."""
    limits = {"least": least, "most": most}
    return field(default=default, metadata={**limits, "meaning": meaning})


def _text(default: str, meaning: str, *, secret: bool = False, words: tuple[str, ...] = ()) -> Any:
    """A text, one of `words` where there are some; a secret one is never shown, and may lie in a
    file."""
    return field(default=default, metadata={"meaning": meaning, "words": words}, repr=not secret)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything adjustable, with the value it has when nobody sets it.

    The variable of a field is its name in capitals behind `SPIKEGUARD_`.
    """

    database_url: str = _text(
        "", "Postgres, `postgresql://USER:PASSWORD@HOST:PORT/NAME`; also as `DATABASE_URL`",
        secret=True,
    )  # fmt: skip
    owner_database_url: str = _text(
        "", "the database as the role that owns the tables, for migrations; unset: the same",
        secret=True,
    )  # fmt: skip
    host: str = _text("127.0.0.1", "the address that `serve` listens on")
    port: int = _number(8000, 0, 65535, "the port that `serve` listens on; 0: any that is free")
    public_url: str = _text("http://127.0.0.1:8000", "this server, as people and links reach it")
    dashboard_url: str = _text("http://127.0.0.1:8501", "the dashboard, as people reach it")
    pool_size: int = _number(21, 1, 200, "connections to Postgres")
    requests_per_s: float = _number(200.0, 1, 1e6, "calls a second of a token; beyond it 429")
    keep_alive_s: float = _number(
        75.0, 1, 3600, "how long an idle connection is kept; agents rest for less"
    )
    tick_s: float = _number(1.0, 0.05, 3600, "between two looks of the ticker at what is due")
    silent_after_s: float = _number(60.0, 1, 1e9, "without a message, after which a run is silent")
    lost_after_s: float = _number(
        900.0, 1, 1e9, "of silence, after which the result of an order is unknown"
    )
    ended_after_s: float = _number(86_400.0, 1, 1e9, "of silence, after which the run is over")
    monitors_kept: int = _number(2000, 1, 1e9, "runs whose detectors stay in memory, 100 kB each")
    notify_every_s: float = _number(1.0, 0.02, 3600, "between two looks at what is to be sent")
    notify_networks: str = _text(
        "", "private networks that channels may reach: `10.0.0.0/8, fd00::/8`"
    )
    trusted_proxies: str = _text(
        "", "proxies whose `X-Forwarded-For` says where a call came from: `127.0.0.1, fd00::/64`"
    )
    sign_in_proxies: str = _text(
        "", "addresses and networks of proxies that sign people in: `10.0.0.5, 10.1.0.0/24`"
    )
    sign_in_person_header: str = _text("X-Forwarded-Email", "the header with their name")
    sign_in_groups_header: str = _text("X-Forwarded-Groups", "the header with their groups")
    sign_in_roles: str = _text(
        "", "which group has which role: `ml-oncall=operator, vision=operator@vision, *=viewer`"
    )
    oidc_issuer: str = _text("", "the OpenID Connect provider; unset: nobody signs in there")
    oidc_client_id: str = _text("", "what the provider calls this server")
    oidc_client_secret: str = _text(
        "", "its secret there; unset: a public client, with PKCE", secret=True
    )
    oidc_scopes: str = _text("openid email profile", "what is asked for, `openid` among it")
    oidc_person_claim: str = _text("email", "the person: a claim that people cannot change")
    oidc_groups_claim: str = _text("groups", "their groups, a list of words")
    keep_samples_days: float = _number(
        0.0, 0, 36_500, "how long curves and norms by layer are kept; 0: for ever"
    )
    session_hours: float = _number(12.0, 0.01, 24 * 366, "how long a login lasts")
    fresh_sign_in_s: float = _number(
        600.0, 10, 86_400, "how old a sign-in may be that makes a token"
    )
    agent_token_days: float = _number(
        365.0, 1, 3660, "how long a training job's token lasts at most"
    )
    decisions_by: str = _text(
        "anybody",
        "`named`: only tokens, proxies and providers that name a person decide",
        words=("anybody", "named"),
    )
    log_format: str = _text(
        "",
        "of the log: `json`, one object a line, or `text`; unset: text on a terminal alone",
        words=tuple(FORMS),
    )


_DATABASES = ("database_url", "owner_database_url")


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; raise `SettingError` naming the variable that is wrong."""
    environment = os.environ if environment is None else environment
    variables = [PREFIX + entry.name.upper() for entry in fields(Settings)]
    known = {*variables, *(f"{name}_FILE" for name in (*variables, f"{PREFIX}DATABASE_PASSWORD"))}
    if (meant := misspelt(environment, known)) is not None:
        raise SettingError(meant[0], "is no setting", f"Write {meant[1]}, or unset it")
    found: dict[str, Any] = {}
    for entry in fields(Settings):
        name = PREFIX + entry.name.upper()
        if (text := environment.get(name, "")) and entry.name not in _DATABASES:
            found[entry.name] = _value(name, text, entry.metadata, type(entry.default))
    for name in ("NOTIFY_NETWORKS", "TRUSTED_PROXIES", "SIGN_IN_PROXIES"):
        _check_networks(name, found.get(name.lower(), ""))
    if {"sign_in_roles", "sign_in_proxies", "oidc_issuer"} & found.keys():
        _check_roles(found.get("sign_in_roles", ""))
    for name in ("DASHBOARD_URL", "PUBLIC_URL"):
        _check_url(name, found.get(name.lower(), ""))
    for name in ("SIGN_IN_PERSON_HEADER", "SIGN_IN_GROUPS_HEADER"):
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", text := found.get(name.lower(), "x"), re.ASCII):
            raise SettingError(PREFIX + name, "is a header's name", f"Got {text!r:.80}")
    found["oidc_client_secret"] = found.get("oidc_client_secret") or _secret(
        environment, PREFIX + "OIDC_CLIENT_SECRET"
    )
    _check_oidc(found)
    _check_silence(found)
    return Settings(
        database_url=_database_url(environment),
        owner_database_url=_owner_database_url(environment),
        **found,
    )


def require_database(settings: Settings) -> Settings:
    """Refuse to go on without a database: a typo must not become an empty one that takes data."""
    if not settings.database_url:
        raise SettingError(
            "DATABASE_URL",
            "is not set",
            "Set it to postgresql://USER@HOST/NAME, or use `spikeguard up` for an embedded one",
        )
    return settings


def networks_of(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of a setting that names some."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def is_careful(address: str) -> bool:
    """Whether what travels to `address` cannot be read on the way: https, or on this machine."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
        local = host == "localhost" or (parts.scheme == "http" and ip_address(host).is_loopback)
    except ValueError:
        return False
    return (
        port != 0 and bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and local))
    )


def _check_networks(name: str, text: str) -> None:
    try:
        networks_of(text)
    except ValueError as error:
        raise SettingError(
            PREFIX + name, "takes networks with commas between them", str(error)
        ) from None


def _check_roles(text: str) -> None:
    try:
        got = "" if read_accesses(text) else "Got none"
    except ValueError as error:
        got = str(error)
    if got:
        raise SettingError(
            PREFIX + "SIGN_IN_ROLES", "says which group has which role, with commas between them",
            "Write ml-oncall=operator, vision=operator@vision, *=viewer; roles are viewer, "
            f"operator and admin. {got}",
        )  # fmt: skip


def _check_oidc(found: Mapping[str, Any]) -> None:
    issuer = found.get("oidc_issuer", "")
    given = [name for name, value in found.items() if name.startswith("oidc_") and value]
    if not issuer and given:
        raise SettingError(
            PREFIX + given[0].upper(), "is about a provider that nothing names",
            "Set SPIKEGUARD_OIDC_ISSUER too, or unset this",
        )  # fmt: skip
    if not issuer:
        return
    if not is_careful(issuer) or "?" in issuer or "#" in issuer:
        raise SettingError(
            PREFIX + "OIDC_ISSUER", "is an https address without query (http on this machine only)",
            f"Write it as the provider's description does. Got {issuer!r:.80}",
        )  # fmt: skip
    if "public_url" in found and not is_careful(found["public_url"]):
        raise SettingError(
            PREFIX + "PUBLIC_URL", "is at https where people sign in by OIDC (or on this machine)",
            "The provider sends people back there: put TLS in front and write https://HOST",
        )  # fmt: skip
    if not found.get("oidc_client_id"):
        raise SettingError(
            PREFIX + "OIDC_CLIENT_ID", "is not set", "Register the server at the provider first"
        )
    for name in ("oidc_person_claim", "oidc_groups_claim"):
        if not re.fullmatch(r"\S{1,200}", found.get(name, "claim")):
            raise SettingError(
                PREFIX + name.upper(), "is one claim's name", "Write email, or groups"
            )
    if "openid" not in found.get("oidc_scopes", "openid").split():
        raise SettingError(
            PREFIX + "OIDC_SCOPES", "has openid among them", "Write openid email groups"
        )


def _check_url(name: str, text: str) -> None:
    """An address that cannot be read would fail every answer that names it."""
    if text and not is_address(text):
        raise SettingError(
            PREFIX + name, "is an http or https URL", f"Write https://HOST. Got {text!r:.80}"
        )


def _check_silence(found: Mapping[str, float]) -> None:
    """A run is silent before its orders are lost, and these before it has ended: in another order
    a live run's orders are given up, or a run ends that nobody was told is silent."""
    usual = Settings()
    names = ("silent_after_s", "lost_after_s", "ended_after_s")
    values = [found.get(name, getattr(usual, name)) for name in names]
    if values != sorted(values):
        raise SettingError(
            ", ".join(PREFIX + name.upper() for name in names),
            "rise: silent <= lost <= ended",
            f"Got {', '.join(f'{value:g}' for value in values)}: set all three",
        )


def _value(name: str, text: str, limits: Mapping[str, Any], kind: type) -> Any:
    if kind is str:
        if limits["words"] and text not in limits["words"]:
            raise SettingError(name, f"is {' or '.join(limits['words'])}", f"Got {text!r:.80}")
        return text
    try:
        value = cast(Callable[[str], float], kind)(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise SettingError(name, f"takes {what}", f"Got {text!r}") from None
    if not limits["least"] <= value <= limits["most"]:
        raise SettingError(name, f"lies in [{limits['least']}, {limits['most']}]", f"Got {text!r}")
    return value


def _database_url(environment: Mapping[str, str]) -> str:
    """`SPIKEGUARD_DATABASE_URL` or `DATABASE_URL`, their `_FILE`s, and a password from a file."""
    for name in (PREFIX + "DATABASE_URL", "DATABASE_URL"):
        if text := environment.get(name) or _secret(environment, name):
            return _with_driver(name, text, _secret(environment, PREFIX + "DATABASE_PASSWORD"))
    return ""


def _owner_database_url(environment: Mapping[str, str]) -> str:
    text = environment.get(OWNER) or _secret(environment, OWNER)
    return text and _with_driver(OWNER, text, "")


def _with_driver(name: str, text: str, password: str) -> str:
    """The URL with our driver and, where it names none, the password."""
    try:
        url: URL = make_url(text)
    except (ArgumentError, ValueError):
        raise SettingError(
            name, "is a URL", "Write postgresql://USER:PASSWORD@HOST:PORT/NAME"
        ) from None
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise SettingError(name, "names a Postgres database", f"Got {url.get_backend_name()!r}")
    if not 0 < (url.port or 5432) < 65_536:
        raise SettingError(name, "has a port from 1 to 65535", f"Got {url.port}")
    url = url.set(drivername="postgresql+psycopg")
    if password and not url.password:
        url = url.set(password=password)
    return url.render_as_string(hide_password=False)


def _secret(environment: Mapping[str, str], name: str) -> str:
    """The content of the file that `NAME_FILE` points to, without its line end."""
    path = environment.get(f"{name}_FILE", "")
    if not path:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise SettingError(f"{name}_FILE", "names a readable file", str(error)) from None
