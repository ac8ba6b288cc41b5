"""Each answer of a server has its consequence, and none of them reaches the loop."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import spikeguard.uplink.backlog
import spikeguard.uplink.sender
from benchmarks.agent_overhead_jobs import misbehaving
from benchmarks.http_server import Answer
from spikeguard.uplink.outbox import Outbox
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchRange,
    Gap,
    Message,
    RunId,
    Samples,
    SegmentReason,
    SegmentStarted,
    TargetSaved,
    Watch,
)

from .forks import exit_status, start_script
from .heard import parts_of
from .job import BRIEF, Job
from .test_journal import disk_full_at
from .wire import Wire, await_that, served

pytestmark = pytest.mark.slow  # it waits for a server


def error(**keys: object) -> bytes:
    return json.dumps({"error": {"code": "no", "message": "no", "remedy": ""}, **keys}).encode()


def refuse_first(times: int, answer: Answer) -> tuple[Wire, list[int]]:
    wire, left = Wire(), [times]

    def intercept(_: Message) -> Answer | None:
        left[0] -= 1
        return answer if left[0] >= 0 else None

    wire.intercept = intercept
    return wire, left


def train_behind(wire: Wire, folder: Path, steps: int = 30) -> Job:
    job = Job(folder, server=wire.url).train_to(steps)
    await_that(lambda: (0, steps) in wire.column("loss") or wire.records(Gap))
    job.guard.finish()
    return job


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}, b"<html>oops</html>"),
        (429, {"Retry-After": "0.05"}, error()),
        (503, {"Retry-After": "0"}, error()),
        (401, {}, error()),
        (400, {}, error(supported=[2])),
        (200, {}, b"\x00garbage"),
        (200, {}, b'{"sequence": "one"}'),
        (302, {"Location": "/elsewhere"}, b""),
        (409, {}, b"not even json"),
    ],
    ids=lambda answer: f"{answer[0]}",
)
def test_a_passing_refusal_delays_and_loses_nothing(
    tmp_path: Path, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which server, and what a job needs that brings no token it takes."""
    wire, _ = refuse_first(3, answer)
    drawn = random.getstate()
    with served(wire):
        train_behind(wire, tmp_path)
    assert random.getstate() == drawn  # what the job augments by
    assert f"message not stored: {wire.url}: {answer[0]}" in caplog.text
    assert ("token of role agent" in caplog.text) == (answer[0] == 401)
    if b"<html>" in answer[2]:  # of a proxy
        assert "500: Internal Server Error" in caplog.text
        assert "<html>" not in caplog.text
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, 31))
    assert not wire.records(Gap)


@pytest.mark.parametrize("status", [413, 422])
def test_a_final_refusal_becomes_a_gap_and_blocks_nothing(tmp_path: Path, status: int) -> None:
    wire = Wire()

    def intercept(message: Message) -> Answer | None:
        bad = any(isinstance(r, Samples) and 3 in r.steps for r in message.records)
        return (status, {}, error()) if bad else None

    wire.intercept = intercept
    with served(wire):
        job = train_behind(wire, tmp_path, 5)
    (gap,) = wire.records(Gap)
    assert gap.samples_lost >= 1
    assert any("server (give_up)" in place for place in job.guard.faults)
    assert isinstance(wire.history()[-1], AttemptEnded)


def test_a_server_that_forgot_gets_declared_gaps(tmp_path: Path) -> None:
    """The server lost its newest messages: they are declared, and the rest goes on."""
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url).train_to(10)
        await_that(lambda: len(next(iter(wire.messages.values()), [])) > 3)
        with wire._lock:
            del wire.messages[wire.attempt][2:]
        job.train_to(20)
        await_that(lambda: (0, 20) in wire.column("loss"))
        job.guard.finish()
        numbers = [m.sequence for m in wire.messages[wire.attempt]]
    assert numbers == sorted(set(numbers))
    assert wire.records(Gap)


def test_an_outage_is_caught_up_in_order_without_duplicates(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url).train_to(10)
        await_that(lambda: (0, 10) in wire.column("loss"))
        port = int(wire.url.rpartition(":")[2])
    job.train_to(60)
    assert (0, 60) not in wire.column("loss")
    with served(wire, port):
        await_that(lambda: (0, 60) in wire.column("loss"))
        job.guard.finish()
    steps = [step for record in wire.records(Samples) for step in record.steps]
    assert steps == list(range(1, 61))


