"""`spikeguard replay` reads what people have, and says what it guessed or why it refused."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_server.replay.command import REPLAY
from spikeguard_server.replay.reading import read_log, read_log_samples
from tests.replay.running import run

Writer = Callable[[Sequence[float], Sequence[float]], str]


def curve() -> tuple[list[float], list[float]]:
    """500 losses with a spike of 2 nats at step 301 that heals, and a grad norm each."""
    noise = np.random.default_rng(3).normal(size=(2, 500))
    after = np.arange(500) - 300
    spike = np.where(after >= 0, 2.0 * np.exp(-after.clip(0) / 15), 0.0)
    return list(3 + 0.03 * noise[0] + spike), list(0.3 + 0.01 * noise[1])


def csv_text(losses: Sequence[float], norms: Sequence[float]) -> str:
    rows = zip(range(1, len(losses) + 1), losses, norms, strict=True)
    return "step,loss,grad_norm\n" + "".join(f"{n},{a:.6e},{b:.3f}\n" for n, a, b in rows)


def renamed_csv(losses: Sequence[float], norms: Sequence[float]) -> str:
    return csv_text(losses, norms).replace("step,loss,grad_norm", "_step,train/loss,grad norm")


def jsonl(losses: Sequence[float], norms: Sequence[float]) -> str:
    lines = [json.dumps({"config": {"lr": 3e-4}, "phase": "start"})]
    for n, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1):
        entry = {"global_step": n, "train_loss": float(f"{loss:.6e}"), "phase": "train"}
        lines.append(json.dumps(entry | {"train/grad_norm": round(norm, 3)}))
    return "\n".join(lines) + "\n"


def trainer_state(losses: Sequence[float], norms: Sequence[float]) -> str:
    history: list[dict[str, float]] = []
    for n, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1):
        values = {"loss": float(f"{loss:.6e}"), "grad_norm": round(norm, 3)}
        history.append({"epoch": n / 500, "learning_rate": 1e-4, "step": n} | values)
        if n % 100 == 0:
            history.append({"eval_loss": 9.0, "eval_runtime": 1.0, "step": n})
    history.append({"step": 500, "train_loss": 9.0, "train_runtime": 60.0, "total_flos": 1e18})
    return json.dumps({"best_metric": None, "log_history": history, "max_steps": 500}, indent=2)


def megatron(losses: Sequence[float], norms: Sequence[float]) -> str:
    lines = ["using world size: 8", "------ arguments ------", "  lr ........ 0.0003", ""]
    for n, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1):
        lines.append(
            f" [2025-01-02 03:04:05] iteration {n:8}/     500 | consumed samples: {n * 64:12} | "
            f"elapsed time per iteration (ms): 1234.5 | learning rate: 1.000000E-04 | "
            f"lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if n % 100 == 0:
            lines.append(
                f"validation loss at iteration {n} | lm loss value: 9.0E+00 | lm loss PPL: 8.1E+3 |"
            )
    return "\n".join(lines) + "\n"


def spikes(answer: str) -> list[dict[str, object]]:
    """The incidents that `--json` printed, without what may have caused them."""
    incidents: list[dict[str, object]] = json.loads(answer)["incidents"]
    return [{name: v for name, v in found.items() if name != "causes"} for found in incidents]


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        (
            "export.csv",
            renamed_csv,
            "read as CSV; step from `_step`, loss from `train/loss`, grad_norm from `grad norm`",
        ),
        (
            "metrics.jsonl",
            jsonl,
            "read as JSONL; step from `global_step`, loss from `train_loss`, "
            "grad_norm from `train/grad_norm`; 1 record that measured no known signal left out",
        ),
        (
            "trainer_state.json",
            trainer_state,
            "read as Hugging Face trainer state; lr from `learning_rate`; "
            "5 records that measured no known signal left out",
        ),
        (
            "train.log",
            megatron,
            "read as Megatron-LM log; step from `iteration`, loss from `lm loss`, "
            "grad_norm from `grad norm`, lr from `learning rate`",
        ),
    ],
)
def test_every_format_gives_the_findings_of_the_same_run_as_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, write: Writer, said: str
) -> None:
    """Standard output is the CSV's to the byte, but for the causes where the log holds a learning
    rate, which the CSV does not; the guesses go to standard error."""
    (tmp_path / "plain.csv").write_text(csv_text(*curve()))
    (tmp_path / name).write_text(write(*curve()))
    run(REPLAY, str(tmp_path / "plain.csv"), "--json")
    plain = capsys.readouterr()
    assert plain.err == ""
    assert [found["onset_step"] for found in json.loads(plain.out)["incidents"]] == [301]
    run(REPLAY, str(tmp_path / name), "--json")
    other = capsys.readouterr()
    assert spikes(other.out) == spikes(plain.out)
    assert other.out == plain.out or "lr from" in said
    assert other.err == f"spikeguard: {tmp_path / name}: {said}\n"


def write(tmp_path: Path, name: str, body: str) -> Path:
    path = tmp_path / name
    path.write_text(body)
    return path


@pytest.mark.parametrize("writer", [jsonl, trainer_state, megatron])
def test_the_format_is_guessed_without_an_ending(tmp_path: Path, writer: Writer) -> None:
    losses, norms = curve()
    samples = read_log_samples(write(tmp_path, "log", writer(losses, norms)))
    assert [sample.step for sample in samples] == list(range(1, 501))
    assert samples[7].values["loss"] == pytest.approx(losses[7], rel=1e-6)


def test_a_trainer_state_on_one_line_is_no_jsonl(tmp_path: Path) -> None:
    text = json.dumps(json.loads(trainer_state(*curve())))
    assert len(read_log_samples(write(tmp_path, "state.json", text))) == 500


def test_an_own_name_goes_before_a_guess(tmp_path: Path) -> None:
    """What could have been meant too is named, so that a wrong guess is seen."""
    path = write(tmp_path, "a.jsonl", '{"step": 1, "iter": 7, "train_loss": 9, "loss": 2}\n')
    log = read_log(path)
    assert [(one.step, dict(one.values)) for one in log.samples] == [(1, {"loss": 2.0})]
    assert log.guessed.endswith("read as JSONL; `iter` not used, `train_loss` not used")


def test_null_is_not_measured_and_nan_was(tmp_path: Path) -> None:
    body = (
        '{"step": 1, "loss": NaN, "grad_norm": null}\r\n\r\n'
        '{"step": 2.0, "loss": "inf"}\r\n{"step": 3, "grad_norm": 0.5}\r\n'
    )
    rows = read_log_samples(write(tmp_path, "a.jsonl", body))
    assert [row.step for row in rows] == [1, 2, 3]
    assert list(rows[0].values) == ["loss"]
    assert math.isnan(rows[0].values["loss"])
    assert rows[1].values == {"loss": math.inf}
    assert rows[2].values == {"grad_norm": 0.5}


def test_a_skipped_megatron_iteration_has_no_loss(tmp_path: Path) -> None:
    """Megatron leaves the loss out where loss scaling threw the step away."""
    body = (
        " iteration  1/ 10 | lm loss: 2.5E+00 | grad norm: nan | params norm: 8.5 |\n"
        " iteration  2/ 10 | loss scale: 1.0 | number of skipped iterations: 1 |\n"
    )
    (row,) = read_log_samples(write(tmp_path, "train.log", body))
    assert row.values["loss"] == 2.5
    assert math.isnan(row.values["grad_norm"])
    assert row.values["param_norm"] == 8.5


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("a.jsonl", '{"step": 1, "loss": 2}\n{"step": 2, "lo', "line 2: not JSON .*cut off"),
        ("a.jsonl", '{"step": 1, "loss": 2}\n[3]\n', "line 2: list where an object should stand"),
        (
            "a.jsonl",
            '{"step": 1, "loss": 2}\n{"step": 2, "loss": "x"}\n',
            "line 2, field `loss`: 'x' is not a number: write a number",
        ),
        (
            "a.jsonl",
            '{"step": 1, "train/loss": true}\n',
            "line 1, field `train/loss`: True is not a number",
        ),
        (
            "a.jsonl",
            '{"step": 1, "loss": 1' + "0" * 400 + "}\n",
            "line 1, field `loss`: .* is not a number",
        ),
        (
            "a.jsonl",
            '{"step": 1, "loss": 2}\n\n{"loss": 3}\n',
            "line 3: no field `step` .*write the step into every record",
        ),
        (
            "a.jsonl",
            '{"iter": 1.5, "loss": 2}\n',
            "line 1, field `iter`: 1.5 is not a whole step",
        ),
        ("a.jsonl", '{"step": 1, "reward": 2}\n', r"no field `loss` in any of 1 .*train/loss"),
        ("a.jsonl", "", "no field `step` in any of 0 records"),
        ("s.json", '{\n "best_metric": 1\n}\n', "no list `log_history`"),
        ("s.json", '{\n "log_history": [\n {"step": 1', "not JSON .* at line 3, column"),
        (
            "s.json",
            '{\n"log_history": [{"step": 1, "loss": "?"}]\n}',
            r"log_history\[0\], field `loss`: '\?' is not a number",
        ),
        ("s.json", '{\n"log_history": [4]\n}', r"log_history\[0\]: not an object"),
        (
            "t.log",
            "hello\n iteration 1/ 2 | lm loss: 1.2E+ |\n",
            r"line 2, field `lm loss`: '1.2E\+' is not a number",
        ),
    ],
)
def test_a_bad_log_names_file_line_field_and_remedy(
    tmp_path: Path, name: str, body: str, words: str
) -> None:
    path = write(tmp_path, name, body)
    with pytest.raises(CommandFailed, match=words) as caught:
        read_log_samples(path)
    assert str(caught.value).startswith(str(path))


def test_a_guessed_csv_column_is_refused_under_its_own_name(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "iteration,lm loss\n1,2.5\n2,x\n")
    with pytest.raises(CommandFailed, match="line 3, column `lm loss`: 'x' is not a number"):
        read_log_samples(path)


def test_a_csv_reads_from_a_pipe(tmp_path: Path) -> None:
    """The file is opened once: a process substitution cannot be read twice."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("step,loss\n1,2.5\n",))
    writer.start()
    samples = read_log_samples(pipe)
    writer.join()
    assert [sample.step for sample in samples] == [1]
