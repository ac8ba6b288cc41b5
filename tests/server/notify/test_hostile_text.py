"""A message says one fact a line, whatever is in the names and reasons that it repeats."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from spikeguard_core.notification.topics import Topic, Urgency
from spikeguard_core.policy.cost import Cost
from spikeguard_core.suspicion import Suspicion
from spikeguard_protocol import Cause, CommandState, Kind, Rollback, RunId
from spikeguard_protocol.escaping import chat_text
from spikeguard_server.entities import CommandRow, IncidentRow
from spikeguard_server.log_format import LineFormatter
from spikeguard_server.notify.kinds import carry
from spikeguard_server.notify.message import ChannelMessage, SpikeNews
from spikeguard_server.settings import networks_of
from spikeguard_server.store.reads.runs import NotifiedRun
from tests.domain.policy.situations import incident
from tests.hostile import HARMLESS, HOSTILE, acted_on
from tests.server.notify.conftest import channel_of
from tests.server.notify.listener import Listener

NOW = datetime(2026, 3, 14, tzinfo=UTC)
TOPICS = frozenset({Topic.PROPOSED})
RUN = RunId("default", "gpt")
TOLD = NotifiedRun("default", "gpt", "live", False, None, 0.0, 290, None, 1, True)


def command(state: CommandState, text: str, **more: Any) -> CommandRow:
    action, reason = Rollback("step-3", 3), f"as seen: {text}".replace("\n\n", "\n")
    return CommandRow(
        RUN, UUID(int=1), 1, 1, action, state, 1, reason, 1, NOW, NOW, expires_in_s=60.0, **more
    )


def spike(text: str, *, sure: bool = True, **changes: Any) -> SpikeNews:
    """An incident that says `text` wherever somebody else may have written something."""
    changes |= {"reason": text, "signal": text, "first_moves": {text: 3}}
    about = incident(number=1, causes=(Suspicion(Cause.BAD_BATCH, 0.9, (text,)),), **changes)
    row = IncidentRow(RUN, UUID(int=1), about, 1, NOW, None, 1, None, None)
    return SpikeNews(
        row,
        command(CommandState.PROPOSED, text),
        Cost(3, None, None, None),
        60.0,
        command(CommandState.REJECTED, text, decided_at=NOW, decided_by=text, decision_reason=text),
        sure=sure,
    )


def message(text: str) -> ChannelMessage:
    links = {"dashboard": "https://guard.example/"}
    return ChannelMessage("default/gpt#1", 1, TOPICS, TOLD, NOW, spike(text), links)


def channels(listener: Listener) -> dict[str, dict[str, Any]]:
    host = listener.url.removeprefix("http://")
    return {
        "pagerduty": {"routing_key": "R" * 32, "url": listener.url},
        "apprise": {"url": f"json://{host}/hook"},
    }


@pytest.mark.parametrize("kind", ["pagerduty", "apprise"])
def test_what_a_service_is_sent_shows_as_text(listener: Listener, kind: str) -> None:
    channel = channel_of(kind, target=channels(listener)[kind])
    networks = networks_of("127.0.0.0/8")
    texts = ["".join(HOSTILE.values())] if kind == "apprise" else list(HOSTILE.values())
    for text in texts:
        carry(channel, message(text), networks)
    beside = kind == "pagerduty"  # it takes links beside the text
    expected = message("plain").body().count("\n") - beside
    for received in listener.received:
        for told in strings(received.json()):
            assert acted_on(told) == []
            assert told.count("\n") in (0, expected), told


CHATTED = (
    "[Approve](https://evil.example) ![x](https://evil.example/p.png) [Approve][1]",
    "<https://evil.example|Approve> <!channel> <@U024BE7LH> <b>",
    "@channel @everyone x@here @**all** (@ada)",
    "||hidden|| ~~struck~~ **bold** ```code``` $$\\phantom{TeX}$$",
)
LIVE = re.compile(r"\][(\[]|<\S|(?<!\w)@\S|@(everyone|here)|\|\||~~|\*\*|``|\$\$")


def test_what_a_chat_reads_markdown_in_links_hides_and_calls_nothing(listener: Listener) -> None:
    """Such as Mattermost, which reads it in whatever it is given."""
    listener.answers.append((200, {}))
    host = listener.url.removeprefix("http://")
    channel = channel_of("apprise", target={"url": f"mmost://{host}/{'a' * 24}"})
    networks = networks_of("127.0.0.0/8")
    carry(channel, message(" ".join(CHATTED)), networks)
    [received] = listener.received
    told: str = received.json()["text"]
    assert not LIVE.search(told), told
    assert told.endswith("dashboard: https://guard.example/")


def test_a_chat_shows_names_and_words_as_they_are() -> None:
    for text in (*HARMLESS, "approved by ada@example.org", "step_time > 3 * 0.5 | h.0 [1] `lr` #2"):
        assert chat_text(text) == text


def strings(plain: Any) -> list[str]:
    """Every text in JSON."""
    if isinstance(plain, dict):
        plain = list(plain.values())
    if isinstance(plain, list):
        return [text for inner in plain for text in strings(inner)]
    return [plain] if isinstance(plain, str) else []


def test_a_title_is_one_line_and_keeps_every_script() -> None:
    def decided(text: str) -> ChannelMessage:
        told = replace(spike(text), waiting=None)
        return replace(message(text), topics=frozenset({Topic.REJECTED}), spike=told)

    for text in HARMLESS:
        assert text in decided(text).title
        assert text in message(text).body()
    for text in HOSTILE.values():
        assert acted_on(decided(text).title, keep="") == []


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_servers_log_holds_one_line_a_message_and_indents_what_is_below(text: str) -> None:
    try:
        raise RuntimeError(text)
    except RuntimeError:
        told = sys.exc_info()
    record = logging.LogRecord("spikeguard_server", 40, "", 0, "run %s failed", (text,), told)
    first, *below = LineFormatter().format(record).split("\n")
    assert first.startswith("ERROR spikeguard_server: run ")
    assert all(line.startswith("    ") for line in below)
    assert acted_on("\n".join([first, *below])) == []


@pytest.mark.parametrize(
    ("sure", "topics", "urgency"),
    [
        (False, {Topic.OPENED}, Urgency.WARNING),
        (True, {Topic.OPENED}, Urgency.URGENT),
        (True, {Topic.EXPIRED}, Urgency.URGENT),
        (True, {Topic.OPENED, Topic.APPROVED}, Urgency.INFO),
        (True, {Topic.REJECTED, Topic.APPLIED}, Urgency.INFO),
        (True, {Topic.APPROVED, Topic.REFUSED}, Urgency.URGENT),
    ],
)
def test_a_divergence_pages_only_where_it_asks_for_a_person(
    sure: bool, topics: set[Topic], urgency: Urgency
) -> None:
    """Not below the confidence to act at, and not of what somebody has answered."""
    divergent = replace(spike("finite again", kind=Kind.DIVERGENT), waiting=None, sure=sure)
    told = ChannelMessage("k", 1, frozenset(topics), TOLD, NOW, divergent)
    assert told.urgency is urgency
