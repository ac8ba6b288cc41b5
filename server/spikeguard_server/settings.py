"""What an operator can set, read once from `SPIKEGUARD_*` variables.

Law: a bad value is an error that names its variable, never a silent default. Secrets may come from
files (`NAME_FILE`), so that containers need none in their environment. Nothing else in the server
reads the environment.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from spikeguard_protocol import Role
from spikeguard_protocol.order_signature import KEY_WORDS, read_order_keys
from spikeguard_server.oidc.access import read_accesses
from spikeguard_server.oidc.addresses import is_careful

PREFIX = "SPIKEGUARD_"
OWNER = PREFIX + "OWNER_DATABASE_URL"
LEAST_LINK_KEY = 32  # characters


class SettingError(Exception):
    """A variable holds what it must not hold, or one that is needed is missing."""

    def __init__(self, variable: str, limit: str, remedy: str) -> None:
        super().__init__(f"{variable} {limit}. {remedy}")
        self.variable = variable


def _number(least: float, most: float = math.inf) -> dict[str, Any]:
    return {"least": least, "most": most}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything adjustable, with the value it has when nobody sets it.

    The variable of a field is its name in capitals behind `SPIKEGUARD_`.
    """

    database_url: str = field(default="", repr=False)  # postgresql+psycopg://...
    # Of the role that owns the tables, for migrations alone; without it database_url's role does.
    owner_database_url: str = field(default="", repr=False)
    audit_heads_directory: str = ""  # where the newest digests of the audit are written down
    host: str = "127.0.0.1"
    port: int = field(default=8000, metadata=_number(0, 65535))
    public_url: str = "http://127.0.0.1:8000"  # as people and links reach this server
    dashboard_url: str = "http://127.0.0.1:8501"
    primary_url: str = ""  # the server that writes; set: this one serves reads only
    most_lag_s: float = field(default=30.0, metadata=_number(0.1))  # of a standby that is ready
    pool_size: int = field(default=20, metadata=_number(1, 200))  # connections to Postgres
    pool_timeout_s: float = field(default=5.0, metadata=_number(0.1, 300))
    ingest_workers: int = field(default=4, metadata=_number(1, 64))  # messages taken at once
    ingest_waiting: int = field(default=2000, metadata=_number(1, 10_000))  # beyond it: 429
    requests_per_s: float = field(default=200.0, metadata=_number(1, 1e6))  # a token; beyond: 429
    # New runs within 24 hours; beyond: 429. Runs that are known always get in.
    new_runs_per_token: int = field(default=500, metadata=_number(1, 1_000_000))
    new_runs_per_project: int = field(default=1000, metadata=_number(1, 1_000_000))
    # What a client may hold and how long it may take, before anything of it is answered.
    max_connections: int = field(default=10_000, metadata=_number(10, 1e6))
    max_connections_per_address: int = field(default=5000, metadata=_number(1, 1e6))
    max_header_bytes: int = field(default=65_536, metadata=_number(4096, 2**20))  # a request
    max_headers: int = field(default=128, metadata=_number(16, 10_000))  # a request
    header_timeout_s: float = field(default=20.0, metadata=_number(1, 600))
    body_timeout_s: float = field(default=90.0, metadata=_number(1, 3600))
    keep_alive_s: float = field(default=75.0, metadata=_number(1, 3600))  # agents rest for less
    statement_timeout_s: float = field(default=15.0, metadata=_number(0.1, 3600))
    tick_s: float = field(default=1.0, metadata=_number(0.05, 3600))
    silent_after_s: float = field(default=60.0, metadata=_number(1))  # no message: not live
    lost_after_s: float = field(default=900.0, metadata=_number(1))  # silent: orders are unknown
    ended_after_s: float = field(default=86_400.0, metadata=_number(1))  # silent: the run is over
    history_after_s: float = field(
        default=600.0, metadata=_number(1)
    )  # older data commands nothing
    detector_snapshot_steps: int = field(default=1000, metadata=_number(1))
    detector_snapshots_kept: int = field(default=500, metadata=_number(2))  # a run, the newest
    monitors_kept: int = field(default=2000, metadata=_number(1))  # runs in memory, 100 kB each
    incident_steps_before: int = field(default=200, metadata=_number(0))
    notify_every_s: float = field(default=1.0, metadata=_number(0.02, 3600))  # looks at the outbox
    notify_networks: str = ""  # private networks that channels may reach: 10.0.0.0/8, fd00::/8
    stream_sign_s: float = field(default=15.0, metadata=_number(0.05, 60))  # of life, of a stream
    link_key: str = field(default="", repr=False)  # signs approval links; without it there are none
    order_key: str = field(default="", repr=False)  # signs approvals for jobs that ask for it
    trusted_proxies: str = ""  # networks whose X-Forwarded-For says where a call came from
    # A reverse proxy that signs people in (OIDC): off unless its addresses are named.
    sign_in_proxies: str = ""  # addresses and networks: 10.0.0.5, 10.1.0.0/24
    sign_in_person_header: str = "X-Forwarded-Email"
    sign_in_groups_header: str = "X-Forwarded-Groups"  # with commas between them
    sign_in_roles: str = ""  # ml-oncall=operator, ml-leads=admin, *=viewer
    # People sign in at an OpenID Connect provider: off unless its issuer is named.
    oidc_issuer: str = ""  # https://login.example.org/realms/ml, as its description says it
    oidc_client_id: str = ""
    oidc_client_secret: str = field(default="", repr=False)  # empty: a public client, with PKCE
    oidc_scopes: str = "openid email profile"
    oidc_person_claim: str = "email"  # one that people cannot change themselves
    oidc_groups_claim: str = "groups"
    oidc_roles: str = ""  # ml-oncall=operator, vision=operator@vision, ml-leads=admin, *=viewer
    oidc_skew_s: float = field(default=60.0, metadata=_number(0, 300))  # of its clock and ours
    oidc_timeout_s: float = field(default=5.0, metadata=_number(0.2, 30))  # an answer of it
    oidc_grant_days: float = field(default=30.0, metadata=_number(0.01, 366))  # after a sign-in
    # Days, 0 = for ever; counted from the last message of what lies on a week's shelf.
    keep_samples_days: float = field(default=0.0, metadata=_number(0))  # then roll-ups alone
    keep_rollups_days: float = field(default=0.0, metadata=_number(0))
    keep_layers_days: float = field(default=0.0, metadata=_number(0))  # norms by layer
    # Days, 0 = for ever; from when it was said, closed, spent or ended.
    keep_deliveries_days: float = field(
        default=0.0, metadata=_number(0)
    )  # and conversations, links
    # `spikeguard up`: how often Postgres or the dashboard is started again when it ends.
    child_restarts: int = field(default=5, metadata=_number(0, 1000))
    child_restarts_within_s: float = field(default=600.0, metadata=_number(1))
    session_hours: float = field(default=12.0, metadata=_number(0.01, 24 * 366))
    fresh_sign_in_s: float = field(default=600.0, metadata=_number(10, 86_400))  # for admin tokens
    agent_token_days: float = field(default=365.0, metadata=_number(1, 3660))  # at most
    decisions_by: str = "anybody"  # named: only tokens or proxies that name a person decide


