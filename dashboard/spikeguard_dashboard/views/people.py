"""Who has an incident, and what people said: acknowledged, assigned, commented on.

Law: a press travels as the person who signed in, or not at all. A comment travels once, whatever a
slow page is told of twice: its button's key counts what was done before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from spikeguard_client import IncidentDetail
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.decision import Notice, failure_of
from spikeguard_dashboard.visit import Person, Visit
from spikeguard_protocol import IncidentId
from spikeguard_protocol.phrases import response_phrase

MAX_COMMENT, MAX_NAME = 2000, 80


@dataclass(frozen=True, slots=True)
class _Press:
    """What a button does, and in whose name."""

    visit: Visit
    person: Person
    incident: IncidentDetail

    @property
    def id(self) -> IncidentId:
        return IncidentId.parse(self.incident["id"])

    def key(self, what: str) -> str:
        """Of a button or field, as long as nothing more was done."""
        return f"{what} {self.incident['id']} {len(self.incident['responses'])}"

    def send(self, act: Callable[[], object]) -> None:
        """Do it, and say where that failed."""
        st.session_state[self._notice] = failure_of(act)

    def say(self, message: str, remedy: str) -> None:
        """Nothing was sent, and why."""
        st.session_state[self._notice] = Notice("warn", message, remedy)

    @property
    def notice(self) -> Notice | None:
        found = st.session_state.get(self._notice)
        return found if isinstance(found, Notice) else None

    @property
    def _notice(self) -> str:
        return f"people {self.incident['id']}"


def draw_people(visit: Visit, incident: IncidentDetail) -> None:
    """Who looks at it, whose it is, what was said; with buttons for who may decide."""
    st.html(markup.block(markup.section("Who has it"), people(incident, visit)))
    if visit.person is not None and visit.person.may_decide:
        _buttons(_Press(visit, visit.person, incident))


def people(incident: IncidentDetail, visit: Visit) -> Html:
    """The same in words and a table, the newest first."""
    rows: list[Sequence[Content]] = [
        [
            words.clock(done["at"], visit.zone),
            response_phrase(done["action"], done["person"], done["assignee"], done["text"]),
        ]
        for done in reversed(incident["responses"])
    ]
    table = markup.table([Column("When"), Column("What")], rows) if rows else markup.EMPTY
    page = markup.first_view_address(visit.settings.public_url, incident["id"])
    also = markup.joined(markup.soft("Also:"), markup.link("the server's own page", page))
    said = markup.paragraph(words.people(incident))
    return markup.joined(said, table, markup.paragraph(also), gap="")


def _buttons(press: _Press) -> None:
    place = st.empty()  # kept: a popover that moves closes
    if (notice := press.notice) is not None:
        said = markup.paragraph(notice.message.rstrip(".") + ".", "order")
        place.html(markup.block(markup.card(notice.tone, said, markup.paragraph(notice.remedy))))
    looks, takes, says, gives = st.columns(4)
    with looks:
        _acknowledge(press)
    with takes:
        _take(press)
    with says:
        _comment(press)
    with gives:
        _assign(press)


def _acknowledge(press: _Press) -> None:
    client, signer = press.visit.client, press.person.signer
    if press.incident["acknowledged_by"]:
        label, act = "Stop looking", client.take_back_acknowledgement
    else:
        label, act = f"Acknowledge as {press.person.name}", client.acknowledge
    st.button(
        label, key=press.key("acknowledge"), width="stretch",
        on_click=lambda: press.send(lambda: act(signer, press.id)),
        disabled=press.incident["state"] == "closed",
    )  # fmt: skip


def _take(press: _Press) -> None:
    client, person = press.visit.client, press.person
    st.button(
        "Take it", key=press.key("take"), width="stretch",
        on_click=lambda: press.send(lambda: client.assign(person.signer, press.id, person.name)),
        disabled=press.incident["assignee"] == person.name,
    )  # fmt: skip


def _comment(press: _Press) -> None:
    field, sent = f"comment {press.incident['id']}", press.key("commented")
    client, signer = press.visit.client, press.person.signer

    def comment() -> None:
        text = str(st.session_state.get(field, "")).strip()
        if not text:
            press.say("Nothing was sent", "Write your comment first.")
        elif not st.session_state.get(sent):
            st.session_state[sent] = True
            st.session_state[field] = ""
            press.send(lambda: client.comment(signer, press.id, text))

    with st.popover("Comment", width="stretch"):
        st.text_area(
            "Comment, kept in the post-mortem", key=field, max_chars=MAX_COMMENT, height=90
        )
        st.button("Send the comment", key=press.key("comment"), on_click=comment)


def _assign(press: _Press) -> None:
    field = f"assignee {press.incident['id']}"
    client, signer = press.visit.client, press.person.signer

    def assign() -> None:
        name = str(st.session_state.get(field, "")).strip()
        press.send(lambda: client.assign(signer, press.id, name or None))

    with st.popover("Assign", width="stretch"):
        st.text_input("A person's name; empty: nobody", key=field, max_chars=MAX_NAME)
        st.button("Assign the incident", key=press.key("assign"), on_click=assign)
