"""What a channel may reach, and what it costs the others where it does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from prometheus_client import CollectorRegistry

from spikeguard_core.notification.delivery import GIVE_UP_AFTER
from spikeguard_server.metrics import Fleet, Metrics
from spikeguard_server.notify import wire
from spikeguard_server.notify.kinds import carry
from spikeguard_server.notify.notifier import OF_A_PROJECT, Notifier, send_test
from spikeguard_server.notify.wire import DeliveryFailed, check_address, post_json, resolve
from spikeguard_server.settings import networks_of
from spikeguard_server.store.reads.fleet import read_fleet
from tests.server.notify.conftest import Desk, channel_of
from tests.server.notify.listener import Listener, listening
from tests.server.notify.test_hostile_text import message
from tests.server.store.jobs import execute, value

MANY = 210  # conversations of one channel, more than are handed out at a time


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """What channels lead to that do not answer, for as long as a test may take."""
    monkeypatch.setattr(wire, "ANSWER_S", 3_600.0)
    with listening() as found:
        found.free.clear()
        yield found


@contextmanager
def notifying(desk: Desk, hanging: Listener | None = None) -> Iterator[Notifier]:
    notifier = replace(desk, settings=replace(desk.settings, notify_every_s=0.02)).notifier
    notifier.start()
    try:
        yield notifier
    finally:
        if hanging is not None:
            hanging.free.set()
        notifier.stop()


def test_a_notifier_stops_however_many_channels_hang(desk: Desk, dead: Listener) -> None:
    for number in range(OF_A_PROJECT):
        desk.webhook(dead, f"dead-{number}")
    with notifying(desk, dead) as notifier:
        dead.wait_for(lambda told: len(told) == OF_A_PROJECT)
        notifier.stop()
        assert not notifier.alive


def tell_much(desk: Desk, channel: str, many: int) -> None:
    """So many more incidents of which the channel was to be told an hour ago."""
    execute(
        desk.engine,
        f"""insert into incidents select (jsonb_populate_record(i, jsonb_build_object(
        'number', 1000 + n, 'state', 'closed', 'outcome', 'level_accepted'))).*
        from incidents i, generate_series(1, {many}) n""",
        f"""insert into conversations select (jsonb_populate_record(c, jsonb_build_object(
        'incident', 1000 + n, 'due_at', now() - interval '1 hour'))).*
        from conversations c, generate_series(1, {many}) n where channel = '{channel}'""",
    )


def test_a_channel_with_much_to_tell_takes_no_other_ones_turn(
    desk: Desk, dead: Listener, listener: Listener
) -> None:
    desk.webhook(dead, "dead")
    desk.webhook(listener, "pager")
    assert len(desk.due()) == 2
    tell_much(desk, "dead", MANY)
    assert {key.channel for key in desk.due()} == {"dead", "pager"}
    with notifying(desk, dead):
        listener.wait_for(bool)


def test_a_message_that_fails_for_what_it_says_keeps_no_other_of_its_channel_waiting(
    desk: Desk, listener: Listener
) -> None:
    """Though it was due first, and is tried until it is given up."""
    desk.webhook(listener, "pager")
    listener.bad = '"spikeguard/default/gpt#1"'
    tell_much(desk, "pager", 3)
    execute(
        desk.engine,
        "update conversations set due_at = now() - interval '2 hours' where incident = 1",
    )
    for _ in range(2):
        desk.later(6)
        desk.tell()
    sent = "select count(*) from deliveries where result = 'sent'"
    assert value(desk.engine, sent) == 3
    for _ in range(12):
        desk.later(1000)
        desk.tell()
    assert desk.results().count("failed") == GIVE_UP_AFTER - 1
    assert desk.results().count("given_up") == 1


def fleet(desk: Desk) -> Fleet:
    with desk.engine.connect() as connection:
        return read_fleet(connection)


def counted(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["kind"], sample.labels["result"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "spikeguard_notifications_total" and sample.value
    }


def test_a_message_that_is_given_up_counts_as_failing_until_something_arrives(
    desk: Desk, listener: Listener
) -> None:
    metrics = Metrics(CollectorRegistry())
    desk.count = metrics.count_notice
    desk.webhook(listener)
    listener.answers.append((401, {}))
    desk.tell()
    assert counted(metrics) == {("webhook", "given_up"): 1}
    desk.later(100_000)
    desk.tell()
    assert fleet(desk).failing == {"webhook": 1}
    send_test(desk.engine, desk.settings, "default", "oncall", "Ada")
    assert fleet(desk).failing == {}


LOCAL = networks_of("127.0.0.0/8")
PRIVATE = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1",
    "fec0::1", "168.63.129.16", "::ffff:168.63.129.16", "192.0.0.192", "192.0.0.9", "192.0.0.10",
    "64:ff9b:1::a9fe:a9fe", "192.88.99.1", "2002:a83f:8110::", "::ffff:10.0.0.1",
    "64:ff9b::a9fe:a9fe", "2002:101:101::", "2001:0:101:101::", "::", "fe80::1%eth0",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    """However it is written: the cloud's metadata service answers under several names."""
    with pytest.raises(DeliveryFailed):
        check_address(address, ())


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_a_public_address_is_good(address: str) -> None:
    assert check_address(address, ()) is False


