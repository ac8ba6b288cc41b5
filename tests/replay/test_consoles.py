"""What training jobs print is read: the tools of the table, and names with numbers of any other."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from spikeguard_replay.console import pairs_in
from spikeguard_replay.patterns import CONSOLES, Printed
from spikeguard_replay.reading import read_log
from tests.replay.running import rows_in


def log_at(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", newline="")
    return path


@pytest.mark.parametrize("printed", CONSOLES, ids=[one.tool for one in CONSOLES])
def test_a_line_of_each_known_tool_says_what_it_means(printed: Printed, tmp_path: Path) -> None:
    log = read_log(log_at(tmp_path / "job.out", "some banner", printed.line))
    told: list[float | None] = [int(log.steps[-1]) if log.columns["step"] != "row" else None]
    for name in ("loss", "grad_norm", "lr"):
        series = log.signals.get(name)
        told.append(None if series is None else float(series.values[-1]))
    assert repr(told) == repr(list(printed.says))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step: 5 loss: 2.1", {"step": 5, "loss": 2.1}),
        ("step=5 loss=2.1e-3", {"step": 5, "loss": 2.1e-3}),
        ("step 5, train loss nan, lr 3e-4", {"step": 5, "train loss": math.nan, "lr": 3e-4}),
        ("Step 1,200 | Loss -inf", {"Step": 1200, "Loss": -math.inf}),
        ("| INFO it=7/900 loss=.5 (avg 0.6)", {"it": 7, "loss": 0.5, "avg": 0.6}),
        ("| loss 2.5 in 31.2ms", {"loss": 2.5, "in": 0.0312}),
        ("tokens: 1.5M, number of nan iterations:   0 |",
         {"tokens": 1.5e6, "number of nan iterations": 0}),
        ("loaded 25 of model v2.1", {"loaded": 25}),
    ],
)  # fmt: skip
def test_names_and_numbers_are_read_wherever_they_stand(line: str, found: dict[str, float]) -> None:
    said = pairs_in(line)
    assert repr(said) == repr({name: float(value) for name, value in found.items()})


def test_lines_of_several_ranks_are_told_apart(tmp_path: Path) -> None:
    """As torchrun and srun prefix them; the lowest rank is kept, a spike of another is not seen."""
    lines = [
        f"[rank{rank}]: step {step} loss {2.5 if rank == 0 else 9.0}"
        for step in range(1, 9)
        for rank in (3, 0, 1, 2)
    ]
    log = log_at(tmp_path / "a.log", *lines)
    assert rows_in(log) == [(step, {"loss": 2.5}) for step in range(1, 9)]
    assert "lines of 3 other ranks" in read_log(log).described()
    srun = [line.replace("[rank", "").replace("]:", ":") for line in lines]
    assert rows_in(log_at(tmp_path / "b.log", *srun)) == rows_in(log)


def test_a_number_before_a_colon_may_be_the_step(tmp_path: Path) -> None:
    log = log_at(tmp_path / "a.log", *(f"{step}: loss {2.5}" for step in range(10, 200, 10)))
    assert [step for step, _ in rows_in(log)] == [*range(10, 200, 10)]


def test_colours_and_progress_bars_hide_nothing(tmp_path: Path) -> None:
    """A bar is redrawn after a carriage return; every drawing is a row, one a step stays."""
    bars = "\r".join(
        f"\x1b[32mEpoch 0: {step}%|#  | {step}/100 [00:01<00:09, loss={3 - step / 100}]\x1b[0m"
        for step in (1, 1, 2, 3)
    )
    assert rows_in(log_at(tmp_path / "a.log", bars)) == [
        (1, {"loss": 2.99}), (2, {"loss": 2.98}), (3, {"loss": 2.97}),
    ]  # fmt: skip


def test_a_printed_dict_takes_its_step_from_the_bar_above_it(tmp_path: Path) -> None:
    lines = [
        text
        for step in range(10, 60, 10)
        for text in (
            f" {step}%|#   | {step}/100 [00:01<00:09]",
            f"{{'loss': {step}, 'epoch': 0.1}}",
        )
    ]
    assert rows_in(log_at(tmp_path / "a.log", *lines)) == [
        (step, {"loss": float(step)}) for step in range(10, 60, 10)
    ]


def test_a_record_over_several_lines_is_one_row(tmp_path: Path) -> None:
    lines = [
        text
        for step in (1, 2)
        for text in (f"INFO [step={step}/9,epoch=0]", "    train/CE loss=2.5", "    optim/LR=0.1")
    ]
    assert rows_in(log_at(tmp_path / "a.log", *lines)) == [
        (step, {"loss": 2.5, "lr": 0.1}) for step in (1, 2)
    ]


def test_what_deepspeed_skipped_so_far_becomes_the_steps_that_were_skipped(tmp_path: Path) -> None:
    skipped = (4, 4, 5, 5)
    lines = [
        f"[Rank 0] step={n * 10}, skipped={s}, lr=[0.1], loss=2.5" for n, s in enumerate(skipped)
    ]
    rows = rows_in(log_at(tmp_path / "a.log", *lines))
    assert [values["step_skipped"] for _, values in rows] == [0.0, 0.0, 1.0, 0.0]
    assert rows[0][1]["lr"] == 0.1


def test_json_among_other_lines_is_read(tmp_path: Path) -> None:
    lines = [f"INFO metrics {json.dumps({'step': n, 'train': {'loss': 2.5}})}" for n in range(3)]
    assert rows_in(log_at(tmp_path / "a.log", "start", *lines)) == [
        (n, {"loss": 2.5}) for n in range(3)
    ]
