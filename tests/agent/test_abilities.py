"""What can be done in a job is said in its log and to the server, and again when it changes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from spikeguard import Guard, attach
from spikeguard.loop.capabilities import WIDTH, no, table_of, yes
from spikeguard_protocol import Ability, Answer, AttemptStarted, abilities_from_settings

from .job import FAST, Job
from .wire import Wire, await_that, served

TABLE = "what can be done in this job:"


def told(guard: Guard) -> dict[str, str]:
    return {ability.name: ability.answer.value for ability in guard._p.abilities}


def tables(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message.startswith(TABLE)]


def stood(wire: Wire) -> dict[str, Ability]:
    """What the server was told last."""
    newest = wire.records(AttemptStarted)[-1]
    return {ability.name: ability for ability in abilities_from_settings(newest.settings)}


def test_attach_ends_with_one_table_and_the_loop_fills_it_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "spikeguard"):
        job = Job(tmp_path)
        (table,) = tables(caplog)
        assert table is caplog.records[-1]
        assert table.levelno == logging.INFO  # nothing that somebody has to do
        for name in ("skip update", "clip", "scale lr", "rollback", "rewind from memory"):
            assert f"\n  {name} " in table.message
        assert told(job.guard)["rollback"] == "not known yet"
        job.train_to(2)
    rows = told(job.guard)
    assert rows.pop("restore_all") == "not known yet"  # of Ema, which is no class of torch's
    assert set(rows.values()) == {"yes"}
    assert len(tables(caplog)) == 1
    assert any(
        record.message.startswith("rollback: yes. to snapshots") for record in caplog.records
    )
    job.guard.finish()


def test_what_needs_a_hand_makes_the_table_a_warning_with_its_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spikeguard"):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters())
        guard = attach(model, optimizer, run="test", directory=tmp_path, settings=FAST)
    (table,) = tables(caplog)
    said = " ".join(table.message.split())
    assert "skip update no LBFGS takes no found_inf" in said
    assert "do with fused=True" in said
    guard.finish()


def test_what_was_asked_for_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(FAST, snapshot_every=0, drop_non_finite=False)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        job = Job(tmp_path, settings=settings)
        job.train_to(2)
    assert not tables(caplog)
    answers = told(job.guard)
    assert (answers["skip_update"], answers["rewind_from_memory"]) == ("no", "no")
    assert answers["rollback"] == "yes"  # to a checkpoint
    job.guard.finish()


def test_the_server_is_told_with_the_introduction(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        settings = replace(FAST, snapshot_bytes=1)
        job = Job(tmp_path, server=wire.url, token="t", settings=settings)
        job.train_to(2)
        await_that(lambda: wire.records(AttemptStarted))
        rows = stood(wire)
        assert rows["rollback"].answer is Answer.YES
        assert rows["rollback"].cost == "the steps since then are trained again"
        assert rows["rewind_from_memory"].remedy.startswith("Raise it")
        assert wire.records(AttemptStarted)[-1].settings["optimizer"] == "AdamW"
        job.guard.finish()


def test_an_optimizer_without_a_rate_is_not_offered_a_lower_one(tmp_path: Path) -> None:
    class Rateless(torch.optim.Optimizer):
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            super().__init__(parameters, {})

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            del closure

    model = nn.Linear(4, 4)
    guard = attach(model, Rateless(list(model.parameters())), run="test", directory=tmp_path)
    (row,) = [each for each in guard._p.abilities if each.name == "scale_lr"]
    assert row.answer is Answer.NO
    assert "no learning rate" in row.reason
    guard.finish()


def test_the_table_is_aligned_and_its_lines_are_short() -> None:
    rows = (yes("clip"), no("rewind_from_memory", "because " * 39 + "because", "Do this"))
    lines = table_of(rows).splitlines()
    assert lines[0] == "  clip                yes"
    assert lines[1].startswith("  rewind from memory  no   because because")
    assert all(line.startswith(" " * 27 + "because") for line in lines[2:])
    assert len(lines) > 3
    assert max(map(len, lines)) <= WIDTH
    assert lines[-1].endswith("Do this")
