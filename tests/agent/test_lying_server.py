"""What a lying server can do to a job, and what the agent logs of it: one line a message."""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.http_server import Answer
from spikeguard.faults import Faults, log
from spikeguard_protocol import (
    Ack,
    Action,
    AttemptStarted,
    BatchRange,
    CheckpointNow,
    CommandResult,
    Medium,
    Message,
    ResultState,
    Rollback,
    ScaleLr,
    SkipBatches,
    Stop,
    Verb,
    Watch,
    encode,
)
from tests.hostile import HARMLESS, HOSTILE, acted_on

from .job import BRIEF, FAST, Job, batch_at, target_at
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow  # it waits for a server

FOR_GOOD = 2**53


def ordered(wire: Wire, job: Job, *actions: Action) -> list[CommandResult]:
    """What became of `actions` at the next step, as the server was told."""
    await_that(lambda: wire.messages)
    first = len(wire.orders) + 1
    commands = [wire.order(action, number) for number, action in enumerate(actions, first)]
    await_that(lambda: {each.command for each in job.guard.state().orders} >= set(commands))
    job.train_step()
    await_that(lambda: all(map(wire.result, commands)))
    return [result for command in commands if (result := wire.result(command)) is not None]


def answered(wire: Wire, job: Job, command: str) -> CommandResult:
    """The result of `command`, while the job trains on."""

    def look() -> CommandResult | None:
        job.train_step()
        return wire.result(command)

    found: CommandResult = await_that(look)
    return found


def test_each_limit_refuses_by_its_name_and_lets_through_what_it_allows(tmp_path: Path) -> None:
    limits = replace(
        FAST,
        snapshots=6,
        allowed_verbs=tuple(verb for verb in Verb if verb is not Verb.STOP),
        lr_factor_least=0.2,
        lr_steps_most=100,
        skip_batches_most=10,
        rollback_steps_most=40,
        rollbacks_a_day=1,
        orders_a_day=1,
    )
    far = BatchRange(900, 911)
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, settings=limits).train_to(50)
        old, near = (target_at(job, 10, Medium.MEMORY), target_at(job, 50, Medium.MEMORY))
        asked: list[tuple[Action, str]] = [
            (Stop(), "does not take stop (Settings.allowed_verbs: rollback, skip_batches, "),
            (ScaleLr(0.19, 10), "from 0.2 (Settings.lr_factor_least) to 1"),
            (ScaleLr(0.5, 101), "for 101 steps; this job takes at most 100 (Settings.lr_steps_m"),
            (SkipBatches(far), "leaves out 11 batches [900, 911); this job leaves out at most 10 "),
            (Rollback(near, 50, far), "Settings.skip_batches_most"),
            (Rollback(near, 50, None, 0.1, 10), "Settings.lr_factor_least"),
            (Rollback(near, 50, None, 0.5, FOR_GOOD), "Settings.lr_steps_most"),
            (Rollback(old, 10), "Settings.rollback_steps_most"),
            (ScaleLr(0.2, 100), ""),
            (ScaleLr(0.5, 10), "at most 1 (Settings.orders_a_day)"),
            (SkipBatches(BatchRange(900, 910)), ""),
            (Rollback(near, 50, BatchRange(60, 62), 0.2, 100), ""),
            (Rollback(near, 50), "1 orders to rollback were carried out in 24 hours"),
        ]
        results = ordered(wire, job, *(action for action, _ in asked))
        job.guard.finish()
        started = wire.records(AttemptStarted)[0]
    for (action, reason), result in zip(asked, results, strict=True):
        expected = ResultState.REFUSED if reason else ResultState.APPLIED
        assert (action, result.state) == (action, expected), result.reason
        assert reason in result.reason
    assert "stop" not in started.capabilities
    assert started.settings["rollback_steps_most"] == "40"
    assert started.settings["allowed_verbs"].startswith("rollback,skip_batches,scale_lr")