_DATABASES = ("database_url", "owner_database_url")


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; raise `SettingError` naming the variable that is wrong."""
    environment = os.environ if environment is None else environment
    found: dict[str, Any] = {}
    for entry in fields(Settings):
        name = PREFIX + entry.name.upper()
        if (text := environment.get(name, "")) and entry.name not in _DATABASES:
            found[entry.name] = _value(name, text, entry.metadata, type(entry.default))
    _check_networks("NOTIFY_NETWORKS", found.get("notify_networks", ""))
    _check_networks("TRUSTED_PROXIES", found.get("trusted_proxies", ""))
    _check_networks("SIGN_IN_PROXIES", found.get("sign_in_proxies", ""))
    _check_roles(found)
    for name in ("PRIMARY_URL", "DASHBOARD_URL", "PUBLIC_URL"):
        _check_url(name, found.get(name.lower(), ""))
    found["oidc_client_secret"] = found.get("oidc_client_secret") or _secret(
        environment, PREFIX + "OIDC_CLIENT_SECRET"
    )
    _check_oidc(found)
    _check_deciders(found.get("decisions_by", "anybody"))
    key = found.get("link_key") or _secret(environment, PREFIX + "LINK_KEY")
    found["link_key"] = _link_key(key)
    found["order_key"] = _order_key(
        found.get("order_key") or _secret(environment, PREFIX + "ORDER_KEY")
    )
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


def sign_in_roles(text: str) -> dict[str, Role]:
    """Group -> role of `sign_in_roles`; `*` is everybody. Raise `KeyError`."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    return {group.strip(): _PEOPLE[role.strip()] for group, _, role in pairs}