def test_an_operator_allows_a_network_and_no_other() -> None:
    assert check_address("127.0.0.1", LOCAL)
    assert check_address("::ffff:127.0.0.1", LOCAL)
    with pytest.raises(DeliveryFailed, match="SPIKEGUARD_NOTIFY_NETWORKS"):
        check_address("10.0.0.1", LOCAL)


def test_a_name_is_judged_by_every_address_that_it_has() -> None:
    addresses, allowed = resolve("localhost", 80, networks_of("127.0.0.0/8,::1/128"))
    assert allowed
    assert "127.0.0.1" in addresses
    with pytest.raises(DeliveryFailed):
        resolve("localhost", 80, ())


def test_where_the_first_address_does_not_answer_the_next_is_tried(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a name with broken IPv6."""
    port = int(listener.url.rpartition(":")[2])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", port)) for n in (9, 1)]
    real = socket.getaddrinfo

    def lookup(host: object, *rest: object, **more: object) -> object:
        return found if host == "two.example" else real(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    post_json(f"http://two.example:{port}/hook", {"a": 1}, LOCAL)
    assert [request.json() for request in listener.received] == [{"a": 1}]
    assert listener.received[0].headers["Host"] == f"two.example:{port}"


def test_nothing_is_sent_to_a_private_address(listener: Listener) -> None:
    with pytest.raises(DeliveryFailed, match="no public address") as refused:
        post_json(listener.url, {}, ())
    assert refused.value.again  # another replica may have other settings
    assert listener.received == []


def test_a_redirect_is_not_followed(listener: Listener) -> None:
    listener.answers = [(307, {"Location": "http://169.254.169.254/"})]
    with pytest.raises(DeliveryFailed, match="answered 307"):
        post_json(listener.url, {}, LOCAL)
    assert len(listener.received) == 1


@contextmanager
def dripping(begins: bytes) -> Iterator[str]:
    """What answers so, and then byte by byte."""

    def drip(place: socket.socket) -> None:
        connection, _ = place.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(begins)
            while True:
                connection.sendall(b"a")
                sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = Thread(target=drip, args=(place,))
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        thread.join(120)


@pytest.mark.parametrize("begins", [b"HTTP/1.1 200 OK\r\nX: ", b"H"])
def test_an_answer_that_drips_ends_at_its_deadline_unless_its_head_is_whole(
    begins: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few channels like that would hold what carries everybody's messages."""
    monkeypatch.setattr(wire, "ANSWER_S", 0.5)
    with dripping(begins) as url, pytest.raises(DeliveryFailed, match="timed out") as failed:
        post_json(url, {}, LOCAL)
    assert failed.value.again
    with dripping(b"HTTP/1.1 200 OK\r\n\r\n") as url:
        post_json(url, {}, LOCAL)


def apprise(url: str, networks: str = "127.0.0.0/8") -> str:
    """What became of a message by Apprise: empty, or why it was not sent."""
    wanted = channel_of("apprise", target={"url": url})
    try:
        carry(wanted, message("a word"), networks_of(networks))
    except DeliveryFailed as failure:
        return failure.reason
    return ""


def test_apprise_reaches_allowed_addresses_only(listener: Listener) -> None:
    host = listener.url.removeprefix("http://")
    assert apprise(f"json://{host}/hook") == ""
    assert "a word" in listener.received[0].json()["message"]
    mail = f"mailto://{host}?from=a@example.org&to=b@example.org"
    through = "mailto://u:p@example.org?smtp=127.0.0.1&to=b@example.org"
    for url in (f"json://{host}/hook", mail, through):
        assert "SPIKEGUARD_NOTIFY_NETWORKS" in apprise(url, networks="")
    assert len(listener.received) == 1


def test_apprise_follows_no_redirect(listener: Listener) -> None:
    """Also where the channel's own address asks for it: the other place would get the key."""
    host = listener.url.removeprefix("http://")
    for query in ("", "?redirect=yes"):
        listener.received.clear()
        listener.answers = [(307, {"Location": f"{listener.url}/elsewhere"})]
        assert apprise(f"json://{host}/hook{query}") == "the service did not take it"
        assert [request.path for request in listener.received] == ["/hook"]


def test_apprise_reads_no_file_and_tells_no_program_of_this_machine(
    listener: Listener, tmp_path: Path
) -> None:
    """A template is a file that a url may name: it could be any file of the server's."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"text": "hidden"}')
    host = listener.url.removeprefix("http://")
    refused = "Apprise does not understand the channel's url"
    assert apprise(f"workflows://{host}/workflow/signature/?template={secret}") == refused
    assert not any(b"hidden" in request.body for request in listener.received)
    assert apprise("syslog://") == refused