def test_the_days_rollbacks_are_counted_over_restarts(tmp_path: Path) -> None:
    limits = replace(FAST, rollbacks_a_day=2)
    results: list[CommandResult] = []
    with served(Wire()) as wire:
        for _ in range(3):
            wire.orders = []
            job = Job(tmp_path, server=wire.url, settings=limits)
            start = job.guard.resume()
            job.train_to(start + 25)
            await_that(lambda attempt=job.guard.attempt: attempt in wire.messages)  # type: ignore[misc]
            newest = target_at(job, job.guard.steps, Medium.DISK)
            number = len(results) + 1
            command = wire.order(Rollback(newest, job.guard.steps), number)
            results.append(answered(wire, job, command))
            job.guard.finish()
    assert [result.state for result in results] == ["applied", "applied", "refused"]
    assert "Settings.rollbacks_a_day" in results[-1].reason


def test_a_job_that_only_observes_carries_nothing_out_and_reports_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it measures still arrives, and an update that is not finite is still dropped."""
    monkeypatch.setenv("SPIKEGUARD_OBSERVE_ONLY", "1")
    data = [batch_at(number) for number in range(100)]
    data[4] *= math.nan
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, loader=data)
        assert job.guard.capabilities == ()
        job.train_to(12)
        results = ordered(wire, job, Watch(5), Stop(), CheckpointNow(), ScaleLr(0.5, 5))
        job.guard.finish()
        dropped = wire.column("update_dropped")
    assert {result.state for result in results} == {ResultState.REFUSED}
    assert all("only observes (Settings.observe_only" in result.reason for result in results)
    assert dropped[0, 5] == 1.0
    (started,) = wire.records(AttemptStarted)
    assert started.capabilities == ()
    answers = [started.settings[f"ability.{name}"] for name in ("scale_lr", "rollback", "clip")]
    assert answers == ["no", "no", "yes"]
    assert "observe_only" in started.settings["ability.scale_lr.reason"]


UNREADABLE: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("a factor that is no number", lambda a: {**a, "factor": "nan"}, "factor"),
    ("a factor that raises the rate", lambda a: {**a, "factor": 1.5}, "factor"),
    ("a negative factor", lambda a: {**a, "factor": -0.5}, "factor"),
    ("a truth for a number", lambda a: {**a, "steps": True}, "type int"),
    ("more steps than a number holds", lambda a: {**a, "steps": 2**53 + 1}, "2**53"),
    ("a verb of a newer release", lambda _: {"type": "RotateData", "by": 3}, "is one of"),
    (
        "a path for a target",
        lambda _: {"type": "Rollback", "target": "../../etc", "step": 1},
        "safe characters",
    ),
]


def test_an_order_that_cannot_be_read_is_refused_by_its_name_and_holds_up_no_message(
    tmp_path: Path,
) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url).train_to(2)
        await_that(lambda: wire.messages)
        bent = {wire.order(ScaleLr(0.5, 10), n): b for n, (_, b, _) in enumerate(UNREADABLE, 1)}
        sound = wire.order(Watch(3), 99)

        def bend(ack: bytes) -> bytes:
            plain = json.loads(ack)
            for order in plain["orders"]:
                if order["command"] in bent:
                    order["action"] = bent[order["command"]](order["action"])
            return json.dumps(plain).encode()

        wire.bend = bend
        results = [answered(wire, job, command) for command in bent]
        assert answered(wire, job, sound).state is ResultState.APPLIED
        steps = job.guard.steps
        job.guard.finish()
        assert set(wire.column("loss")) == {(0, step) for step in range(1, steps + 1)}
    for (name, _, reason), result in zip(UNREADABLE, results, strict=True):
        assert (name, result.state) == (name, ResultState.REFUSED)
        assert result.reason.startswith("this agent cannot read the order: "), name
        assert reason in result.reason, name
    assert job.guard.state().lr_scale is None


EACH_S = 0.2  # between two messages
LOOKED_S = 1.0
QUIET = replace(FAST, send_interval_s=EACH_S, backoff_s=EACH_S, flush_s=0.2)


def most(since: float) -> float:
    """Messages that may have been sent since then, with jitter."""
    return 2 * (time.monotonic() - since) / EACH_S + 5


HAMMERED: dict[str, Answer] = {
    "nothing is ever stored": (200, {}, encode(Ack(0))),
    "come back at once": (503, {"Retry-After": "0"}, b""),
    "come back at no time": (503, {"Retry-After": "nan"}, b""),
    "send from before the beginning": (409, {}, b'{"expected": -9007199254740993}'),
    "send from nowhere": (409, {}, b'{"expected": [1]}'),
    "brackets without end": (422, {}, b"[" * 100_000),
    "go elsewhere": (307, {"Location": "http://127.0.0.1:9/v1/messages"}, b""),
}


def test_no_answer_makes_the_agent_hammer(tmp_path: Path) -> None:
    """Each to an agent of its own, all at once. What an earlier attempt left waits too, and is sent
    without a pause where it is taken."""
    jobs: dict[str, tuple[Wire, Job]] = {}
    with ExitStack() as serving:
        for what, lie in HAMMERED.items():
            earlier = Job(tmp_path / what).train_to(3)
            earlier.guard.finish()
            wire = serving.enter_context(served(Wire()))
            wire.intercept = partial(answering, lie)
            jobs[what] = wire, Job(tmp_path / what, server=wire.url, settings=QUIET)
            jobs[what][1].train_to(3)
        for wire, _ in jobs.values():
            await_that(lambda: wire.received)  # noqa: B023
        before, began = {what: wire.received for what, (wire, _) in jobs.items()}, time.monotonic()
        time.sleep(LOOKED_S)
        for what, (wire, _) in jobs.items():
            assert wire.received - before[what] <= most(began), what
        for wire, job in jobs.values():
            wire.intercept = lambda _: None
            job.train_to(6)
            await_that(lambda: (0, 6) in wire.column("loss"))  # noqa: B023
            job.guard.finish()


def answering(lie: Answer, _: Message) -> Answer:
    return lie


Reply = Callable[[socket.socket], None]
START = b"HTTP/1.1 200 OK\r\n"


def drip_the_head(one: socket.socket) -> None:
    for byte in START + b"X-Slow: " + b"a" * 10_000:
        one.sendall(bytes([byte]))
        time.sleep(0.05)


def drip_the_body(one: socket.socket) -> None:
    one.sendall(START + b"Content-Length: 100000\r\n\r\n")
    for _ in range(10_000):
        one.sendall(b" ")
        time.sleep(0.05)


def go_on_for_ever(one: socket.socket) -> None:
    while True:
        one.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 500)


def answer_without_end(one: socket.socket) -> None:
    one.sendall(START + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        one.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")


class Replying:
    """Counts the connections of a raw server, and the bytes that it got rid of on each."""

    def __init__(self) -> None:
        self.connections = 0
        self.url = ""


@contextmanager
def replying(reply: Reply) -> Iterator[Replying]:
    """A server that answers each request by `reply`, as long as somebody listens."""
    seen, listener = Replying(), socket.create_server(("127.0.0.1", 0))
    seen.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve(one: socket.socket) -> None:
        with suppress(OSError), one:
            one.recv(65536)
            reply(one)

    def accept() -> None:
        with suppress(OSError):
            while True:
                one, _ = listener.accept()
                seen.connections += 1
                threading.Thread(target=serve, args=(one,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(120)


@pytest.mark.parametrize(
    "reply", [drip_the_head, drip_the_body, go_on_for_ever, answer_without_end]
)
def test_an_answer_that_does_not_end_is_given_up(tmp_path: Path, reply: Reply) -> None:
    """The next try goes out on a connection of its own, and the loop trains on."""
    settings = replace(BRIEF, timeout_s=0.2, backoff_s=0.05)
    with replying(reply) as server:
        job = Job(tmp_path, server=server.url, settings=settings).train_to(3)
        await_that(lambda: server.connections >= 3)
        job.guard.finish()
    assert job.guard.faults["server (back_off)"] >= 2


def test_what_a_server_asks_to_keep_is_bounded(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        wire.protected = tuple(f"checkpoint-{number}" for number in range(5_000))
        job = Job(tmp_path, server=wire.url).train_to(3)
        await_that(lambda: len(job.guard.state().protected) == 64)
        job.guard.finish()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_failed_is_told_on_one_line(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spikeguard"):
        Faults().note("the sender", text)
        Faults().note("the journal", OSError(text))
        log.warning("checkpoint %s was passed over at step %d: %s", text, 3, OSError(text))
    assert len(caplog.messages) == 3
    for message in caplog.messages:
        assert acted_on(message, keep="") == []
    assert "at step 3" in caplog.messages[2]


def test_every_script_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    for text in HARMLESS:
        Faults().note("the sender", text)
        assert text in caplog.messages[-1]
