"""What an operator can set, read once from `SPIKEGUARD_*` variables.

A bad value is an error that names its variable, never a silent default. A value may come from a
file (`NAME_FILE`), so that containers need no secret in their environment. Nothing else in the
server reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from spikeguard_core.setting_fields import SettingError, read_settings as read_table, setting
from spikeguard_protocol.plain_http import is_address, plain_http_host
from spikeguard_protocol.variables import PREFIX, misspelt
from spikeguard_server.identity.permissions import read_accesses
from spikeguard_server.log_format import FORMS

OWNER = PREFIX + "OWNER_DATABASE_URL"


def _secret(meaning: str) -> Any:
    """A text that is never shown."""
    return field(default="", metadata={"meaning": meaning, "limit": None}, repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything adjustable, with the value it has when nobody sets it.

    The variable of a field is its name in capitals behind `SPIKEGUARD_`.
    """

    database_url: str = _secret(
        "Postgres, `postgresql://USER:PASSWORD@HOST:PORT/NAME`; also as `DATABASE_URL`"
    )
    owner_database_url: str = _secret(
        "the database as the role that owns the tables, for migrations; unset: the same"
    )
    host: str = setting("127.0.0.1", "the address that `serve` listens on")
    port: int = setting(8000, "the port that `serve` listens on; 0: any that is free", 0, 65535)
    public_url: str = setting("http://127.0.0.1:8000", "this server, as people and links reach it")
    dashboard_url: str = setting("http://127.0.0.1:8501", "the dashboard, as people reach it")
    pool_size: int = setting(21, "connections to Postgres", 1, 200)
    requests_per_s: float = setting(200.0, "calls a second of a token; beyond it 429", 1, 1e6)
    keep_alive_s: float = setting(
        75.0, "how long an idle connection is kept; agents rest for less", 1, 3600
    )
    tick_s: float = setting(1.0, "between two looks of the ticker at what is due", 0.05, 3600)
    silent_after_s: float = setting(60.0, "without a message, after which a run is silent", 1, 1e9)
    lost_after_s: float = setting(
        900.0, "of silence, after which the result of an order is unknown", 1, 1e9
    )
    ended_after_s: float = setting(86_400.0, "of silence, after which the run is over", 1, 1e9)
    monitors_kept: int = setting(2000, "runs whose detectors stay in memory, 100 kB each", 1, 1e9)
    notify_every_s: float = setting(1.0, "between two looks at what is to be sent", 0.02, 3600)
    notify_networks: str = setting(
        "", "private networks that channels may reach: `10.0.0.0/8, fd00::/8`"
    )
    trusted_proxies: str = setting(
        "", "proxies whose `X-Forwarded-For` says where a call came from: `127.0.0.1, fd00::/64`"
    )
    sign_in_proxies: str = setting(
        "", "addresses and networks of proxies that sign people in: `10.0.0.5, 10.1.0.0/24`"
    )
    sign_in_person_header: str = setting("X-Forwarded-Email", "the header with their name")
    sign_in_groups_header: str = setting("X-Forwarded-Groups", "the header with their groups")
    sign_in_roles: str = setting(
        "", "which group has which role: `ml-oncall=operator, vision=operator@vision, *=viewer`"
    )
    oidc_issuer: str = setting("", "the OpenID Connect provider; unset: nobody signs in there")
    oidc_client_id: str = setting("", "what the provider calls this server")
    oidc_client_secret: str = _secret("its secret there; unset: a public client, with PKCE")
    oidc_scopes: str = setting("openid email profile", "what is asked for, `openid` among it")
    oidc_person_claim: str = setting("email", "the person: a claim that people cannot change")
    oidc_groups_claim: str = setting("groups", "their groups, a list of words")
    keep_samples_days: float = setting(
        0.0, "how long curves and norms by layer are kept; 0: for ever", 0, 36_500
    )
    session_hours: float = setting(12.0, "how long a login lasts", 0.01, 24 * 366)
    fresh_sign_in_s: float = setting(
        600.0, "how old a sign-in may be that makes a token", 10, 86_400
    )
    agent_token_days: float = setting(
        365.0, "how long a training job's token lasts at most", 1, 3660
    )
    decisions_by: str = setting(
        "anybody",
        "`named`: only tokens, proxies and providers that name a person decide",
    )
    log_format: str = setting(
        "",
        "of the log: `json`, one object a line, or `text`; unset: text on a terminal alone",
    )


