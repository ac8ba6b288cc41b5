"""What surrounds every page: the bar at the top, and how trouble is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from spikeguard_client import ApiError
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Content, Html
from spikeguard_dashboard.settings import SettingError
from spikeguard_dashboard.visit import Look, Visit, arrive
from spikeguard_protocol import ProtocolError, RunId
from spikeguard_protocol.phrases import duration_phrase

DOT = ' <span class="soft">·</span> '
DIFFERENT_HOST = (
    "Signing in works only if dashboard and server are opened under the same host name: "
    "this page has another one than the server's address."
)


def framed(draw: Callable[[Visit, Sequence[Content]], None], trail: Sequence[Content]) -> None:
    """Draw the bar and, below it, the page; `trail` says where the page lies."""
    try:
        visit = arrive()
    except (SettingError, ApiError) as error:
        trouble(error.message, error.remedy)
        return
    bar(visit, trail)
    if visit.person is None:
        st.html(markup.block(_sign_in(visit)))
    else:
        draw(visit, trail)


def bar(visit: Visit, trail: Sequence[Content]) -> None:
    """Where this is, and who is signed in."""
    home = markup.link(Html("<b>spikeguard</b>"), "./")
    place = markup.joined(home, *trail, gap=' <span class="soft">/</span> ')
    st.html(
        markup.block(
            Html('<div class="sg-bar"><div>'),
            place,
            Html("</div><div>"),
            _who(visit),
            Html("</div></div>"),
        )
    )


def _who(visit: Visit) -> Html:
    inbox = markup.link("Inbox", f"{visit.settings.public_url}/inbox")
    if visit.person is None:
        return inbox
    left = duration_phrase(visit.person.expires_in_s)
    who = f"Signed in as {visit.person.name}, {left} left"
    change = markup.login_address(visit.settings.public_url, visit.address)
    return markup.joined(inbox, who, markup.link("Change", change), gap=DOT)


def _sign_in(visit: Visit) -> Html:
    """What stands in place of a page while nobody has signed in."""
    said = "Your session has ended." if visit.session_ended else "You have not signed in."
    address = markup.login_address(visit.settings.public_url, visit.address)
    where = markup.paragraph(markup.link("Sign in at the server", address))
    note = markup.EMPTY if visit.cookie_can_come else markup.paragraph(DIFFERENT_HOST)
    return markup.card("ask", markup.paragraph(said, "order"), where, note)


def trouble(message: str, remedy: str) -> None:
    """Something is wrong and somebody can do something about it."""
    st.html(_trouble(message, remedy))


def _trouble(message: str, remedy: str) -> str:
    order = markup.paragraph(markup.prose(f"{message.rstrip('.')}."), "order")
    advice = markup.paragraph(markup.prose(words.sentences(remedy)))
    return markup.block(markup.card("warn", order, advice))


def refreshed(visit: Visit, draw: Callable[[], None]) -> None:
    """Draw now and again every few seconds, without touching the rest of the page."""

    def guarded() -> None:
        try:
            draw()
        except ApiError as error:
            if error.status == 401:
                st.rerun()  # the whole page: it asks for a sign-in
            trouble(error.message, error.remedy)

    st.fragment(guarded, run_every=visit.settings.refresh_s)()


def staleness(*looks: Look[object]) -> None:
    """Say that what is shown is not the newest, and why; once, of the first that is not.

    Its place is kept while there is nothing to say: what stands below would otherwise move to
    another place of the page, and be drawn anew.
    """
    place = st.empty()
    seen = next((seen for seen in looks if seen.error is not None), None)
    if seen is None or seen.error is None:
        return
    old = f". What you see is {duration_phrase(seen.age_s)} old" if seen.data is not None else ""
    place.html(_trouble(f"{seen.error.message}{old}", seen.error.remedy))


def asked_run() -> RunId | None:
    """The run that the address names, if it names one."""
    try:
        return RunId.parse(st.query_params.get("run", ""))
    except ProtocolError:
        return None


def asked_incident() -> int | None:
    """The incident that the address names, if it names one."""
    text = st.query_params.get("number") or st.query_params.get("incident") or ""
    return int(text) if text.isdecimal() and 0 < int(text) < 2**31 else None


def nothing_named(what: str, example: str) -> None:
    """The address lacks what the page needs."""
    link = markup.link("Choose one from the list of runs", "./")
    said = markup.card(
        "calm",
        markup.paragraph(f"The address names no {what}.", "order"),
        markup.paragraph(markup.joined(link, "or write it like", markup.code(example))),
    )
    st.html(markup.block(said))
