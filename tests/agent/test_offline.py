"""Without a server: the job's own watch, and what is uploaded or read later."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spikeguard import Guard
from spikeguard.cli.sync import homes, run_of, sync, upload
from spikeguard.loop.local_watch import LocalWatch
from spikeguard.uplink.outbox import earlier_outboxes
from spikeguard.uplink.transport import Transport
from spikeguard_cli.command import CommandFailed
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_protocol import (
    AttemptEnded,
    AttemptStarted,
    BatchRange,
    Gap,
    Medium,
    RunId,
    Samples,
    SegmentId,
    TargetSaved,
)
from spikeguard_replay.reading import read_log
from tests.agent.job import FAST, Job
from tests.agent.wire import Wire, served

from .wire import await_that

pytestmark = pytest.mark.slow  # it waits for threads

RUN = RunId("default", "test")


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with served(Wire()) as wire:
        monkeypatch.setenv("SPIKEGUARD_CREDENTIALS", "nobody.json")
        yield wire


def trained_offline(folder: Path, steps: int = 30) -> Guard:
    job = Job(folder).train_to(steps)
    job.guard.finish()
    return job.guard


def asked(directory: Path) -> Namespace:
    return Namespace(directory=str(directory), server=None, token_file=None, json=False)


def aim(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> None:
    monkeypatch.setenv("SPIKEGUARD_SERVER", wire.url)
    monkeypatch.setenv("SPIKEGUARD_TOKEN", "any")


def test_what_an_offline_run_said_arrives_whole_when_it_is_synced(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = trained_offline(tmp_path)
    aim(monkeypatch, wire)
    assert sync(asked(tmp_path)) == 0
    assert wire.attempt == guard.attempt
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, 31))
    assert len(wire.records(AttemptStarted)) == 2  # and what the first snapshot took
    assert wire.records(AttemptEnded) == [AttemptEnded("finished")]


@pytest.mark.parametrize("given", ["guard", "guard/outbox", "guard/outbox/*/*.jsonl"])
def test_what_an_offline_run_measured_is_read_by_replay(tmp_path: Path, given: str) -> None:
    """A second attempt begins anew: its steps follow those of the first."""
    trained_offline(tmp_path, 30)
    (path,) = tmp_path.glob(given)
    log = read_log(path)
    assert log.steps.tolist() == list(range(1, 31))
    loss = log.signals["loss"]
    assert loss.measured.all()
    assert (loss.values > 0).all()
    trained_offline(tmp_path, 20)
    assert read_log(tmp_path / "guard").steps.tolist() == [*range(1, 31), *range(1, 21)]


def test_what_was_damaged_on_disk_is_told_by_replay_and_declared_to_the_server(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit changed, and the last bytes gone."""
    trained_offline(tmp_path, 30)
    (segment,) = tmp_path.glob("guard/outbox/*/*.jsonl")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data[:-5])
    log = read_log(tmp_path / "guard")
    assert 20 < len(log) < 30
    assert "damaged bytes left out" in log.described()
    aim(monkeypatch, wire)
    assert sync(asked(tmp_path)) == 0
    gaps = wire.records(Gap)
    assert any("damaged on disk" in gap.reason for gap in gaps)
    lost = sum(gap.samples_lost for gap in gaps)
    assert len(wire.column("loss")) + lost == 30 > lost > 0


def test_a_sync_cut_off_after_the_server_stored_goes_on_without_a_duplicate(
    tmp_path: Path, wire: Wire
) -> None:
    """The answer is lost: the message is still on disk and is sent a second time."""
    trained_offline(tmp_path)
    (outbox,) = earlier_outboxes(tmp_path / "guard/outbox", RUN)
    message = outbox.next_message()
    assert message is not None
    transport = Transport(wire.url, None, 2.0)
    transport.send(message)
    outbox.close()

    (again,) = earlier_outboxes(tmp_path / "guard/outbox", RUN)
    upload(again, transport, lambda _: None)
    again.close()
    steps = [step for samples in wire.records(Samples) for step in samples.steps]
    assert steps == list(range(1, 31))


def test_a_server_that_stays_away_leaves_everything_on_disk(tmp_path: Path, wire: Wire) -> None:
    trained_offline(tmp_path)
    wire.intercept = lambda _: (503, {"Retry-After": "0.01"}, b"{}")
    (outbox,) = earlier_outboxes(tmp_path / "guard/outbox", RUN)
    with pytest.raises(CommandFailed, match="run it again to go on"):
        upload(outbox, Transport(wire.url, None, 2.0), lambda _: None, pause_s=0.01)
    outbox.close()
    (kept,) = earlier_outboxes(tmp_path / "guard/outbox", RUN)
    assert kept.sequence == outbox.sequence
    kept.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [(None, "Connection refused"), ((401, {}, b"{}"), "SPIKEGUARD_TOKEN")],
    ids=["nobody listens", "no token"],
)
def test_a_sync_that_ends_early_names_the_token_only_where_that_is_the_reason(
    tmp_path: Path, wire: Wire, answer: tuple[int, dict[str, str], bytes] | None, said: str
) -> None:
    trained_offline(tmp_path)
    wire.intercept = lambda _: answer
    (outbox,) = earlier_outboxes(tmp_path / "guard/outbox", RUN)
    server = wire.url if answer else "http://127.0.0.1:9"
    with pytest.raises(CommandFailed) as failed:
        upload(outbox, Transport(server, None, 2.0), lambda _: None, pause_s=0.01)
    outbox.close()
    assert said in str(failed.value)
    assert ("token" in str(failed.value).lower()) == (answer is not None)


