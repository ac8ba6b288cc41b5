"""A run without a server: all of it on disk, uploaded later, once."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from spikeguard import Guard
from spikeguard.cli.sync import homes, run_of, sync, upload
from spikeguard.uplink.opening import earlier_outboxes
from spikeguard.uplink.transport import Transport
from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import AttemptEnded, AttemptStarted, Gap, RunId, Samples
from spikeguard_replay.reading import read_log
from tests.agent.job import Job
from tests.agent.wire import Wire, served

RUN = RunId("default", "test")


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with served(Wire()) as wire:
        monkeypatch.setenv("SPIKEGUARD_CREDENTIALS", "nobody.json")
        yield wire


def trained_offline(folder: Path, steps: int = 30) -> Guard:
    job = Job(folder)
    job.train_to(steps)
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
    job = Job(tmp_path)
    job.train_to(5)
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