def test_a_killed_job_loses_nothing_that_was_on_disk(tmp_path: Path) -> None:
    """Killed while the server is away; the next attempt sends the first one's messages too."""
    script = f"""
import time
from pathlib import Path
from tests.agent.heard import parts_of
from tests.agent.job import Job
from tests.agent.wire import await_that
job = Job(Path({str(tmp_path)!r}), server="http://127.0.0.1:9")
job.train_to(40)
await_that(lambda: not parts_of(job.guard).outbox._waiting)
print("ready", flush=True)
time.sleep(600)
"""
    said = tmp_path / "said.txt"
    process = start_script(script, said)
    await_that(lambda: said.exists() and "ready" in said.read_text())
    process.kill()
    assert exit_status(process) == -signal.SIGKILL
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        assert job.guard.resume() == 25
        job.train_to(30)
        await_that(lambda: len(wire.messages) == 2 and (0, 30) in wire.column("loss"))
        job.guard.finish()
        second = job.guard.attempt
        (first,) = wire.messages.keys() - {second}
        before, after = wire.records(Samples, first), wire.records(Samples, second)
        started = wire.records(AttemptStarted, second)[0]
        assert isinstance(wire.records(AttemptEnded, first)[-1], AttemptEnded)
    assert [step for r in before for step in r.steps] == list(range(1, 41))
    assert [step for r in after for step in r.steps] == list(range(26, 31))
    assert started.parent is not None
    assert (started.parent.segment.attempt, started.parent.step) == (first, 25)


def killed_before(folder: Path, attempt: str, steps: int = 5) -> None:
    """What a dead attempt left in the outbox of the job in `folder`."""
    run = RunId("default", "test")
    box = Outbox(folder / "guard/outbox" / attempt, run, attempt, 2**20)
    box.put(AttemptStarted(None, 1, (), "0.1.0"))
    box.put(SegmentStarted(0, SegmentReason.START, None, 0))
    for step in range(1, steps + 1):
        box.put(Samples(0, (step,), {"loss": (3.0,)}, (BatchRange(step - 1, step),)))
    box.close()


@pytest.mark.parametrize("status", [500, 404])
def test_a_dead_attempts_message_that_is_refused_for_ever_delays_no_message_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """It is left for the next start after a while; another dead attempt's arrive meanwhile."""
    monkeypatch.setattr(spikeguard.uplink.sender, "MOST_FAILURES", 5)
    refused, heard = "a" * 16, "b" * 16
    for attempt in (refused, heard):
        killed_before(tmp_path, attempt)
    wire, tries = Wire(), list[float]()

    def intercept(message: Message) -> Answer | None:
        if message.attempt != refused or not any(isinstance(r, Samples) for r in message.records):
            return None
        tries.append(time.monotonic())
        return status, {}, error()

    wire.intercept = intercept
    with served(wire):
        job = Job(tmp_path, server=wire.url).train_to(10)
        await_that(lambda: (0, 10) in wire.column("loss") and heard in wire.messages)
        assert refused not in wire.messages
        command = wire.order(Watch(5), attempt=job.guard.attempt)
        while wire.result(command) is None:
            job.train_step()
        await_that(lambda: len(tries) == 5)
        job.guard.finish()
        assert not wire.records(Gap)
        assert [each.name for each in (tmp_path / "guard/outbox").iterdir()] == [refused]
        wire.intercept = lambda _: None
        Job(tmp_path, server=wire.url).guard.finish()
        await_that(lambda: len(wire.records(Samples, refused)) == 1)
    assert len(tries) == 5


@contextmanager
def healthy() -> Iterator[str]:
    with served(Wire()) as wire:
        yield wire.url


@contextmanager
def with_a_full_disk() -> Iterator[str]:
    with disk_full_at(2_000), healthy() as url:
        yield url


BAD = ("absent", "hung", "500", "429", "garbage")
SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "healthy": healthy,
    "full disk": with_a_full_disk,
    **{kind: partial(misbehaving, kind) for kind in BAD},
}


@pytest.mark.parametrize("server", list(SERVERS))
def test_no_step_waits_for_the_server_whatever_it_does(tmp_path: Path, server: str) -> None:
    """The sender waits for an hour: for an answer that does not come, or for the next try."""
    others = set(threading.enumerate())
    patient = replace(BRIEF, timeout_s=3_600.0, backoff_s=3_600.0)
    with SERVERS[server]() as url:
        job = Job(tmp_path, server=url, settings=patient).train_to(120)
        job.guard.finish()

    def left() -> list[str]:
        started = set(threading.enumerate()) - others
        return [thread.name for thread in started if thread.name.startswith("spikeguard")]

    await_that(lambda: not left())


def test_a_disk_that_hangs_holds_up_no_step_and_loses_nothing(tmp_path: Path) -> None:
    """The writer's lock is held, as it is while a write hangs: the loop never asks for it."""
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        outbox = parts_of(job.guard).outbox
        assert outbox is not None
        with outbox._io:
            job.train_to(60)
        job.guard.finish()
        saved = [target.step for target in wire.records(TargetSaved)]
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, 61))
    assert {10, 20, 30, 40, 50, 60} <= set(saved)
