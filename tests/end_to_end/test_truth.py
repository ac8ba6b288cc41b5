"""What is said of an incident is held against what happened; the reader of claims knows a false
one from a true one."""

from __future__ import annotations

import pytest

from benchmarks.truth_cases import RATE, TRUTHS
from benchmarks.truth_claims import Happened, Said, false_statements
from benchmarks.truth_log import StepLog, fault_rows

FAULT = 50
BACK = "from step 90 back to x"


def _log(*, rolled_back: bool) -> StepLog:
    """100 steps at 2 nats; the learning rate is too high from 50 to 59 and the loss goes to 5.

    Where it is rolled back: from step 90 to step 45, batches 49 to 55 left out, on trend again.
    """
    first = [(step, step - 1, 2.0 if step <= FAULT else 5.0) for step in range(1, 91)]
    rest = [(step, step - 1, 4.5) for step in range(91, 131)]
    again = [(step, step - 1 + (7 if step > 49 else 0), 2.0) for step in range(46, 131)]
    rows = [*first, *(again if rolled_back else rest)]
    steps = [{"step": float(s), "position": float(p), "loss": loss} for s, p, loss in rows]
    twin = [{"step": float(s), "position": s - 1.0, "loss": 2.0} for s in range(1, 131)]
    return StepLog(steps, [(0.1 * i, 1) for i in range(1, len(rows) + 1)], twin)


def _happened(kind: str = RATE) -> Happened:
    log = _log(rolled_back=True)
    name = "lr_bump" if kind == RATE else "bad_batch"
    faults = fault_rows(log, [f"{name}@{FAULT}:10"])
    return Happened(log, faults, [TRUTHS[kind]], log.returns, 0.0)


@pytest.mark.parametrize(
    ("where", "true", "false"),
    [
        ("post-mortem", "The loss rose from 2 to 5.", "The loss rose from 5 to 2."),
        ("post-mortem", "The loss rose from 2.001 to 5.", "The loss rose from 2 to 6.1."),
        ("message", "loss before 2, peak 5 at step 51", "loss before 2, peak 4.5 at step 51"),
        ("post-mortem", "45 steps were trained again, 4.5 s.", "80 steps were trained again."),
        ("post-mortem", "| Steps trained again | 45 |", "| Steps trained again | 12 |"),
        ("command", f"{BACK}, leaving out batches 49 to 55 (7)", "from step 80 back to x"),
        ("command", BACK, f"{BACK}, leaving out batches 60 to 65 (6)"),
        ("page", "loss is 3 above trend", "loss is 1.2 above trend"),
        ("message", "above trend now 3.01 at step 90", "above trend now 0.9 at step 90"),
        ("command", "loss is 3 above trend at step 80", "loss is 1.2 above trend at step 80"),
        ("message", "Onset at step 51 (loss)", "Onset at step 30 (loss)"),
        ("post-mortem", "grad norm moved first, at step 51", "the loss itself never moved"),
        ("post-mortem", "It was withdrawn.", "Nobody answered in time: see who is paged."),
        ("post-mortem", "It came back after a command.", "It came back to its trend by itself."),
        ("post-mortem", "The loss came back.", "The run did not recover."),
        ("proposal", "The learning rate did it.", "A few batches around step 51 did it."),
        ("post-mortem", "Look at the schedule.", "Look at the data at positions [49, 56)."),
        ("post-mortem", "3 % of the time.", "Test the device of the rank."),
    ],
)
def test_a_false_statement_is_told_from_a_true_one(where: str, true: str, false: str) -> None:
    row = None if where == "post-mortem" else 89 if where in ("page", "message") else 100
    happened = _happened()
    assert not false_statements(Said(where, true, row), happened)
    assert false_statements(Said(where, false, row), happened)
