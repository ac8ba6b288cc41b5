"""`spikeguard replay` reads what people have, and says what it took or why it cannot."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import os
import re
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.log import LogOptions
from spikeguard_replay.reading import read_log
from tests.replay.running import rows_in

TABLE = "step,loss,grad_norm\n1,2.5,0.5\n2,2.25,\n3,nan,inf\n"
ROWS = [(1, {"loss": 2.5, "grad_norm": 0.5}), (2, {"loss": 2.25})]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """A file with a text in it, whose name says nothing."""
    return lambda text: write(tmp_path / "log", text)


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        TABLE.replace("\n", "\r\n"),
        TABLE.replace(",", "\t"),
        TABLE.replace(",", ";"),
        TABLE.replace(",", ";").replace(".", ","),
        TABLE.replace("2.5,", '"2.5",').replace(",0.5", ',"0.5"'),
        "\ufeff" + TABLE,
        "# made by hand\n\n" + TABLE,
        "sep=;\n" + TABLE.replace(",", ";"),
        "run: test,,\n" + TABLE,
        TABLE.replace("step,loss,grad_norm", "Step, Loss ,GradNorm"),
        TABLE.replace("0.5", "N/A").replace("N/A", "0.5"),
        TABLE.replace("1,2.5,0.5", '1,"2.5",50%').replace("50%", "0.5"),
    ],
)
def test_a_table_is_read_in_any_dialect(log: Callable[[str], Path], text: str) -> None:
    rows = rows_in(log(text))
    assert rows[:2] == ROWS
    assert math.isnan(rows[2][1]["loss"])
    assert rows[2][1]["grad_norm"] == math.inf


def rows_of(text: str) -> str:
    return "\n".join(text.format(n=n, loss=3.5 - n / 16) for n in range(1, 9)) + "\n"


MATLAB = (
    "|=====================================|\n| Epoch | Iteration | Mini-batch |\n"
    "|       |           |    Loss    |\n|=====================================|\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "step,loss,grad_norm\n-,nats,-\n" + rows_of("{n},{loss},0.5"),
        "step,metrics\n" + rows_of('{n},"{{""loss"": {loss}}}"'),
        "step;metrics\n" + rows_of("{n};{{'loss': {loss}}}"),
        "# A run\n\nIts log:\n\n| step | loss |\n|---:|---:|\n" + rows_of("| {n} | {loss} |"),
        "┏━━━┳━━━┓\n┃ step ┃ loss ┃\n┡━━━╇━━━┩\n" + rows_of("│ {n} │ {loss} │") + "└───┴───┘\n",
        MATLAB + rows_of("| 1 | {n} | {loss} |"),
        "experimentKey,metricName,metricValue,step\n" + rows_of("x,loss,{loss},{n}"),
        "Epoch 1/1\n" + rows_of("\b\b\b\b\b\r{n}/8 [==>...] - loss: {loss}" + 40 * "\b"),
    ],
    ids=["units", "JSON", "dicts", "Markdown", "bars", "MATLAB", "Comet", "Keras"],
)
def test_tables_are_read_as_people_and_tools_show_them(
    log: Callable[[str], Path], text: str
) -> None:
    rows = [(n, values["loss"]) for n, values in rows_in(log(text))]
    assert rows == [(n, 3.5 - n / 16) for n in range(1, 9)]


def test_starts_in_one_file_that_end_early_are_no_epochs(log: Callable[[str], Path]) -> None:
    text = "".join(f"step {n} loss 2.5\n" for end in (20, 35, 60) for n in range(1, end))
    assert [n for n, _ in rows_in(log(text))][-1] == 59


TOLD = "valid loss at iteration {n} | lm loss value: 9.1E+00 | lm loss PPL: 8.1E+03 |\n"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("    step  loss  lr\n" + rows_of("{n}     {n}  {loss}   0.5"), {"lr": 0.5}),
        ("Zeit\tstep\tloss\ttokens\n"
         + rows_of("26.11.2026 10:00:0{n}\t{n}\t{loss}\t4.136.960").replace("3.", "3,"), {}),
        (rows_of('{{"loss": "{loss}", "global_step/max_steps": "{n}/90"}}'), {}),
        (rows_of(TOLD + " iteration {n}/ 90 | lm loss: {loss} | grad norm: 0.5 |"),
         {"grad_norm": 0.5}),
    ],
    ids=["a data frame", "decimal commas", "ms-swift", "Megatron"],
)  # fmt: skip
def test_steps_are_told_from_whatever_stands_beside_them(
    log: Callable[[str], Path], text: str, values: dict[str, float]
) -> None:
    """An index, dates and thousands, a share, the validation between."""
    assert rows_in(log(text)) == [(n, {"loss": 3.5 - n / 16, **values}) for n in range(1, 9)]


@pytest.mark.parametrize(
    "packed",
    [
        TABLE.encode("utf-16"),
        TABLE.encode("utf-16-le"),
        TABLE.encode("utf-16-be"),
        gzip.compress(TABLE.encode()),
        bz2.compress(TABLE.encode()),
        lzma.compress(TABLE.encode()),
        gzip.compress(TABLE.encode("utf-16")),
        bytes(70_001) + TABLE.encode(),
    ],
    ids=["utf-16", "no mark", "big-endian", "gzip", "bzip2", "xz", "both", "emptied meanwhile"],
)
def test_encodings_and_packed_files_are_told_by_their_bytes(
    log: Callable[[bytes], Path], packed: bytes
) -> None:
    assert rows_in(log(packed))[:2] == ROWS


def test_what_zstd_packed_is_read_or_the_remedy_is_named(log: Callable[[bytes], Path]) -> None:
    if find_spec("zstandard") is None:
        with pytest.raises(CommandFailed, match=r"unpack it .*pip install zstandard"):
            read_log(log(b"\x28\xb5\x2f\xfd rest"))
    else:
        packed = import_module("zstandard").compress(TABLE.encode())
        assert rows_in(log(packed))[:2] == ROWS


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1,024.5", 1024.5), ("97%", 97.0), ("1_0", 10.0), ("NaN", math.nan), ("Infinity", math.inf)],
)
def test_a_cell_is_a_number_however_it_is_written(
    log: Callable[[str], Path], cell: str, value: float
) -> None:
    rows = rows_in(log(f'step,loss\n1,2\n2,3\n3,"{cell}"\n'))
    assert repr(rows[-1][1]["loss"]) == repr(value)


@pytest.mark.parametrize(
    "text",
    [
        "2.5\n2.25\n2.125\n",
        "loss\n2.5\n2.25\n2.125\n",
        "[2.5, 2.25, 2.125]",
        "[\n 2.5,\n 2.25,\n 2.125\n]",
        "[[1, 2.5], [2, 2.25], [3, 2.125]]",
        ",loss\n1,2.5\n2,2.25\n3,2.125\n",
        '{"betas": [0.9, 0.95], "losses": [2.5, 2.25, 2.125]}',
        "2,500\n2,250\n2,125\n",
        "Verlust\n2,500\n2,250\n2,125\n",
        "losses = [2.5, 2.25, 2.125]",
        "train_losses = [\n    2.5,\n    2.25,\n    2.125,\n]\nval_losses = [2.75, 2.5]\n",
        "[np.float64(2.5), np.float64(2.25), np.float64(2.125)]",
        "[tensor(2.5, device='cuda:0'), tensor(2.25), tensor(2.125, grad_fn=<NllLossBackward0>)]",
        "array([2.5  , 2.25 ,\n       2.125], dtype=float32)",
        "[2.5   2.25\n 2.125]",
        "(1, 2.5)\n(2, 2.25)\n(3, 2.125)\n",
        "[(1, 2.5), (2, 2.25), (3, 2.125)]",
        "{'loss': [2.5, 2.25, 2.125], 'val_loss': [2.75, 2.5, 2.5]}",
        "{'loss': [2.5,\n          2.25,\n          2.125],\n 'val_loss': [2.75, 2.5, 2.5]}",
        '{"train_losses": [2.5, 2.25, 2.125], "val_losses": [2.75, 2.5]}',
    ],
)
def test_bare_losses_are_a_log(log: Callable[[str], Path], text: str) -> None:
    assert rows_in(log(text)) == [(1, {"loss": 2.5}), (2, {"loss": 2.25}), (3, {"loss": 2.125})]


@pytest.mark.parametrize(
    "text",
    [
        "[[1.7e9, 10, 2.5], [1.7e9, 20, 2.25], [1.7e9, 30, 2.125]]",  # TensorBoard's JSON
        '{"loss": {"10": 2.5, "20": 2.25, "30": 2.125}}',
        '{"10": {"loss": 2.5}, "20": {"loss": 2.25}, "30": {"loss": 2.125}}',
        '{"step": {"0": 10, "1": 20, "2": 30}, "loss": {"0": 2.5, "1": 2.25, "2": 2.125}}',
        '{\n "step": 10,\n "loss": 2.5\n}\n{\n "step": 20,\n "loss": 2.25\n}\n'
        '{"step": 30, "loss": 2.125}\n',
        "# step loss\n1.0e+01 2.5\n2.0e+01 2.25\n3.0e+01 2.125\n",
        "# step,loss\n10,2.5\n20,2.25\n30,2.125\n",
        "1700000001000 2.5 10\n1700000002000 2.25 20\n1700000003000 2.125 30\n",  # MLflow's file
    ],
)
def test_steps_and_losses_are_read_as_tools_export_them(
    log: Callable[[str], Path], text: str
) -> None:
    assert rows_in(log(text)) == [(10, {"loss": 2.5}), (20, {"loss": 2.25}), (30, {"loss": 2.125})]


@pytest.mark.parametrize("save", [np.save, lambda file, loss: np.savez(file, loss=loss)])
def test_arrays_that_numpy_saved_are_read_and_pickled_ones_are_not(
    log: Callable[[bytes], Path], save: Callable[[io.BytesIO, Any], None]
) -> None:
    packed, pickled = io.BytesIO(), io.BytesIO()
    save(packed, np.array([2.5, 2.25, 2.125]))
    assert [row["loss"] for _, row in rows_in(log(packed.getvalue()))] == [2.5, 2.25, 2.125]
    save(pickled, np.array([None, {}]))
    with pytest.raises(CommandFailed, match="cannot be read as NumPy's arrays"):
        read_log(log(pickled.getvalue()))


@pytest.mark.parametrize(
    "begins",
    [
        *(b"PAR1", b"PK\x03\x04\0\0run/data.pkl", b"PK\x03\x04\0\0xl/workbook.xml"),
        *(b"\x80\x04\x95", b"\x89PNG", b"PK\x03\x04\0\0logs/train.csv"),
        b"logs/train.csv" + bytes(243) + b"ustar\00000",
    ],
)
def test_a_file_that_is_no_text_is_refused_with_how_to_make_one(
    log: Callable[[bytes], Path], begins: bytes
) -> None:
    with pytest.raises(
        CommandFailed, match=r"no text: give the log .* Unpack an archive, .* write a ta"
    ):
        read_log(log(begins + bytes(200)))


def test_code_is_not_run_and_a_record_a_line_is_no_literal(log: Callable[[str], Path]) -> None:
    with pytest.raises(CommandFailed, match="no column that is known as the loss"):
        read_log(log("losses = [float(x) for x in range(9)]\nprint(sum(losses), 1.5)\n"))
    printed = "".join(f"{{'loss': 2.5, 'epoch': 0.{n}}}\n" for n in range(1, 9))
    assert read_log(log(printed)).form == "console output"


def test_rows_in_no_order_of_time_are_sorted_and_a_run_begun_anew_is_no_epoch(
    log: Callable[[str], Path],
) -> None:
    newest_first = "".join(f"{n},{n}.5\n" for n in range(20, 0, -1))
    read = read_log(log("step,loss\n" + newest_first))
    assert read.steps.tolist() == list(range(1, 21))
    assert read.signals["loss"].values.tolist() == [n + 0.5 for n in range(1, 21)]
    assert "sorted" in read.described()

    runs = "".join(f"{n // 10},{n},2.5\n" for _ in range(3) for n in range(1, 31))
    assert read_log(log("epoch,global_step,loss\n" + runs)).steps.tolist() == [*range(1, 31)] * 3
    epochs = "".join(f"{epoch},{n},2.5\n" for epoch in range(3) for n in range(1, 31))
    assert read_log(log("epoch,batch,loss\n" + epochs)).steps.tolist() == [*range(1, 91)]


def test_a_step_that_is_said_once_is_not_that_of_all_rows(log: Callable[[str], Path]) -> None:
    rows = "".join(f"loss 2.{n}\n" for n in range(1, 10))
    read = read_log(log("resumed: step 100 loss 3.5\n" + rows))
    assert read.signals["loss"].values.tolist() == [3.5, *(float(f"2.{n}") for n in range(1, 10))]


def test_a_bar_that_stands_still_merges_no_rows(log: Callable[[str], Path]) -> None:
    rows = "".join(f"{{'loss': 2.{n}, 'epoch': 0.{n}}}\n" for n in range(1, 9))
    read = read_log(log("100%|####| 57/57 [00:09<00:00]\n" + rows))
    assert read.signals["loss"].values.tolist() == [float(f"2.{n}") for n in range(1, 9)]


@pytest.mark.parametrize("cell", ["", "None", "null", "N/A", "NA", "-", "  "])
def test_a_blank_cell_was_not_measured(log: Callable[[str], Path], cell: str) -> None:
    rows = rows_in(log(f"step,loss,lr\n1,2,{cell}\n2,3,0.5\n"))
    assert rows == [(1, {"loss": 2.0}), (2, {"loss": 3.0, "lr": 0.5})]


def test_a_table_without_a_header_is_told_by_what_its_columns_hold(
    log: Callable[[str], Path],
) -> None:
    path = log("".join(f"{n * 10},{2.5 - n / 100}\n" for n in range(5)))
    assert rows_in(path)[:2] == [(0, {"loss": 2.5}), (10, {"loss": 2.49})]


def test_a_log_without_steps_is_counted_by_rows_and_so_is_one_asked_for(
    log: Callable[[str], Path],
) -> None:
    path = log("loss,lr\n2.5,0.1\n2.4,0.1\n")
    assert [step for step, _ in rows_in(path)] == [1, 2]
    assert "; rows are counted from 1" in read_log(path).described()
    path = log("step,loss\n5,2.5\n5,2.4\n")
    assert [step for step, _ in rows_in(path, LogOptions({"step": "row"}))] == [1, 2]


@pytest.mark.parametrize(
    ("table", "steps", "said"),
    [
        ("iter,epoch,loss", "1,0 2,0 3,0 1,1 2,1 3,1 1,2", "`iter` starts anew each epoch"),
        ("batch,loss", "0 1 2 0 1 2 0 1 2", "`batch` starts anew each epoch"),
        ("step,loss", "1 2 3 4 3 4 5", "goes back to an earlier step 1 times, first from 4 to 3"),
        ("_step,global_step,loss", "0,10 1,20 5,30", "left out: `_step`"),
        ("epoch,loss", "0 1 2", "epochs as steps"),
        ("epoch,loss", "0.1 0.2 0.3", "rows are counted"),
        ("step,iter,loss", "1,1 1,2 1,3 2,4 2,5 2,6", "step from `iter`"),
        ("samples,step,loss", "64,1 128,2 192,3", "left out: `samples`"),
        ("num_tokens,epoch,loss", "4096,0.1 8192,0.2 12288,0.3", "rows are counted"),
    ],
)
def test_the_step_is_what_counts_optimizer_steps_from_the_beginning(
    log: Callable[[str], Path], table: str, steps: str, said: str
) -> None:
    path = log(table + "\n" + "".join(f"{row},2.5\n" for row in steps.split()))
    wanted = {
        "iter,epoch,loss": [1, 2, 3, 4, 5, 6, 7],
        "batch,loss": [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "_step,global_step,loss": [10, 20, 30],
        "step,iter,loss": [1, 2, 3, 4, 5, 6],
        "samples,step,loss": [1, 2, 3],
    }
    found = read_log(path)
    default = [int(one) if one.isdigit() else n for n, one in enumerate(steps.split(), start=1)]
    assert found.steps.tolist() == wanted.get(table, default)
    assert said in found.described()


def test_no_line_is_drawn_back_to_where_a_run_went_on(log: Callable[[str], Path]) -> None:
    steps, losses = read_log(log("step,loss\n1,5\n2,4\n3,nan\n4,3\n2,3.5\n3,3\n")).curve("loss")
    assert steps.tolist() == [1, 2, 4, 2, 2, 3]
    assert repr(losses.tolist()) == "[5.0, 4.0, 3.0, nan, 3.5, 3.0]"


def test_rows_of_evaluation_are_no_training(log: Callable[[str], Path]) -> None:
    for mode in ("train", "pretraining"):
        lines = [{"mode": mode, "iter": n, "loss": 2.5} for n in range(1, 5)]
        lines.insert(2, {"mode": "val", "iter": 2, "loss": 9.0})
        path = log("\n".join(map(json.dumps, lines)))
        assert rows_in(path) == [(n, {"loss": 2.5}) for n in range(1, 5)]
    cells = [("{'subset': 'train'}", 2.5), ("{'subset': 'val'}", 9.0)]  # as Aim exports them
    rows = "".join(f'loss,"{cell}",{n},{value}\n' for n in range(1, 5) for cell, value in cells)
    path = log(f"metric.name,metric.context,step,value\n{rows}")
    assert rows_in(path) == [(n, {"loss": 2.5}) for n in range(1, 5)]
    alone = (f"step {n} val loss 2.5\nstep {n + 1} time 5.1ms\n" for n in range(1, 9, 2))
    read = read_log(log("".join(alone)))
    assert (read.columns["loss"], read.steps.tolist()) == ("val loss", [1, 3, 5, 7])
    path = log("step,train_loss,val_loss\n1,2.5,\n1,,9\n2,2.4,\n")
    assert rows_in(path) == [(1, {"loss": 2.5}), (2, {"loss": 2.4})]
    path = log("step,train_loss,val_loss\n1,2.5,NaN\n1,NaN,9\n2,NaN,NaN\n")  # NaN for a blank
    assert repr(rows_in(path)) == repr([(1, {"loss": 2.5}), (2, {"loss": math.nan})])


def test_first_and_last_records_that_are_no_steps_are_passed_over(
    log: Callable[[str], Path],
) -> None:
    lines = [
        {"config": {"lr": 0.1}, "name": "x"},
        {"lr": 0.1, "steps": 9},
        *({"train": {"step": n, "loss": 2.5}} for n in range(1, 10)),
    ]
    lines.append({"train_runtime": 9.0, "train_loss": 9.0, "step": 2})
    assert rows_in(log("\n".join(map(json.dumps, lines)))) == [
        (n, {"loss": 2.5}) for n in range(1, 10)
    ]


@pytest.mark.parametrize(
    "document",
    [
        [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}],
        {"best": None, "log_history": [
            {"step": 1, "loss": 2.5, "epoch": 0.1}, {"step": 1, "eval_loss": 9},
            {"step": 2, "loss": 2.25}, {"step": 2, "train_runtime": 6.0, "train_loss": 9}]},
        {"step": [1, 2], "loss": [2.5, 2.25]},
        {"args": {"lr": 0.1}, "history": {
            "rows": [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}]}},
    ],
    ids=["list", "trainer state", "columns", "nested"],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_document_is_read_for_its_records(
    log: Callable[[str], Path], document: object, indent: int | None
) -> None:
    path = log(json.dumps(document, indent=indent))
    assert rows_in(path) == [(1, {"loss": 2.5}), (2, {"loss": 2.25})]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,loss\n1,2\n2,3\n3\n", r"the last line \(4\) is cut off and left out"),
        ("step,loss\n1,2\n2,3\n3,4,5\n" + "4,5\n" * 30, "1 lines of another length left out"),
        ('{"step": 1, "loss": 2}\n{"step": 2, "lo', r"the last line \(2\) is cut off"),
        ("step 1 loss 2\nstep 2 loss 2\nstep 3 lo", r"the last line \(3\) is cut off"),
        ('{"step": 1, "loss": 2}\n{"step"\n{"step": 2, "loss": 2}\n', "1 lines that are no JSON"),
    ],
)
def test_what_is_cut_off_is_left_out_and_told(
    log: Callable[[str], Path], text: str, said: str
) -> None:
    found = read_log(log(text))
    assert len(found) >= 1
    assert re.search(said, found.described())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no names with numbers in it"),
        ("step,loss,grad_norm\n", "a header, and no row below it yet"),
        ('{"port": 80, "text": "a"}\n' * 9, "no column that is known as the loss"),
        ("INFO start\nmax_grad_norm=1.0 beta=0.9\n" * 9, "no column that is known as the loss"),
        ("= Loss (Sat Jun  6 16:47:21 2020) =\n" * 3 + "data: 0.01, G_A: 1.5\n" * 9 + "line 7\n",
         "name it: .* --column loss=G_A`"),
        ("hello\nworld\n", "no names with numbers in it"),
        ("step 1 cost 3.2 seconds\nstep 2 cost 3.1s\n" * 9, "known as the loss .found `step`."),
        ("hello\n" + "exit 1\n" * 2 + "port 80\n", "found `exit`, `port`"),
        ("step,loss\n1,2\n2,x\n3,4\n", "line 3, column `loss`: 'x' is no number: write a number"),
        ("step,loss,note\n1,2\n2,3\n3,4\n", "line 2: 2 cells under 3 columns"),
        ("time,cost2,length\n1,2,3\n2,3,4\n3,4,5\n",
         r"no column that is known as the loss \(found `time`, `cost2`, `length`\). "
         "If one of them is the loss, name it: `spikeguard replay .*log --column loss=cost2`"),
        ("step,accuracy\n1,0.2\n2,0.3\n3,0.4\n", 
         r"\(found `step`, `accuracy`\). If .*: `spikeguard replay .*log --column loss=NAME`$"),
        ("step,loss,lr\n1,2.5 nats,1\n2,2.4 nats,1\n", "line 2, column `loss`: '2.5 nats' is no"),
        ("version https://git-lfs.github.com/spec/v1\nsize 12\n", "git lfs pull"),
        ('{"a": {"b": [1, 2]}}', "no names with numbers in it"),
        ('{\n "log_history": [\n {"step": 1', "not JSON: .*: line 3 column"),
        ('{"step": 1, "loss": true}\n', "column `loss`: 'True' is no number"),
        ("[2.5, 2.25]", "no column that is known as the loss"),
        ('[{"step": 1}, [2]]', "no column that is known as the loss"),
        ('["a", "b"]', "no names with numbers in it"),
        ('{\n "a": ["b"]\n}', "no list of records in it"),
        (bytes(range(256)) * 9, "no text"),
        (b"\x1f\x8b\x08\0" + b"\0" * 6 + b"\x07" * 40, "cannot be unpacked"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_place_and_what_to_do(
    log: Callable[[str | bytes], Path], text: str | bytes, words: str
) -> None:
    path = log(text)
    with pytest.raises(CommandFailed, match=words) as caught:
        read_log(path)
    assert str(caught.value).startswith(str(path))


def test_a_column_that_is_named_is_taken_and_one_that_is_not_there_is_refused(
    log: Callable[[str], Path],
) -> None:
    path = log('{"step": 1, "loss": 2.5, "train/nll": 7}\n')
    assert rows_in(path, LogOptions({"loss": "train/nll"})) == [(1, {"loss": 7.0})]
    with pytest.raises(CommandFailed, match=r"no column `nl2` for loss \(found `step`, `loss`"):
        read_log(path, LogOptions({"loss": "nl2"}))
    path = log("t,loss\n0.5,2\n1.5,3\n")
    with pytest.raises(CommandFailed, match=r"line 2, column `t`: 0.5 is not a whole step number"):
        read_log(path, LogOptions({"step": "t"}))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: .*none\.csv"):
        read_log(tmp_path / "none.csv")


def test_a_directory_gives_its_newest_log(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    old, new, notes = tmp_path / "a.csv", tmp_path / "run" / "b.log", tmp_path / "notes.txt"
    for at, (path, text) in enumerate(
        ((old, TABLE), (new, "step 1 loss 2.5\nstep 2 loss 2.5\n"), (notes, "nothing here\n"))
    ):
        write(path, text)
        os.utime(path, (1e9 + at, 1e9 + at))
    found = read_log(tmp_path)
    assert found.name == str(new)
    assert f"the newest log of 3 files in {tmp_path}" in found.described()
    for path in (old, new):
        path.unlink()
    with pytest.raises(CommandFailed, match="no training log among 1 files; of the newest file"):
        read_log(tmp_path)


def test_a_log_is_read_from_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read once only, as a process substitution is."""
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=(TABLE,))
    writer.start()
    assert rows_in(pipe)[:2] == ROWS
    writer.join()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TABLE.encode())))
    assert rows_in(Path("-"))[:2] == ROWS
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b"time,a,b\n1,2,2\n2,3,1\n3,2,5\n"))
    )
    with pytest.raises(CommandFailed, match="name it: `spikeguard replay - --column loss=a`"):
        read_log(Path("-"))


