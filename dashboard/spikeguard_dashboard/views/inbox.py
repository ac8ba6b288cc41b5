"""What waits for somebody across runs, the most pressing first."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from spikeguard_client import Inbox, InboxItem
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.visit import Visit, look
from spikeguard_protocol import IncidentId, Waits
from spikeguard_protocol.phrases import waits_phrase

ASKS = (Waits.DECIDE, Waits.SECOND)

COLUMNS = (
    Column("Waits for"),
    Column("What"),
    Column("Costs", named=True),
    Column("Can wait", named=True),
    Column("Who has it", named=True),
    Column("Since", wide=True),
)


def inbox_page() -> None:
    """`/inbox`."""
    framed(_page, ["Inbox"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    refreshed(visit, lambda: _draw(visit))


def _draw(visit: Visit) -> None:
    seen = look("inbox", lambda: visit.client.inbox(visit.token))
    staleness(seen)
    if seen.data is not None:
        st.html(markup.block(_heading(seen.data), inbox_table(seen.data, visit), _switch(visit)))


def _heading(inbox: Inbox) -> Html:
    asking = sum(item["waits"] in ASKS for item in inbox["items"])
    chips = [markup.chip("waiting", f"{asking} waiting for a decision")] * bool(asking)
    return markup.heading("Inbox", *chips)


def inbox_table(inbox: Inbox, visit: Visit) -> Html:
    """One row for each thing that waits."""
    if not inbox["items"]:
        return markup.paragraph("Nothing waits.")
    rows = [_row(item, visit) for item in inbox["items"]]
    more = "There is more: spikeguard inbox --limit 200 lists it." if inbox["more"] else ""
    note = markup.paragraph(markup.soft(more)) if more else markup.EMPTY
    return markup.joined(markup.table(COLUMNS, rows, stacked=True), note, gap="")


def _switch(visit: Visit) -> Html:
    """Where the kill switch is thrown and lifted."""
    page = markup.link("The server's own page", f"{visit.settings.public_url}/inbox")
    said = "throws and lifts the kill switch of a project, and lists the same without scripts."
    return markup.paragraph(markup.joined(page, markup.soft(said)))


def _row(item: InboxItem, visit: Visit) -> list[Content]:
    incident = item["incident"]
    proposal = None if incident is None else incident["proposal"]
    asks = proposal is not None and item["waits"] in ASKS
    return [
        markup.chip(item["waits"], waits_phrase(item["waits"])),
        _what(item),
        words.price(proposal["cost"]) if proposal is not None and asks else words.NOTHING,
        words.duration(proposal["expires_in_s"]) if proposal and asks else words.NOTHING,
        _who(item),
        markup.unbroken(words.clock(item["since"], visit.zone)),
    ]


def _what(item: InboxItem) -> Content:
    incident = item["incident"]
    if incident is None:
        why = f"“{item['reason']}”" if item["reason"] else ""
        return markup.joined(item["title"], markup.soft(why) if why else "")
    place = IncidentId.parse(incident["id"])
    link = markup.link(item["title"], markup.incident_address(place.run, place.number))
    return markup.joined(link, markup.soft(f"{incident['summary']}."))


def _who(item: InboxItem) -> str:
    incident = item["incident"]
    if incident is None:
        return item["by"] or words.NOTHING
    return incident["acknowledged_by"] or incident["assignee"] or words.NOTHING
