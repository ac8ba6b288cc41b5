"""Logs define their columns differently: a clue that calm rows contradict counts for nothing, and
the log's units are questioned aloud."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_protocol import Kind
from spikeguard_replay.commands import REPLAY
from spikeguard_replay.judging import judge
from spikeguard_replay.reading import read_log
from tests.domain.detection.test_causes import corrupted
from tests.replay.running import run

ONSET, ROWS = 301, 360
Row = dict[str, float]
Change = Callable[[int], Mapping[str, float]]


def calm(step: int) -> Row:
    """Updates move the weights by 0.09 at a rate of 0.003, and their norm by 0.01."""
    noise = 1 + 0.05 * np.random.default_rng(step).normal(size=4)
    return {
        "loss": 3.0 - 0.1 * math.log(step) + 0.4 * float(noise[2] - 1),
        "grad_norm": float(noise[0]),
        "update_norm": 30.0 * float(noise[1]),
        "adam_v_norm": 0.02,
        "param_norm": 50.0 + 0.01 * step,
        "lr": 3e-3,
        "loss_sequence_max": 3.9 + 2.0 * float(noise[3] - 1),
        "unseen_tokens": 0.0,
    }


@pytest.fixture
def blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, dict[str, Any], str]]:
    """What a log's incident is put down to, its ranking by cause, and the listing for people."""

    def found(change: Change, convert: Callable[[Row], Row]) -> tuple[str, dict[str, Any], str]:
        rows = [convert(calm(step) | dict(change(step))) for step in range(1, ROWS + 1)]
        lines = [f"{step}," + ",".join(map(repr, row.values())) for step, row in enumerate(rows, 1)]
        file = tmp_path / "run.csv"
        file.write_text("\n".join([f"step,{','.join(rows[0])}", *lines]) + "\n")
        run(REPLAY, str(file), "--json")
        causes = json.loads(capsys.readouterr().out)["incidents"][0]["causes"]
        run(REPLAY, str(file))
        ranking = {one["cause"]: one for one in causes}
        return causes[0]["cause"], ranking, capsys.readouterr().out

    return found


def per_rate(row: Row) -> Row:
    return row


def not_per_rate(row: Row) -> Row:
    """As most programs define it: the change of the weights itself."""
    return row | {"update_norm": row["update_norm"] * row["lr"]}


def relative(row: Row) -> Row:
    """The change of the weights over their norm."""
    changed = row["update_norm"] * row["lr"] / row["param_norm"]
    return row | {"update_norm": changed}


def raised(step: int) -> Mapping[str, float]:
    """The rate rises tenfold at step 299, the weights follow, the loss two steps later."""
    if step < 299:
        return {}
    moved = {"lr": 3e-2, "param_norm": 52.99 + 0.1 * (step - 298)}
    return moved | ({"loss": 3.0 + 0.4 * (step - ONSET), "grad_norm": 4.0} if step > 300 else {})


@pytest.mark.parametrize("convert", [per_rate, not_per_rate, relative])
def test_a_raised_rate_is_blamed_however_the_log_defines_its_updates(
    convert: Callable[[Row], Row], blamed: Any
) -> None:
    cause, ranking, text = blamed(raised, convert)
    assert cause == "lr_too_high"
    assert ranking.get("weight_corruption", {"confidence": 0.0})["confidence"] < 0.1
    assert ranking.get("stale_second_moment", {"confidence": 0.0})["confidence"] < 0.1
    assert ("is update_norm the change of the weights" in text) is (convert is not per_rate)


def test_weights_that_changed_by_no_update_are_found_where_the_log_can_show_it(
    blamed: Any,
) -> None:
    assert blamed(corrupted, per_rate)[0] == "weight_corruption"
    cause, ranking, text = blamed(corrupted, not_per_rate)
    assert cause == "unknown"
    assert "columns are in doubt" in ranking["unknown"]["reasons"][0]
    assert "How far the weights moved is not used here" in text


def test_a_gradient_norm_that_a_limit_cuts_off_does_not_say_how_far_gradients_grew(
    blamed: Any,
) -> None:
    """Updates and gradients grow fivefold together; the log holds the norm after clipping."""

    def grown(step: int) -> Mapping[str, float]:
        if step < ONSET - 1:
            return {}
        both = {"update_norm": 150.0 + step % 3, "grad_norm": 5.0 - 0.01 * (step - ONSET)}
        return both | ({"loss": 5.0} if step >= ONSET else {})

    def clipped(row: Row) -> Row:
        return row | {"grad_norm": min(1.2, row["grad_norm"])}

    assert blamed(grown, per_rate)[0] != "stale_second_moment"
    cause, _, text = blamed(grown, clipped)
    assert cause != "stale_second_moment"
    assert "grad_norm does not pass 1.2: is it the norm after clipping?" in text


def test_a_second_moment_that_falls_in_calm_rows_too_is_no_second_moment(blamed: Any) -> None:
    def fallen(step: int) -> Mapping[str, float]:
        moment = {"adam_v_norm": 1e-4} if step >= ONSET - 1 else {}
        return moment | ({"loss": 5.0, "grad_norm": 3.0 + 0.1 * (step % 5)} if step > 300 else {})

    def noisy(row: Row) -> Row:
        jitter = 1.0 + 0.9 * math.sin(1e4 * row["param_norm"])
        return row | {"adam_v_norm": row["adam_v_norm"] * jitter}

    assert blamed(fallen, per_rate)[0] == "stale_second_moment"
    cause, _, text = blamed(fallen, noisy)
    assert cause != "stale_second_moment"
    assert "adam_v_norm falls faster in calm rows" in text


