"""Who is looking, at which server, and what they saw last.

People read with a ticket of their own, a cookie that the server's sign-in page sets, so that nobody
sees more than their token allows. The ticket is a viewer's: people decide on the server's own
pages. The dashboard has no token: whoever has not signed in sees a link to that page.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import streamlit as st

from spikeguard_client import ApiError
from spikeguard_dashboard.client import PageClient
from spikeguard_dashboard.settings import Settings, read_settings
from spikeguard_protocol import ProtocolError

COOKIE = "spikeguard_dashboard"  # a viewer's ticket, set by the server's sign-in page
MAX_REMEMBERED = 32
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who signed in."""

    name: str
    token: str
    expires_in_s: float | None


@dataclass(frozen=True, slots=True)
class Visit:
    """One look at the dashboard."""

    settings: Settings
    client: PageClient
    person: Person | None
    session_ended: bool  # there is a cookie, but the server no longer takes it
    address: str  # of this page, in the person's browser
    zone: ZoneInfo
    dark: bool

    @property
    def cookie_can_come(self) -> bool:
        """Whether the browser sends the server's cookie here: only to the same host name."""
        ours, theirs = urlsplit(self.address).hostname, urlsplit(self.settings.public_url).hostname
        return ours is None or ours == theirs


def arrive() -> Visit:
    """Look who is there; raise `SettingError` if the dashboard is set up wrongly, `ApiError` if the
    server cannot be asked."""
    settings = read_settings(os.environ)
    person, ended = _person(settings.server, st.context.cookies.get(COOKIE, ""))
    return Visit(
        settings,
        PageClient(settings.server, person.token if person else ""),
        person,
        ended,
        st.context.url or "",
        _zone(),
        st.context.theme.type == "dark",
    )


def _person(server: str, cookie: str) -> tuple[Person | None, bool]:
    """The person behind the cookie, and whether the cookie has lost its worth. While the server
    does not answer it is the person that it named last; raises `ApiError` where it named none."""
    if not cookie:
        return None, False
    try:
        me = PageClient(server, cookie).me()
    except ProtocolError:
        return None, True  # no header takes it
    except ApiError as error:
        if error.status in (401, 403):
            return None, True
        known, person = st.session_state.get("person", ("", None))
        if known != cookie:
            raise
        return person, False
    if not me["name"]:
        return None, False
    person = Person(me["name"], cookie, me["expires_in_s"])
    st.session_state["person"] = cookie, person
    return person, False


def _zone() -> ZoneInfo:
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (KeyError, ValueError):
        return ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class Look(Generic[T_co]):
    """What a page shows: the answer, or the last one together with why there is no newer."""

    data: T_co | None
    error: ApiError | None
    age_s: float  # since the answer that is shown


def look(key: str, load: Callable[[], T]) -> Look[T]:
    """Ask the server; if that fails, fall back to the last answer to the same question.

    A token that is no longer taken is raised: there is nothing more to show with it.
    """
    seen: dict[str, tuple[T, float]] = st.session_state.setdefault("seen", {})
    try:
        data = load()
    except ApiError as error:
        if error.status == 401:
            raise
        kept = seen.get(key) if error.status in (None, 429, 500, 502, 503, 504) else None
        return Look(kept[0], error, time.monotonic() - kept[1]) if kept else Look(None, error, 0.0)
    seen.pop(key, None)
    seen[key] = (data, time.monotonic())
    while len(seen) > MAX_REMEMBERED:
        seen.pop(next(iter(seen)))
    return Look(data, None, 0.0)
