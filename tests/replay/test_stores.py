"""TensorBoard, MLflow and W&B: what their files say is read, and what they cannot say is told."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
import torch
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from torch.utils.tensorboard import SummaryWriter

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.log import LogOptions
from spikeguard_replay.reading import logs_under
from tests.replay.running import rows_in, samples_in


@pytest.mark.parametrize("new_style", [False, True])
def test_what_torch_writes_for_tensorboard_is_read(tmp_path: Path, new_style: bool) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        for step, loss in enumerate((2.5, math.inf, 2.25), start=7):
            writer.add_scalar("train/loss", loss, step, new_style=new_style)
            writer.add_histogram("weights", torch.tensor([0.1, float(step)]), step)
            writer.add_text("note", "nothing to measure", step)
    steps = [(7, {"loss": 2.5}), (8, {"loss": math.inf}), (9, {"loss": 2.25})]
    assert rows_in(tmp_path) == steps


def written(folder: Path, *steps: int) -> Path:
    """An event file whose loss is the step, with a rate of 0.5."""
    with SummaryWriter(str(folder)) as writer:
        for step in steps:
            writer.add_scalar("loss", step, step)
            writer.add_scalar("lr", 0.5, step)
    (path,) = folder.glob("events.out.*")
    return path.rename(folder / f"{steps[0]}.tfevents.1")


def test_a_torn_tail_is_passed_over_and_damage_is_not(tmp_path: Path) -> None:
    path = written(tmp_path, 1, 2)
    whole = path.read_bytes()
    for cut in (1, 5, 11, 20):
        path.write_bytes(whole[:-cut])
        assert [one.values for one in samples_in(path)] == [{"loss": 1, "lr": 0.5}, {"loss": 2}]
    for at in (3, 9, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CommandFailed, match=r"record \d: .*the file is damaged"):
            samples_in(path)


def test_a_run_that_went_on_from_a_checkpoint_keeps_both_stretches(tmp_path: Path) -> None:
    for steps in ((1, 2, 3), (2, 3, 4)):
        written(tmp_path, *steps)
    samples = samples_in(tmp_path)
    assert [one.step for one in samples] == [1, 2, 3, 2, 3, 4]
    assert all(one.values == {"loss": one.step, "lr": 0.5} for one in samples)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1])
def test_a_bent_event_file_ends_in_one_line_that_names_the_record(
    tmp_path: Path, length: int
) -> None:
    path, head = written(tmp_path, 1), struct.pack("<Q", length)
    path.write_bytes(path.read_bytes() + head + struct.pack("<I", masked_crc32c(head)))
    with pytest.raises(CommandFailed, match=r"record 4: .*copy it again, or leave it out"):
        samples_in(path)


def mlflow_run(folder: Path) -> Path:
    """A run of a file store: a file a metric, a line `timestamp value step` a value."""
    (folder / "metrics" / "train").mkdir(parents=True)
    (folder / "meta.yaml").write_text("run_name: one\n")
    (folder / "metrics" / "train_loss").write_text("10 2.5 1\n20 nan 2\n30 2.0 3\n")
    (folder / "metrics" / "train" / "grad_norm").write_text("11 0.5 1\n21 inf 2\n")
    return folder


def test_a_run_of_mlflow_s_file_store_is_one_log(tmp_path: Path) -> None:
    run = mlflow_run(tmp_path / "mlruns" / "7" / "abc")
    (first, second, third) = samples_in(run)
    assert first.values == {"loss": 2.5, "grad_norm": 0.5}
    assert math.isnan(second.values["loss"])
    assert second.values["grad_norm"] == math.inf
    assert third.values == {"loss": 2.0}
    assert run in logs_under(tmp_path)
    assert not [path for path in logs_under(tmp_path) if run in path.parents]
    (run / "metrics" / "train_loss").write_text("10 2.5\n")
    with pytest.raises(CommandFailed, match=r"line 1: .* is not `timestamp value step`"):
        samples_in(run)


def test_one_run_of_mlflow_s_database_is_named_and_nan_is_nan(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute("create table runs (run_uuid, name, start_time)")
        store.execute("create table metrics (key, value, timestamp, run_uuid, step, is_nan)")
        store.executemany("insert into runs values (?, ?, ?)", [("a1", "one", 1), ("b2", "two", 2)])
        metric = "insert into metrics values (?, ?, ?, ?, ?, ?)"
        store.executemany(metric, [("loss", 9.0, 1, "a1", 1, 0), ("loss", 2.5, 1, "b2", 1, 0)])
        store.executemany(metric, [("loss", 0.0, 2, "b2", 2, 1)])
        store.execute(metric, ("loss", 1.7976931348623157e308, 3, "b2", 3, 0))
        store.commit()
    with pytest.raises(CommandFailed, match=r"2 runs: name one with --run NAME.*b2"):
        samples_in(path)
    first, second, third = samples_in(path, LogOptions(run="two"))
    assert first.values == {"loss": 2.5}
    assert math.isnan(second.values["loss"])
    assert third.values == {"loss": math.inf}


def test_one_run_of_trackio_s_database_is_read(tmp_path: Path) -> None:
    """A row a step, its metrics as JSON (trackio/sqlite_storage.py)."""
    path = tmp_path / "project.db"
    with closing(sqlite3.connect(path)) as store:
        store.execute(
            "create table metrics (id integer primary key, timestamp text, run_name text, "
            "step integer, metrics text)"
        )
        store.execute("create table configs (id integer primary key, run_name text, config text)")
        row = "insert into metrics (run_name, step, metrics) values (?, ?, ?)"
        metrics = ({"train": {"loss": 2.5}, "lr": 0.1}, {"train": {"loss": math.nan}})
        written = [("a", n, json.dumps(one)) for n, one in enumerate(metrics)]
        store.executemany(row, [*written, ("b", 0, '{"loss": 9}')])
        store.commit()
    first, second = samples_in(path, LogOptions(run="a"))
    assert (first.step, first.values) == (0, {"loss": 2.5, "lr": 0.1})
    assert math.isnan(second.values["loss"])
    with pytest.raises(CommandFailed, match=r"2 runs: name one with --run NAME"):
        samples_in(path)


def test_a_database_that_mlflow_did_not_make_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as store:
        store.executescript(
            "create table runs(run_uuid, name, start_time); insert into runs values('a', 'b', 1);"
            "create table metrics(key, value, is_nan, step, timestamp, run_uuid);"
            "insert into metrics values('loss', null, 0, 1, 1, 'a');"
        )
    with pytest.raises(CommandFailed, match="no database of MLflow or trackio"):
        samples_in(path)


def test_a_file_that_no_memory_holds_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "loss.csv"
    with path.open("wb") as file:
        file.truncate(2**41)
    with pytest.raises(CommandFailed, match="at most: cut the log"):
        samples_in(path)


PANEL = (
    '"Step","big - run-1 - train/loss","big - run-1 - train/loss__MIN",'
    '"big - run-1 - train/loss__MAX"\n"1","2.5","2.4","2.6"\n"2","","",""\n"3","NaN","1","9"\n'
)


def test_a_panel_of_w_and_b_is_read_without_its_extremes(tmp_path: Path) -> None:
    path = tmp_path / "wandb_export.csv"
    path.write_text(PANEL)
    first, third = samples_in(path)
    assert (first.step, first.values) == (1, {"loss": 2.5})
    assert math.isnan(third.values["loss"])


def test_of_a_panel_with_two_runs_one_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text('"Step","a - train/loss","b - _step","b - train/loss"\n1,2.5,,9\n')
    with pytest.raises(CommandFailed, match=r"2 runs: name one with --run NAME \(found a, b\)"):
        samples_in(path)
    assert rows_in(path, LogOptions(run="b")) == [(1, {"loss": 9.0})]


def test_the_binary_format_of_w_and_b_is_answered_with_the_way_to_export(tmp_path: Path) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(b":W&B\xe1\xbe\x00\x00")
    with pytest.raises(CommandFailed, match="scan_history"):
        samples_in(path)
