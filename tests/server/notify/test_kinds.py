"""A mail as its reader gets it, and what other kinds of channels put on the wire."""

from __future__ import annotations

import socketserver
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest

from spikeguard_server.ingest.decisions import decide
from spikeguard_server.notify.facts import LABEL
from spikeguard_server.notify.kinds import carry, mail_html
from spikeguard_server.settings import networks_of
from tests.hostile import HOSTILE
from tests.server.notify.conftest import SECRET, Desk, channel_of
from tests.server.notify.listener import Listener, listening
from tests.server.notify.test_hostile_text import message
from tests.server.store.jobs import spiking
from tests.server.store.test_commands import ONSET


class Mailbox(socketserver.ThreadingTCPServer):
    """Takes mail as RFC 5321 has it, without extensions."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.mails: list[EmailMessage] = []


class Session(socketserver.StreamRequestHandler):
    server: Mailbox

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                content = b"".join(line.removeprefix(b".") for line in lines)  # RFC 5321, 4.5.2
                mail = message_from_bytes(content, policy=policy.default)
                assert isinstance(mail, EmailMessage)
                self.server.mails.append(mail)
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
            if word == b"QUIT":
                return


@contextmanager
def receiving() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        thread = threading.Thread(target=mailbox.serve_forever, args=(0.02,))
        thread.start()
        yield mailbox
        mailbox.shutdown()
        thread.join()


def test_a_mail_wraps_its_lines_and_links_to_where_to_decide() -> None:
    with receiving() as mailbox:
        url = f"mailto://127.0.0.1:{mailbox.server_address[1]}?from=a@example.org&to=b@example.org"
        channel = channel_of("apprise", target={"url": url})
        sent = message("wait a while")
        sent.links["Decide"] = "https://guard.example/confirm/1?a=b&c=d"  # type: ignore[index]
        carry(channel, sent, networks_of("127.0.0.0/8"))
    [mail] = mailbox.mails
    assert mail["Subject"] == sent.title
    assert mail["References"] == mail["In-Reply-To"]
    rich = mail.get_body(("html",))
    plain = mail.get_body(("plain",))
    assert rich is not None
    assert plain is not None
    assert "&nbsp;" not in rich.get_content()
    assert 'href="https://guard.example/confirm/1?a=b&amp;c=d#approve"' in rich.get_content()
    assert "Proposed: roll back to step 3. Costs 3 steps" in plain.get_content()
    assert "Decide: https://guard.example/confirm/1?a=b&c=d" in plain.get_content()


def test_a_mail_shows_the_curve_between_the_five_lines_and_the_rest(desk: Desk) -> None:
    with receiving() as mailbox:
        url = f"mailto://127.0.0.1:{mailbox.server_address[1]}?from=a@example.org&to=b@example.org"
        desk.channel("apprise", target={"url": url})
        assert desk.tell() == 1
    assert desk.results() == ["sent"]
    [mail] = mailbox.mails
    [picture] = [part for part in mail.walk() if part.get_content_type() == "image/png"]
    rich = mail.get_body(("html",))
    assert rich is not None
    html = rich.get_content()
    assert f'src="cid:{str(picture["Content-ID"]).strip("<>")}"' in html
    assert picture.get_content().startswith(b"\x89PNG")
    assert len(mail.as_bytes()) < 200_000
    order = ["The loss rose", "Proposed: ", "Can wait ", "confirm/default", "<img", "Onset at step"]
    places = [html.index(words) for words in order]
    assert places == sorted(places)


def test_of_two_ways_to_decide_a_mail_says_which_needs_no_signing_in() -> None:
    sent = message("wait a while")
    page, link = "https://guard.example/confirm/1", "https://guard.example/approve/abc"
    html = mail_html(replace(sent, links={LABEL: link, "Decide": page, **sent.links}))
    for place, label in (("approve", "Approve"), ("reject", "Reject"), ("snooze", "Snooze 15 min")):
        assert f'href="{link}#{place}">{label}</a>' in html
    assert "decide on this proposal once, without signing in" in html
    assert f'Or <a href="{page}">sign in and decide</a>' in html


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_others_wrote_is_text_in_a_mail(text: str) -> None:
    tags = {part.split(">")[0].split()[0] for part in mail_html(message(text)).split("<")[1:]}
    assert tags <= {"div", "/div", "p", "/p", "b", "/b", "a", "/a"}


def test_a_webhook_carries_the_curve_where_its_target_asks_for_it(desk: Desk) -> None:
    with listening() as listener:
        target = {"url": f"{listener.url}/hook", "secret": SECRET}
        desk.channel("webhook", "drawn", target={**target, "picture": "png"})
        desk.channel("webhook", "plain", target=target)
        assert desk.tell() == 2
    told = [request.json() for request in listener.received]
    [drawn] = [message["picture"] for message in told if "picture" in message]
    assert drawn["media_type"] == "image/png"
    assert b64decode(drawn["base64"]).startswith(b"\x89PNG")
    assert len(drawn["base64"]) < 200_000


KEY = "spikeguard/default/gpt#1"


def live_through(desk: Desk) -> None:
    """The proposal is told, its approval, and the recovery."""
    desk.tell()
    decide(desk.engine, desk.command, "approve", desk.revision, "Ada")
    desk.tell()
    desk.job.train(561, 570, spiking(ONSET))
    desk.job.roll_back(str(desk.command), 300, at_step=570, position=300)
    desk.job.train(301, 700, segment=1, shift=20, batch=50)
    desk.tell()
    assert set(desk.results()) == {"sent"}, desk.log()


def test_pagerduty_is_triggered_acknowledged_and_resolved_under_one_key(
    desk: Desk, listener: Listener
) -> None:
    target = {"routing_key": "R" * 32, "url": listener.url}
    desk.channel("pagerduty", target=target, cooldown_s=0)
    live_through(desk)
    events = [request.json() for request in listener.received]
    assert set(listener.paths()) == {"/v2/enqueue"}
    assert {event["dedup_key"] for event in events} == {KEY}
    assert {event["routing_key"] for event in events} == {"R" * 32}
    actions = [event["event_action"] for event in events]
    assert actions == ["trigger", "trigger", "acknowledge", "resolve"]
    payload = events[0]["payload"]
    assert payload["severity"] == "critical"
    assert "decide: roll back" in payload["summary"]
    assert payload.keys() >= {"summary", "source", "severity", "timestamp"}
    assert "https://" not in payload["custom_details"]["text"]  # beside `links`