_WORDS: Final = {"decisions_by": ("anybody", "named"), "log_format": ("", *FORMS)}
_PASSWORD = PREFIX + "DATABASE_PASSWORD"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; raise `SettingError` naming the variable that is wrong."""
    environment = os.environ if environment is None else environment
    variables = {one.name: PREFIX + one.name.upper() for one in fields(Settings)}
    known = {*variables.values(), *(f"{name}_FILE" for name in (*variables.values(), _PASSWORD))}
    if (meant := misspelt(environment, known)) is not None:
        raise SettingError(meant[0], "is no setting", f"Write {meant[1]}, or unset it")
    found: dict[str, Any] = {}
    for one in fields(Settings):
        if text := _content(environment, variables[one.name]):
            found[one.name] = text
            if not isinstance(one.default, str):
                with suppress(ValueError):  # what is no number is refused as a text
                    found[one.name] = float(text)
    for name in (PREFIX + "DATABASE_URL", "DATABASE_URL"):
        if text := _content(environment, name):
            password = _content(environment, _PASSWORD)
            found["database_url"] = _with_driver(name, text, password)
            break
    if owner := found.get("owner_database_url"):
        found["owner_database_url"] = _with_driver(OWNER, owner, "")
    try:
        settings = read_table(Settings, found)
        _check(settings)
    except SettingError as wrong:
        name = variables.get(wrong.field, wrong.field)
        raise SettingError(name, wrong.limit, wrong.remedy) from None
    return settings


def networks_of(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks of a setting that names some."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def is_careful(address: str) -> bool:
    """Whether what travels to `address` cannot be read on the way: https, or on this machine."""
    return is_address(address) and plain_http_host(address) is None


def _check(settings: Settings) -> None:
    """Raise `SettingError`, by the name of the field, for what no range tells."""
    for name, words in _WORDS.items():
        if (word := getattr(settings, name)) not in words:
            raise SettingError(name, f"is {' or '.join(filter(None, words))}", f"Got {word!r:.80}")
    for name in ("notify_networks", "trusted_proxies", "sign_in_proxies"):
        try:
            networks_of(getattr(settings, name))
        except ValueError as error:
            limit = "takes networks with commas between them"
            raise SettingError(name, limit, str(error)) from None
    for name in ("dashboard_url", "public_url"):
        if not is_address(text := getattr(settings, name)):  # every answer that names it would fail
            raise SettingError(
                name, "is an http or https URL", f"Write https://HOST. Got {text!r:.80}"
            )
    for name in ("sign_in_person_header", "sign_in_groups_header"):
        text = getattr(settings, name)
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", text, re.ASCII):
            raise SettingError(name, "is a header's name", f"Got {text!r:.80}")
    if settings.sign_in_roles or settings.sign_in_proxies or settings.oidc_issuer:
        try:
            wrong = "" if read_accesses(settings.sign_in_roles) else "Got none"
        except ValueError as error:
            wrong = str(error)
        if wrong:
            raise SettingError(
                "sign_in_roles", "says which group has which role, with commas between them",
                "Write ml-oncall=operator, vision=operator@vision, *=viewer; roles are viewer, "
                f"operator and admin. {wrong}",
            )  # fmt: skip
    _check_oidc(settings)
    # In another order a live run's orders are given up, or a run ends that nobody was told is
    # silent.
    waits = (settings.silent_after_s, settings.lost_after_s, settings.ended_after_s)
    if list(waits) != sorted(waits):
        names = ("SILENT_AFTER_S", "LOST_AFTER_S", "ENDED_AFTER_S")
        raise SettingError(
            ", ".join(PREFIX + name for name in names),
            "rise: silent <= lost <= ended",
            f"Got {', '.join(f'{wait:g}' for wait in waits)}: set all three",
        )


def _check_oidc(settings: Settings) -> None:
    issuer = settings.oidc_issuer
    if not issuer:
        for one in fields(Settings):
            if one.name.startswith("oidc_") and getattr(settings, one.name) != one.default:
                raise SettingError(
                    one.name, "is about a provider that nothing names",
                    "Set SPIKEGUARD_OIDC_ISSUER too, or unset this",
                )  # fmt: skip
        return
    if not is_careful(issuer) or "?" in issuer or "#" in issuer:
        raise SettingError(
            "oidc_issuer", "is an https address without query (http on this machine only)",
            f"Write it as the provider's description does. Got {issuer!r:.80}",
        )  # fmt: skip
    if not is_careful(settings.public_url):
        raise SettingError(
            "public_url", "is at https where people sign in by OIDC (or on this machine)",
            "The provider sends people back there: put TLS in front and write https://HOST",
        )  # fmt: skip
    if not settings.oidc_client_id:
        raise SettingError(
            "oidc_client_id", "is not set", "Register the server at the provider first"
        )
    for name in ("oidc_person_claim", "oidc_groups_claim"):
        if not re.fullmatch(r"\S{1,200}", getattr(settings, name)):
            raise SettingError(name, "is one claim's name", "Write email, or groups")
    if "openid" not in settings.oidc_scopes.split():
        raise SettingError("oidc_scopes", "has openid among them", "Write openid email groups")


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


def _content(environment: Mapping[str, str], name: str) -> str:
    """The value of a variable, or of the file that `NAME_FILE` points to, without its line end."""
    path = environment.get(f"{name}_FILE", "")
    if not path or environment.get(name):
        return environment.get(name, "")
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise SettingError(f"{name}_FILE", "names a readable file", str(error)) from None