def test_a_sum_over_the_tokens_is_no_sequence_that_carries_the_rise(blamed: Any) -> None:
    """Every sequence rises alike; in the log their largest is a sum over 1,024 tokens."""

    def risen(step: int) -> Mapping[str, float]:
        high = {"loss": 6.0, "loss_sequence_max": 7.4, "grad_norm": 5.0 + 0.1 * (step % 5)}
        return high if step >= ONSET else {}

    def summed(row: Row) -> Row:
        return row | {"loss_sequence_max": 1024.0 * row["loss_sequence_max"]}

    _, ranking, text = blamed(risen, summed)
    assert not [r for one in ranking.values() for r in one["reasons"] if "few sequences" in r]
    assert "loss_sequence_max is" in text
    assert "is it a sum" in text


def test_a_count_of_new_tokens_is_not_read_as_a_share(blamed: Any) -> None:
    """A few new tokens in every batch; at the onset there are more of them."""

    def risen(step: int) -> Mapping[str, float]:
        return {"loss": 6.0, "unseen_tokens": 40.0} if step == ONSET else {"unseen_tokens": 3.0}

    cause, ranking, text = blamed(risen, per_rate)
    assert cause == "bad_batch"
    assert "4000" not in str(ranking)
    assert "unseen_tokens is no share" in text


@pytest.mark.parametrize("window", [1, 4, 20, 900])
def test_a_running_mean_is_said_to_hide_spikes(window: int, tmp_path: Path) -> None:
    rows = np.arange(1, 901)
    losses = 2.5 + 6.0 * np.exp(-rows / 100) + np.random.default_rng(1).normal(0, 0.05, len(rows))
    means = [losses[max(0, row - window) : row].mean() for row in rows]
    lines = "".join(f"{row},{value}\n" for row, value in zip(rows, means, strict=True))
    (tmp_path / "run.csv").write_text(f"step,loss\n{lines}")
    said = "`loss` moves like a running mean" in read_log(tmp_path / "run.csv").described()
    assert said is (window > 1)


@pytest.mark.parametrize("times", [1, 2, 3, 10, None])
def test_a_loss_that_is_logged_more_often_than_measured_counts_once(
    times: int | None, tmp_path: Path
) -> None:
    """Each value stands there so many times, or between 2 and 4; that of a collapse for ever."""
    draw = np.random.default_rng(1)
    often = draw.integers(2, 5, 900) if times is None else np.full(900, times)
    losses = 2.5 + 6.0 * np.exp(-np.arange(900) / 100) + draw.normal(0, 0.05, 900)
    losses[450:460] += 2.0
    held = [*np.repeat(losses, often), *[10.8] * 400]
    lines = (f"{step},{loss}" for step, loss in enumerate(held, 1))
    (tmp_path / "run.csv").write_text("\n".join(["step,loss", *lines]))
    log = read_log(tmp_path / "run.csv")
    found = judge(log, DetectorChoice()).incidents
    onsets = [1 + often[:450].sum(), 1 + often.sum()]
    assert [(one.onset_step, one.kind) for one in found] == [
        (onsets[0], Kind.RECOVERABLE), (onsets[1], Kind.DIVERGENT)
    ]  # fmt: skip
    assert ("taken once" in log.described()) is (times != 1)


def test_a_mean_since_its_epoch_began_is_taken_apart(tmp_path: Path) -> None:
    """As Keras, fairseq and many bars print it; no other loss is."""
    rows = np.arange(600)
    losses = 2.5 + 6.0 * np.exp(-rows / 100) + np.random.default_rng(1).normal(0, 0.05, 600)
    means = [losses[row // 100 * 100 : row + 1].mean() for row in rows]
    for printed in (means, losses):
        lines = (f"{row // 100},{row},{value}" for row, value in enumerate(printed))
        (tmp_path / "run.csv").write_text("\n".join(["epoch,step,loss", *lines]))
        log = read_log(tmp_path / "run.csv")
        assert log.signals["loss"].values == pytest.approx(losses)
        assert ("taken apart" in log.described()) is (printed is means)


@pytest.mark.parametrize(
    ("header", "taken", "said"),
    [
        ("loss/average,loss/current", "loss/current", "left out: `loss/average`"),
        ("avr_loss,lr", "avr_loss", "`avr_loss` is, by its name, a running mean"),
        ("train/box_loss,train/cls_loss,train/dfl_loss", "train/box_loss", "is one of 3 losses"),
        ("val_loss,epoch", "val_loss", "no loss of training, that of evaluation is taken"),
    ],
)
def test_which_loss_is_taken_and_what_kind_of_loss_it_is_is_told(
    header: str, taken: str, said: str, tmp_path: Path
) -> None:
    wide = header.count(",") + 1
    rows = "".join(f"{n}{f',{3 - n / 99}' * wide}\n" for n in range(1, 40))
    (tmp_path / "run.csv").write_text(f"step,{header}\n{rows}")
    log = read_log(tmp_path / "run.csv")
    assert log.columns["loss"] == taken
    assert said in log.described()


def test_a_loss_scale_of_1_and_a_rate_of_0_are_none(tmp_path: Path) -> None:
    """Megatron-LM logs the one where it trains in bf16; few digits make the other of any rate."""
    for name, values, kept in (
        *(("loss_scale", "111", False), ("loss_scale", "421", True)),
        *(("lr", "000", False), ("lr", "001", True)),
    ):
        lines = "".join(f"{row},3.{row},{value}\n" for row, value in enumerate(values))
        (tmp_path / "run.csv").write_text(f"step,loss,{name}\n{lines}")
        assert (name in read_log(tmp_path / "run.csv").signals) is kept
