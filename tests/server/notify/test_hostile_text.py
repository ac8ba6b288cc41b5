"""A message says one fact a line, whatever is in the names and reasons that it repeats."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from spikeguard_core.notification.channel import channel_from_mapping
from spikeguard_core.notification.topics import Topic
from spikeguard_core.policy.finding import FirstMove
from spikeguard_protocol import Kind
from spikeguard_protocol.escaping import chat_text
from spikeguard_server.log_format import LineFormatter
from spikeguard_server.notify.addresses import read_networks
from spikeguard_server.notify.kinds import Carriage, carry
from spikeguard_server.notify.message import ChannelMessage, SpikeNews, Waiting, title_of
from tests.hostile import HARMLESS, HOSTILE, acted_on
from tests.server.notify.listener import Listener

NOW = datetime(2026, 3, 14, tzinfo=UTC)
TOPICS = frozenset({Topic.PROPOSED})


def message(text: str) -> ChannelMessage:
    waiting = Waiting(
        "gpt#1.1",
        1,
        f"roll back to {text}",
        f"roll back to {text}",
        (text,),
        3,
        "3 steps",
        60.0,
        60.0,
        checks=(text,),
    )
    spike = SpikeNews(
        "gpt#1", Kind.LINGERING, 0.9, text, "open", None, "lingering spike", text,
        FirstMove(text, 3), 3, 4, 2.0, 5.0, text, 9, 0, NOW, None,
        waiting=waiting, cause=text, last_command=text, decided=f"rejected by {text}",
    )  # fmt: skip
    title = title_of(TOPICS, "gpt", "live", spike, "default")
    links = {"dashboard": "https://guard.example/"}
    return ChannelMessage(
        "default/gpt#1", 1, TOPICS, "default", "gpt", "live", title, NOW, spike, links
    )


def channels(listener: Listener) -> dict[str, dict[str, Any]]:
    host = listener.url.removeprefix("http://")
    return {
        "pagerduty": {"routing_key": "R" * 32, "url": listener.url},
        "apprise": {"url": f"json://{host}/hook"},
    }


@pytest.mark.parametrize("kind", ["pagerduty", "apprise"])
def test_what_a_service_is_sent_shows_as_text(listener: Listener, kind: str) -> None:
    target = channels(listener)[kind]
    channel = channel_from_mapping("default", "oncall", {"kind": kind, "target": target})
    by = Carriage(read_networks("127.0.0.0/8"), began=False, clock_s=0.0)
    texts = ["".join(HOSTILE.values())] if kind == "apprise" else list(HOSTILE.values())
    for text in texts:
        carry(channel, message(text), by)
    expected = message("plain").body().count("\n")
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
    target = {"kind": "apprise", "target": {"url": f"mmost://{host}/{'a' * 24}"}}
    channel = channel_from_mapping("default", "oncall", target)
    by = Carriage(read_networks("127.0.0.0/8"), began=False, clock_s=0.0)
    carry(channel, message(" ".join(CHATTED)), by)
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
    for text in HARMLESS:
        assert text in message(text).title
        assert text in message(text).body()
    for text in HOSTILE.values():
        assert acted_on(message(text).title, keep="") == []


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