def test_an_attempt_that_still_runs_is_left_alone(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path).train_to(5)
    aim(monkeypatch, wire)
    sync(asked(tmp_path))
    assert wire.received == 0
    assert job.guard.attempt in capsys.readouterr().out
    job.guard.finish()


def test_a_directory_that_holds_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="journal"):
        homes(tmp_path)
    with pytest.raises(CommandFailed, match="no directory"):
        homes(tmp_path / "absent")
    (tmp_path / "journal.jsonl").write_text("not json\n")
    with pytest.raises(CommandFailed, match="name of its run"):
        run_of(tmp_path)


def test_without_a_server_to_sync_to_it_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPIKEGUARD_SERVER", raising=False)
    with pytest.raises(CommandFailed, match="SPIKEGUARD_SERVER"):
        sync(asked(tmp_path))


ONSET = 151
SEGMENT = SegmentId("a" * 16, 0)
ALONE = replace(FAST, watch_alone=True)


def raise_the_rate(job: Job) -> None:
    if ONSET <= job.guard.steps + 1 < ONSET + 6:
        for group in job.optimizer.param_groups:
            group["lr"] = 1.0


def spiked(folder: Path, steps: int = 200, **attaching: object) -> Job:
    job = Job(folder, **{"settings": ALONE, **attaching})  # type: ignore[arg-type]
    job.spoil = raise_the_rate
    job.train_to(steps)
    return job


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines about spikes, in order."""
    words = ("spike", "  cause", "  at step")
    return [text for r in caplog.records if (text := r.getMessage()).startswith(words)]


def wait_for(caplog: pytest.LogCaptureFixture, part: str) -> None:
    await_that(lambda: any(part in line for line in told(caplog)))


def test_a_spike_is_told_with_its_kind_its_cause_and_what_would_be_proposed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = spiked(tmp_path)
    wait_for(caplog, "it would propose: roll back to step")
    job.guard.finish()
    first, cause, *_ = told(caplog)
    assert first.startswith(f"spike #1 of this attempt, since step {ONSET + 1}, seen at ")
    assert " in loss: " in first
    assert cause.startswith("  cause: learning rate too high (99%): the learning rate rose ")


def test_rows_that_come_at_once_are_told_step_by_step_with_one_figure_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.02, 600)
    losses = 2.0 + 9.0 * (np.arange(600) + 3.0) ** -0.3 + noise
    losses[400:] += 0.02 * np.arange(200)  # it climbs
    watch = LocalWatch(SEGMENT, [TargetSaved("step-300", 0, 300, 300, Medium.DISK)])
    for step, loss in enumerate(losses.tolist(), start=1):
        watch.put(Samples(0, (step,), {"loss": (loss,)}, (BatchRange(step - 1, step),)))
    wait_for(caplog, "it would propose: roll back to step 300")
    watch.close()
    (rollback,) = (line for line in told(caplog) if "propose: roll back" in line)
    at = rollback.removeprefix("  at step ").split()[0]
    (named,) = (line for line in told(caplog) if f"by step {at}: divergent" in line)
    sure = named.partition("(")[2].partition(")")[0]
    assert f"Divergent ({sure})." in rollback


def test_a_calm_run_is_told_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path, settings=ALONE).train_to(200)
    watch = job.guard._reporter._watch
    assert watch is not None
    assert watch._thread is not None
    job.guard.finish()
    watch._thread.join(120)  # it has judged every row
    assert told(caplog) == []


def test_with_a_server_the_server_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(Wire()) as wire:
        monkeypatch.setenv("SPIKEGUARD_SERVER", wire.url)
        monkeypatch.setenv("SPIKEGUARD_TOKEN", "any")
        spiked(tmp_path).guard.finish()
    assert told(caplog) == []


def test_its_failure_is_told_and_reaches_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("of a detector")

    monkeypatch.setattr(Monitor, "observe", fails)
    job = Job(tmp_path, settings=ALONE).train_to(20)
    wait_for(caplog, "spikes are no longer looked for: ZeroDivisionError: of a detector")
    job.train_to(25)
    job.guard.finish()
    assert job.guard.steps == 25
