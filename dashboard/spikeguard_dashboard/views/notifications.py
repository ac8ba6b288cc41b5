"""Whom a project tells of what, whether it works, and what was told.

Law: a test is sent, and anything is written, as the person who signed in, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import streamlit as st

from spikeguard_client import ApiError, Channel, Delivery, Silence
from spikeguard_client.reading import Page
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.views.channel_form import channel_form, silence_form
from spikeguard_dashboard.views.frame import framed, refreshed, staleness
from spikeguard_dashboard.visit import Person, Visit, look
from spikeguard_protocol import DEFAULT_PROJECT, Kind, RunId

CHANNEL_COLUMNS = (
    Column("Channel"),
    Column("Goes to"),
    Column("Asks for"),
    Column("Told", named=True),
    Column("At most every", numeric=True),
    Column("Last delivered", named=True),
)
SILENCE_COLUMNS = (
    Column("Covers"),
    Column("From", named=True),
    Column("Until", named=True),
    Column("Why", named=True),
    Column("By", named=True),
)
DELIVERY_COLUMNS = (
    Column("When"),
    Column("Channel"),
    Column("About"),
    Column("Result"),
    Column("Text or reason"),
)
RESULT_TONES = {
    "sent": "applied",
    "held": "pending",
    "dropped": "closed",
    "failed": "failed",
    "given_up": "failed",
}
RESULT_WORDS = {"dropped": "not sent", "held": "held back"}
ALL = 4  # what a channel can ask to be told about


def notifications_page() -> None:
    """Channels, silences and the delivery log of the project that the address names."""
    framed(_page, ["Notifications"])


def _page(visit: Visit, _trail: Sequence[Content]) -> None:
    project = st.query_params.get("project") or DEFAULT_PROJECT
    policy = markup.link("Its policy", f"./policy?{urlencode({'project': project})}")
    st.html(markup.block(markup.heading(f"Notifications of project {project}"), policy))
    channels = look(f"channels {project}", lambda: visit.client.channels(visit.token, project))
    staleness(channels)
    if channels.data is not None:
        st.html(markup.block(_channels(channels.data.items, visit)))
        _buttons(visit, channels.data.items)
        _forms(visit, project, channels.data.items)
    refreshed(visit, lambda: _draw(visit, project))


def _forms(visit: Visit, project: str, channels: Sequence[Channel]) -> None:
    """What is written stands outside what is refreshed, so that half-typed text stays."""
    person = visit.person
    if person is None or not person.may_decide:
        return
    if person.role == "admin":
        with st.expander("Write or remove a channel"):
            channel_form(visit, person, project, channels)
    silences = look(f"silences {project}", lambda: visit.client.silences(visit.token, project))
    with st.expander("Silence something, or end a silence"):
        silence_form(visit, person, project, silences.data.items if silences.data else [])


def _channels(channels: Sequence[Channel], visit: Visit) -> Html:
    if not channels:
        return markup.paragraph(
            "Nobody is told anything: the project has no channel. An admin who signed in writes "
            "one here."
        )
    return markup.table(
        CHANNEL_COLUMNS, [_channel(entry, visit) for entry in channels], stacked=True
    )


def _channel(channel: Channel, visit: Visit) -> list[Content]:
    off = "" if channel["enabled"] else markup.chip("closed", "switched off")
    return [
        markup.unbroken(channel["name"], markup.soft(channel["kind"]), off),
        channel["target"].get("url", ""),
        _asked(channel),
        f"from escalation {channel['level']} on" if channel["level"] else "at once",
        words.duration(channel["cooldown_s"]),
        _delivered(channel, visit),
    ]


def _delivered(channel: Channel, visit: Visit) -> Content:
    """When it last took a message, and whether one failed after that."""
    taken, failed = channel["delivered_at"], channel["failed_at"]
    when = words.clock(taken, visit.zone) if taken else "never yet"
    if failed is None or (taken is not None and taken > failed):
        return when
    return markup.joined(when, markup.chip("failed", f"failed {words.clock(failed, visit.zone)}"))


def _asked(channel: Channel) -> str:
    about = "everything" if len(channel["about"]) == ALL else ", ".join(channel["about"])
    some = len(channel["kinds"]) < len(Kind)
    kinds = f" of {' and '.join(map(words.plain, channel['kinds']))} incidents" if some else ""
    runs = f", of runs {', '.join(channel['runs'])}" if channel["runs"] else ""
    return (about or "nothing") + kinds + runs


def _buttons(visit: Visit, channels: Sequence[Channel]) -> None:
    """One test button a channel, for those who may decide."""
    if not channels or visit.person is None or not visit.person.may_decide:
        return
    with st.container(horizontal=True):
        for channel in channels:
            st.button(
                f"Test {channel['name']}",
                key=f"test {channel['project']}/{channel['name']}",
                on_click=_test,
                args=(visit, visit.person, channel),
            )
    if found := st.session_state.pop("channel test", None):
        st.html(markup.block(markup.card(*found)))


def _test(visit: Visit, person: Person, channel: Channel) -> None:
    try:
        done = visit.client.test_channel(person.token, channel["project"], channel["name"])
    except ApiError as error:
        said, tone = f"{error.message}. {error.remedy}", "warn"
    else:
        took = f"{done['took_ms']:.0f} ms"
        tone = "good" if done["result"] == "sent" else "bad"
        said = f"{words.plain(done['result']).capitalize()} after {took}: {done['reason']}"
    text = markup.paragraph(f"{channel['name']}: {said}", "order")
    st.session_state["channel test"] = (tone, text)


def _draw(visit: Visit, project: str) -> None:
    silences = look(f"silences {project}", lambda: visit.client.silences(visit.token, project))
    if silences.data and silences.data.items:
        rows = [_silence(entry, visit) for entry in silences.data.items]
        table = markup.table(SILENCE_COLUMNS, rows, stacked=True)
        st.html(markup.block(markup.section("Silences"), table))
    told = look(f"told {project}", lambda: visit.client.deliveries(visit.token, project))
    staleness(told)
    if told.data is not None:
        st.html(markup.block(markup.section("What was told"), _log(told.data, visit, project)))


def _silence(silence: Silence, visit: Visit) -> list[Content]:
    which = f"#{silence['incident']}" if silence["incident"] else ""
    return [
        f"{silence['run'] or 'every run'}{which}",
        words.clock(silence["begins_at"], visit.zone),
        words.clock(silence["ends_at"], visit.zone),
        silence["reason"],
        silence["created_by"],
    ]


def _log(told: Page[Delivery], visit: Visit, project: str) -> Html:
    if not told.items:
        return markup.paragraph(markup.soft("Nothing yet."))
    rows = [_delivery(entry, visit, project) for entry in told.items]
    return markup.table(DELIVERY_COLUMNS, rows, stacked=True)


def _delivery(entry: Delivery, visit: Visit, project: str) -> list[Content]:
    tone = RESULT_TONES.get(entry["result"], "closed")
    return [
        markup.unbroken(words.clock(entry["at"], visit.zone)),
        entry["channel"] or markup.soft("none"),
        _about(entry, project),
        markup.chip(tone, RESULT_WORDS.get(entry["result"], words.plain(entry["result"]))),
        entry["reason"],
    ]


def _about(entry: Delivery, project: str) -> Content:
    topics = ", ".join(words.plain(topic) for topic in entry["topics"])
    if entry["run"] is None:
        return topics
    run = RunId(project, entry["run"])
    if entry["incident"] is None:
        return markup.joined(markup.link(str(run), markup.run_address(run)), topics)
    address = markup.incident_address(run, entry["incident"])
    return markup.joined(markup.link(f"{run}#{entry['incident']}", address), topics)
