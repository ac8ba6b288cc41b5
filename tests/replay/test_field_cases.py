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
        ("a8_header_again_after_resume.csv", 300, RECOVERABLE, "the header stands 1 more time"),
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


def test_iterations_that_were_skipped_arrive_as_a_signal() -> None:
    """Megatron-LM prints no loss for them; the loss scale falls to 1 meanwhile."""
    rows = dict(rows_in(CASES / "c1_megatron_all_skipped.log"))
    assert [step for step, values in rows.items() if values["step_skipped"]] == [*range(121, 161)]
    assert all(("loss" in values) is (step < 121) for step, values in rows.items())
    assert (rows[120]["loss_scale"], rows[160]["loss_scale"]) == (65536.0, 1.0)


def test_text_in_the_loss_is_refused_with_line_and_column() -> None:
    with pytest.raises(CommandFailed, match="line 78, column `loss`: 'oops' is no number"):
        run(REPLAY, str(CASES / "e3_control_text_in_loss.csv"))
