"""What training jobs print is read: the tools of the table, and names with numbers of any other."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spikeguard_replay.reading import read_log
from tests.replay.running import rows_in

DATA = tomllib.loads((Path(__file__).parent / "consoles.toml").read_text())
CONSOLES, PRINTED = DATA["console"], DATA["printed"]
FIELD = re.compile(r"«(\w+):?([^»]*)»")
ROWS, PER_EPOCH = 24, 10


def log_at(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", newline="")
    return path


@dataclass(frozen=True)
class Console:
    """A job's console, as `consoles.toml` describes it."""

    tool: str
    line: str
    seen: str = ""
    head: str = ""
    between: str = ""
    first: int = 10  # step of the first row
    every: int = 10  # steps between rows

    def values(self, row: int) -> dict[str, float]:
        """What the line of `row` (from 0) says."""
        return {
            "n": self.first + row * self.every,
            "i": row % PER_EPOCH + 1,
            "epoch": row // PER_EPOCH + 1,
            "loss": 3.5 - 0.0625 * row,
            "norm": 1.25 + 0.25 * (row % 5),
            "lr": 1e-4 * (row + 1),
        }

    def text(self) -> str:
        """The whole console."""
        lines = [self.head] if self.head else []
        for row in range(ROWS):
            lines.append(self._filled(self.line, row))
            if self.between and row % 4 == 3:
                lines.append(self._filled(self.between, row))
        return "\n".join(lines) + "\n"

    def _filled(self, line: str, row: int) -> str:
        values = self.values(row)
        return FIELD.sub(lambda field: format(values[field[1]], field[2]), line)

    def says(self, field: str) -> list[float] | None:
        """What must be read of a field; None for nothing."""
        if field not in {found[1] for found in FIELD.finditer(self.line)}:
            return None
        return [self.values(row)[field] for row in range(ROWS)]


@pytest.mark.parametrize("console", CONSOLES, ids=[one["tool"] for one in CONSOLES])
def test_the_console_of_each_tool_is_read_without_options(
    console: dict[str, Any], tmp_path: Path
) -> None:
    job = Console(**console)
    log = read_log(log_at(tmp_path / "job.out", job.text().rstrip("\n")))
    for ours, field in (("loss", "loss"), ("grad_norm", "norm"), ("lr", "lr")):
        series = log.signals.get(ours)
        found = None if series is None else series.values.tolist()
        says = job.says(field)
        wanted = None if says is None else pytest.approx(says, rel=0.02)
        assert found == wanted, (ours, log.described())
    steps = log.steps.tolist()
    if job.says("n") is None and job.says("i") is not None:  # counted on over epochs
        assert len(steps) == ROWS
        assert (log.steps[1:] > log.steps[:-1]).all()
        assert log.columns["step"] != "row"
    else:
        assert steps == (job.says("n") or [*range(1, ROWS + 1)]), log.described()


@pytest.mark.parametrize("printed", PRINTED, ids=[one["tool"] for one in PRINTED])
def test_a_line_of_each_known_tool_says_what_it_means(
    printed: dict[str, Any], tmp_path: Path
) -> None:
    log = read_log(log_at(tmp_path / "job.out", "some banner", printed["line"]))
    told: dict[str, float] = {}
    if log.columns["step"] != "row":
        told["step"] = int(log.steps[-1])
    signals = {name: float(one.values[-1]) for name, one in log.signals.items()}
    told |= {name: signals[name] for name in ("loss", "grad_norm", "lr") if name in signals}
    assert repr(told) == repr(printed["says"])


@pytest.mark.parametrize(
    "overflow",
    [
        "INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting "
        "loss scale to: 64.0",
        "| WARNING: overflow detected, setting loss scale to: 0.25",
        "[2023-06-07 22:16:00,018] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! "
        "Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 8192.0",
    ],
)
def test_an_overflow_between_two_steps_is_a_skipped_update(overflow: str, tmp_path: Path) -> None:
    lines = [f"step {n} loss {2.5 + n / 8}" for n in range(1, 7)]
    lines.insert(3, overflow)
    lines.append(overflow)
    rows = rows_in(log_at(tmp_path / "a.log", overflow, *lines))
    assert [values["step_skipped"] for _, values in rows] == [0, 0, 0, 1, 0, 0]


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


BARS = "\r".join(  # drawn anew after each carriage return: every one is a row, one a step stays
    f"\x1b[32mEpoch 0: {step}%|#  | {step}/100 [00:01<00:09, loss={3 - step / 100}]\x1b[0m"
    for step in (1, 1, 2, 3)
)
DICT = " {n}%|#   | {n}/100 [00:01<00:09]\n{{'loss': {n}, 'epoch': 0.1}}"
RECORD = "INFO [step={n}/9,epoch=0]\n    train/CE loss=2.5\n    optim/LR=0.1"
TENS = range(10, 200, 10)
Rows = list[tuple[int, dict[str, float]]]
READ: dict[str, tuple[list[str], Rows]] = {
    "a number before a colon": (
        [f"{n}: loss 2.5" for n in TENS],
        [(n, {"loss": 2.5}) for n in TENS],
    ),
    "colours and bars": ([BARS], [(n, {"loss": 3 - n / 100}) for n in (1, 2, 3)]),
    "a dict below a bar": (
        [DICT.format(n=n) for n in TENS],
        [(n, {"loss": float(n)}) for n in TENS],
    ),
    "a record over several lines": (
        [RECORD.format(n=n) for n in (1, 2)],
        [(n, {"loss": 2.5, "lr": 0.1}) for n in (1, 2)],
    ),
    "lines that a logger prints twice": (
        [f"{name} loss={3 - n / 16}" for n in range(1, 25) for name in ("10:00 INFO", "INFO:a")],
        [(n, {"loss": 3 - n / 16}) for n in range(1, 25)],
    ),
    "records that LLaMA-Factory prints again in another rounding": (
        [f"{{'loss': {loss}}}" for n in TENS for loss in (n / 7, round(n / 7, 3))],
        [(n // 10, {"loss": n / 7}) for n in TENS],
    ),
    "JSON among other lines": (
        ["start", *(f'INFO metrics {{"step": {n}, "train": {{"loss": 2.5}}}}' for n in range(3))],
        [(n, {"loss": 2.5}) for n in range(3)],
    ),
}


@pytest.mark.parametrize(("lines", "rows"), READ.values(), ids=READ)
def test_rows_are_read_however_a_console_shows_them(
    lines: list[str], rows: Rows, tmp_path: Path
) -> None:
    assert rows_in(log_at(tmp_path / "a.log", *lines)) == rows


def test_what_deepspeed_skipped_so_far_becomes_the_share_of_steps_skipped(tmp_path: Path) -> None:
    """A row of ten steps of which one was skipped is no update that was dropped."""
    skipped = (4, 4, 5, 5)
    lines = [
        f"[Rank 0] step={n * 10}, skipped={s}, lr=[0.1], loss=2.5" for n, s in enumerate(skipped)
    ]
    rows = rows_in(log_at(tmp_path / "a.log", *lines))
    assert [values["step_skipped"] for _, values in rows] == [0.0, 0.0, 0.1, 0.0]
    assert rows[0][1]["lr"] == 0.1