def test_what_other_lines_of_a_console_say_is_not_listed(log: Callable[[str], Path]) -> None:
    lines = [f"step {n} loss {3 - n / 100} num_loss_tokens {n % 7}" for n in range(1, 60)]
    text = "\n".join(["seed: 7, n_layers=12", *lines, "saved in 2.5 s"])
    assert read_log(log(text)).left_out == ["`num_loss_tokens`"]


def test_a_second_run_in_a_log_counts_its_epochs_from_its_own_first(
    log: Callable[[str], Path],
) -> None:
    places = [(e, i) for run in range(2) for e in range(8) for i in range(4)]
    text = "\n".join(f"Epoch: [{e}] [{i}/4] loss: 2.5" for e, i in places)
    assert read_log(log(text)).steps.tolist() == [4 * e + i for e, i in places]


def test_zeros_amid_a_log_of_a_machine_that_went_down_are_passed_over(
    log: Callable[[bytes], Path],
) -> None:
    lines = [f"step {n} loss 2.5\n".encode() for n in range(9)]
    assert len(read_log(log(b"".join([*lines[:4], bytes(4096), *lines[4:]])))) == 9


def test_a_loss_that_is_no_longer_measured_is_told(log: Callable[[str], Path]) -> None:
    rows = [f'{{"step": {n}, "loss": {2.5 if n < 20 else "null"}}}' for n in range(40)]
    assert "the last 20 rows have no loss" in read_log(log("\n".join(rows) + "\n")).described()
