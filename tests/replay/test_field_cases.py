"""Logs as people have them are read without options, and their spike is told at its step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.commands import REPLAY
from tests.replay.running import rows_in, run

CASES = Path(__file__).parent.parent / "field_cases"
RECOVERABLE, DIVERGENT = "recoverable", "divergent"
LASTING = ("lingering", "divergent")


@pytest.mark.parametrize(
    ("file", "onset", "kind", "said"),
    [
        ("a1_timestamp_column.csv", 300, RECOVERABLE, "left out: `timestamp` (text)"),
        ("a1_split_column.csv", 300, RECOVERABLE, "8 rows of `split` = val"),
        ("a2_torchtitan.log", 240, RECOVERABLE, "grad_norm from `grad_norm`"),
        ("a2_nanogpt_nan.log", 3010, DIVERGENT, "step from `iter`, loss from `loss`"),
        ("a2_hf_dicts_logging10.log", 300, RECOVERABLE, "rows are counted from 1"),
        ("a2_fairseq_json.log", 24000, RECOVERABLE, "step from `num_updates`"),
        ("a3_gpt_neox.log", 200, RECOVERABLE, "loss from `lm_loss`"),
        ("a3_llama_factory_trainer_log.jsonl", 2400, RECOVERABLE, "step from `current_steps`"),
        ("a3_tensorboard_download.csv", 300, RECOVERABLE, "loss from `Value`"),
        ("a3_wandb_panel_lm_loss.csv", 2400, RECOVERABLE, "loss from `lm_loss`"),
        ("a4_keras_csvlogger.csv", 299, RECOVERABLE, "epochs as steps"),
        ("a5_powershell_utf16_megatron.log", 300, RECOVERABLE, "loss from `lm loss`"),
        ("a5_plain.csv.gz", 300, RECOVERABLE, "read as CSV, 420 rows"),
        ("a6_semicolon_decimal_comma.csv", 300, RECOVERABLE, "read as CSV with `;`"),
        ("a7_cut_last_line.jsonl", 300, RECOVERABLE, "the last line (421) is cut off"),
        ("a8_header_again_after_resume.csv", 300, RECOVERABLE, "the header again left out"),
        ("a8_none_cells.csv", 300, RECOVERABLE, "grad_norm from `grad_norm`"),
        ("b1_nemo_two_epochs.log", 229, RECOVERABLE, "step from `global_step`"),
        ("b1_wandb_history_hf.csv", 3000, RECOVERABLE, "step from `train/global_step`"),
        ("c1_megatron_grad_norm_nan_no_loss.log", 5380, DIVERGENT, "100 rows without a loss count"),
    ],
)
def test_a_log_is_read_as_it_lies_there(
    file: str, onset: int, kind: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(REPLAY, str(CASES / file), "--json") == 0
    out, err = capsys.readouterr()
    told: dict[str, Any] = json.loads(out)
    (incident,) = told["incidents"]
    assert (incident["onset_step"], incident["kind"]) == (onset, kind)
    assert said in err
    assert err.count("\n") == 1
    assert told["read"]["rows"] == told["samples"]


Right = tuple[range, str | tuple[str, ...]]  # steps at which it may begin, and its kind


@pytest.mark.parametrize(
    ("file", "right"),
    [
        # all updates are skipped, the loss scale falls, and no loss is logged any more
        ("c1_megatron_all_skipped.log", [(range(121, 131), DIVERGENT)]),
        # Hugging Face's Trainer logs a loss that is not finite as 0
        ("c2_loss_zero_trainer_state.json", [(range(115, 116), DIVERGENT)]),
        # 2.56 rises to 2.99 within 800 rows and stays
        ("c3_ramp_800_rows.csv", [(range(1500, 2001), LASTING)]),
        # 7.45 at step 12,000 rises to 7.93
        ("c3_slow_rise_every500.csv", [(range(12_000, 43_500), LASTING)]),
        # 10.3, 17.1 at row 18, and back at row 30
        ("c4_peak_at_step_18.csv", [(range(11, 19), RECOVERABLE)]),
        # eleven times the loss within 49 rows
        ("c4_diverges_from_row_10.csv", [(range(10, 20), DIVERGENT)]),
        # one row of the gradient norm at a time; the loss is calm
        ("c5_single_row_grad_norm_trainer_state.json", []),
        # -216 and -54,838 where the noise is 0.02
        ("c6_grpo_loss_explodes_downward.csv", [(range(81, 84), LASTING)]),
        # 0.148 rises to 0.712
        ("c7_nineteen_rows.csv", [(range(8416, 8417), LASTING)]),
        # 2.8 rises to the level of guessing within 72 rows and stays
        ("d1_explodes_to_uniform_tau12.csv", [(range(1000, 1040), DIVERGENT)]),
        # a spike that heals; 300 rows later the loss is not finite
        (
            "d2_nan_300_rows_after_healed_spike.csv",
            [(range(300, 301), RECOVERABLE), (range(600, 601), DIVERGENT)],
        ),
        # one row stands out amid a loss that rises: no outlier batch
        ("d3_outlier_within_instability.csv", [(range(170, 172), LASTING)]),
        # the loss of GRPO is 0 at first, then noise
        ("d4_grpo_zero_then_noise_trainer_state.json", []),
        # 3.00 before and after
        ("d5_back_at_old_level_every10.csv", [(range(3000, 3001), RECOVERABLE)]),
        # falls until four digits round to 0
        ("e1_control_memorises_to_rounded_zero_trainer_state.json", []),
        ("e2_control_negative_loss_falls.csv", []),
        ("e4_control_grpo_noise_trainer_state.json", []),
        # the second stretch, from step 800 on, is calm
        ("e5_control_resume_from_checkpoint.csv", [(range(900, 901), RECOVERABLE)]),
        ("e6_control_steep_start_small_bump.csv", []),
        # 1.5 % in waves of 1,000 rows
        ("e7_control_slow_wave.csv", []),
    ],
)
def test_an_incident_is_told_with_its_kind_and_nothing_else_is(
    file: str, right: list[Right], capsys: pytest.CaptureFixture[str]
) -> None:
    told = replayed(file, capsys)
    assert len(told["incidents"]) == len(right)
    for incident, (begins, kinds) in zip(told["incidents"], right, strict=True):
        assert incident["onset_step"] in begins
        assert incident["kind"] in ((kinds,) if isinstance(kinds, str) else kinds)


def test_a_slow_rise_is_told_before_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    (ramp,) = replayed("c3_ramp_800_rows.csv", capsys)["incidents"]
    (sparse,) = replayed("c3_slow_rise_every500.csv", capsys)["incidents"]
    assert ramp["detected_step"] < 2000
    assert sparse["detected_step"] < 43_500


def test_a_loss_that_is_not_finite_after_a_spike_has_its_own_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, second = replayed("d2_nan_300_rows_after_healed_spike.csv", capsys)["incidents"]
    assert second["causes"][0]["cause"] == "non_finite_source"


@pytest.mark.xfail(strict=True, reason="replay lists no lone values yet")
def test_values_of_a_norm_that_stand_out_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """92 at step 44 and 11,140 at step 49, where 8 is usual; 29 at step 45 follows the first."""
    told = replayed("c5_single_row_grad_norm_trainer_state.json", capsys)
    lone = {one["step"]: one for one in told["lone_values"]}
    assert lone[49]["signal"] == "grad_norm"
    assert lone[49]["value"] == 11_140.0
    assert 5.0 < lone[49]["usual"] < 12.0
    assert 44 in lone or 44 in [one["step"] for one in told["precursors"]]


def replayed(file: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `replay --json` tells of a case, without options."""
    assert run(REPLAY, str(CASES / file), "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_iterations_that_were_skipped_arrive_as_a_signal() -> None:
    """Megatron-LM prints no loss for them; the loss scale falls to 1 meanwhile."""
    rows = dict(rows_in(CASES / "c1_megatron_all_skipped.log"))
    assert [step for step, values in rows.items() if values["step_skipped"]] == [*range(121, 161)]
    assert all(("loss" in values) is (step < 121) for step, values in rows.items())
    assert (rows[120]["loss_scale"], rows[160]["loss_scale"]) == (65536.0, 1.0)


def test_text_in_the_loss_is_refused_with_line_and_column() -> None:
    with pytest.raises(CommandFailed, match="line 78, column `loss`: 'oops' is no number"):
        run(REPLAY, str(CASES / "e3_control_text_in_loss.csv"))