_PEOPLE = {role.value: role for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)}


def _check_networks(name: str, text: str) -> None:
    try:
        networks_of(text)
    except ValueError as error:
        raise SettingError(
            PREFIX + name, "takes networks with commas between them", str(error)
        ) from None


def _check_roles(found: Mapping[str, Any]) -> None:
    try:
        roles = sign_in_roles(found.get("sign_in_roles", ""))
    except KeyError:
        roles = {}
    if bool(roles) is not bool(found.get("sign_in_roles") or found.get("sign_in_proxies")):
        raise SettingError(
            PREFIX + "SIGN_IN_ROLES", "says which group has which role, with commas between them",
            "Write ml-oncall=operator, *=viewer; roles are viewer, operator and admin",
        )  # fmt: skip


def _check_oidc(found: Mapping[str, Any]) -> None:
    issuer = found.get("oidc_issuer", "")
    given = [name for name, value in found.items() if name.startswith("oidc_") and value]
    given = [name for name in given if isinstance(found[name], str)]  # numbers alone ask nothing
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
    _check_oidc_roles(found.get("oidc_roles", ""))


def _check_oidc_roles(text: str) -> None:
    limit = "says which group has which role, with commas between them"
    try:
        got = "" if read_accesses(text) else "Got none"
    except ValueError as error:
        got = str(error)
    if got:
        raise SettingError(
            PREFIX + "OIDC_ROLES", limit,
            "Write ml-oncall=operator, vision=operator@vision, *=viewer; roles are viewer, "
            f"operator and admin. {got}",
        )  # fmt: skip


def _check_url(name: str, text: str) -> None:
    """An address that cannot be read would fail every answer that names it."""
    try:
        readable = bool(urlsplit(text).hostname) and urlsplit(text).port != 0
    except ValueError:
        readable = False
    if text and not (readable and text.startswith(("http://", "https://"))):
        raise SettingError(
            PREFIX + name, "is an http or https URL", f"Write https://HOST. Got {text!r:.80}"
        )


def _check_deciders(text: str) -> None:
    if text not in ("anybody", "named"):
        raise SettingError(PREFIX + "DECISIONS_BY", "is anybody or named", f"Got {text!r:.80}")


def _order_key(text: str) -> str:
    try:
        keys = read_order_keys(text) if text else ()
    except ValueError as error:
        raise SettingError(PREFIX + "ORDER_KEY", f"is a key: {KEY_WORDS}", str(error)) from None
    if len(keys) > 1:
        raise SettingError(PREFIX + "ORDER_KEY", "is one key", "Give the newest; jobs take several")
    return keys[0].secret.hex() if keys else ""


def _link_key(text: str) -> str:
    if text and len(text) < LEAST_LINK_KEY:
        raise SettingError(
            PREFIX + "LINK_KEY", f"has at least {LEAST_LINK_KEY} characters", "Use 32 random bytes"
        )
    return text


def _value(name: str, text: str, limits: Mapping[str, Any], kind: type) -> Any:
    if kind is str:
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
