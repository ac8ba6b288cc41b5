"""What is to be done because of an incident: a list to read, and one form to change it with.

Law: a press travels as the person who signed in, or not at all, and names the revision that was on
the screen. A new one travels once: its button's key counts what was there before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from spikeguard_client import Followup, IncidentDetail
from spikeguard_dashboard import markup
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.decision import Notice, failure_of
from spikeguard_dashboard.views.frame import staleness
from spikeguard_dashboard.visit import Person, Visit, look
from spikeguard_protocol import IncidentId

MAX_TEXT, MAX_NAME = 2000, 80
COLUMNS = (Column(""), Column("Follow-up"), Column("Owner", named=True), Column("State"))
NEXT = {"open": (("Done", "done"), ("Drop", "dropped")), "done": (("Reopen", "open"),),
        "dropped": (("Reopen", "open"),)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Press:
    """What a button does, and in whose name."""

    visit: Visit
    person: Person
    incident: IncidentId
    count: int  # of what was there when it was drawn

    def key(self, what: str) -> str:
        return f"followup {what} {self.incident} {self.count}"

    def send(self, act: Callable[[], object]) -> None:
        """Do it, and say where that failed."""
        st.session_state[_notice(self.incident)] = failure_of(act)

    def change(self, one: Followup, change: Mapping[str, Any]) -> None:
        """Move it on from what was seen."""
        body = {"revision": one["revision"], **change}
        signer, number = self.person.signer, one["number"]
        self.send(lambda: self.visit.client.change_followup(signer, self.incident, number, body))


def draw_followups(visit: Visit, incident: IncidentDetail) -> None:
    """The list; with a form for who may decide."""
    place = IncidentId.parse(incident["id"])
    key = f"followups {place}"
    seen = look(key, lambda: visit.client.followups(visit.token, place).items)
    staleness(seen)
    found = seen.data or []
    st.session_state[f"{key} seen"] = [(one["number"], one["revision"]) for one in found]
    st.html(markup.block(Html("<h3>Follow-ups</h3>"), followups_table(found)))
    if visit.person is not None and visit.person.may_decide:
        _form(_Press(visit, visit.person, place, len(found)), found)


def followups_seen(incident: str) -> str:
    """Changes with every follow-up: the post-mortem is then another one."""
    return str(st.session_state.get(f"followups {IncidentId.parse(incident)} seen", ""))


def followups_table(found: Sequence[Followup]) -> Html:
    """One row each."""
    if not found:
        return markup.paragraph(markup.soft("Nothing is to be done so far."))
    rows: list[Sequence[Content]] = [
        [str(one["number"]), markup.prose(one["text"]), one["owner"] or "nobody",
         markup.chip(one["state"])]
        for one in found
    ]  # fmt: skip
    return markup.table(COLUMNS, rows, stacked=True)


def _form(press: _Press, found: Sequence[Followup]) -> None:
    place = st.empty()  # kept: a popover that moves closes
    notice = st.session_state.get(_notice(press.incident))
    if isinstance(notice, Notice):
        said = markup.paragraph(notice.message.rstrip(".") + ".", "order")
        place.html(markup.block(markup.card(notice.tone, said, markup.paragraph(notice.remedy))))
    changes, adds = st.columns(2)
    with changes, st.popover("Change a follow-up", width="stretch", disabled=not found):
        if found:
            _change(press, found)
    with adds, st.popover("Add a follow-up", width="stretch"):
        _add(press)


def _change(press: _Press, found: Sequence[Followup]) -> None:
    by_number = {one["number"]: one for one in found}
    number = st.selectbox(
        "Which", list(by_number), key=f"followup which {press.incident}",
        format_func=lambda n: f"{n}: {by_number[n]['text'][:70]}",
    )  # fmt: skip
    one = by_number.get(number) or found[0]
    owner = f"followup owner {press.incident} {one['number']}"
    st.text_input("Owner; empty: nobody", value=one["owner"] or "", key=owner, max_chars=MAX_NAME)

    def give() -> None:
        name = str(st.session_state.get(owner, "")).strip()
        press.change(one, {"owner": name} if name else {"nobody": True})

    st.button("Set the owner", key=press.key(f"give {one['number']}"), on_click=give)
    for label, state in NEXT.get(one["state"], ()):
        st.button(
            label, key=press.key(f"{state} {one['number']} {one['revision']}"),
            on_click=press.change, args=(one, {"state": state}),
        )  # fmt: skip


def _add(press: _Press) -> None:
    text, owner = f"followup text {press.incident}", f"followup new owner {press.incident}"
    sent = press.key("added")

    def add() -> None:
        said = str(st.session_state.get(text, "")).strip()
        if not said:
            notice = Notice("warn", "Nothing was sent", "Write what is to be done first.")
            st.session_state[_notice(press.incident)] = notice
        elif not st.session_state.get(sent):
            st.session_state[sent], st.session_state[text] = True, ""
            name = str(st.session_state.get(owner, "")).strip() or None
            client, signer = press.visit.client, press.person.signer
            press.send(lambda: client.add_followup(signer, press.incident, said, name))

    st.text_area("What is to be done", key=text, max_chars=MAX_TEXT, height=90)
    st.text_input("Whose it is; empty: nobody's", key=owner, max_chars=MAX_NAME)
    st.button("Add it", key=press.key("add"), on_click=add)


def _notice(incident: IncidentId) -> str:
    return f"followup notice {incident}"
