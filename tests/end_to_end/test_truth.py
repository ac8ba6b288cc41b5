"""What is said of an incident is held against what happened; the reader of claims knows a false
one from a true one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks.truth import WRONG
from benchmarks.truth_cases import RATE, TRUTHS
from benchmarks.truth_claims import Happened, Said, false_statements
from benchmarks.truth_log import StepLog, fault_rows
from benchmarks.truth_rows import Judged, judge
from benchmarks.truth_site import Decision, Record, Text

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


POST_MORTEM = """# run\\#1: lingering spike at step 51, recovered

## Outcome

The loss came back to its trend after that: steps 100 to 130 lie 0.02 ± 0.05 nats above the trend.

## Cost

| Time | 4.5 s |
| Money | 0.45 USD |

## Cost in parts

| Steps trained again | 45 |
| Time lost to them | 4.5 s |
| Updates dropped | 0 |

## Follow-ups

- The learning rate rose 40-fold: look at the schedule.
"""


def _record(document: str = POST_MORTEM, **changes: Any) -> Record:
    """One row as it should be: rolled back from step 90 to 45, 40 batches later judged."""
    log = _log(rolled_back=True)
    at = {row: datetime.fromtimestamp(log.rows[row].at, UTC).isoformat() for row in (51, 150)}
    incident: dict[str, Any] = {
        "id": "run#1", "number": 1, "onset_step": 51, "opened_at": at[51],
        "closed_step": 106, "closed_at": at[150], "outcome": "recovered", "recurrences": 0,
        "reason": "",
        "causes": [{"cause": "lr_too_high", "confidence": 0.98}],
        "commands": [{"verb": "rollback", "state": "judged"}],
        **{name: changes[name] for name in ("outcome", "causes", "onset_step") if name in changes},
    }  # fmt: skip
    arguments = {"step": 45, "skip": None, "lr_factor": 0.05, **changes.get("arguments", {})}
    paces = changes.get("paces", [0.1, 0.1])
    cost = {"steps": 40, "seconds": 4.0}
    verb = changes.get("verb", "rollback")
    decision = Decision("run#1.2", verb, arguments, "Back.", cost, 80, 85, 85, pace_s=paces)
    decision.refusals = changes.get("refusals", [])
    steps = [
        {"step": float(r.step), "position": float(r.position), "loss": r.loss} for r in log.rows
    ]
    record = Record("lr-bump", 0, 0, FAULT, steps, [(r.at, 1) for r in log.rows], [incident])
    record.texts = [Text("post-mortem", -1, document, incident="run#1")]
    record.decisions = [decision]
    return record


def _judged(**changes: Any) -> Judged:
    twin = [{"step": float(s), "position": s - 1.0, "loss": 2.0} for s in range(1, 131)]
    return judge(_record(**changes), twin)


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("wrong_cause", {"causes": [{"cause": "weight_corruption", "confidence": 0.9}]}),
        ("wrong_remedy", {"arguments": {"skip": [49, 56]}}),
        ("wrong_remedy", {"arguments": {"step": 55}}),
        ("wrong_remedy", {"verb": "stop"}),
        ("wrong_outcome", {"outcome": "healed"}),
        ("wrong_outcome", {"outcome": "level_accepted"}),
        ("wrong_cost", {"document": POST_MORTEM.replace("| 45 |", "| 80 |")}),
        ("wrong_cost", {"document": POST_MORTEM.replace("them | 4.5 s", "them | 6.1 s")}),
        ("wrong_cost", {"document": POST_MORTEM.replace("dropped | 0", "dropped | 3")}),
        ("wrong_cost", {"document": POST_MORTEM.replace("0.45 USD", "1.41 USD")}),
        ("wrong_cost", {"paces": [0.1, 0.4]}),
        ("missing_followups", {"document": POST_MORTEM.replace("learning rate", "norm")
                                                      .replace("schedule", "plot")}),
        ("missing", {"document": POST_MORTEM.replace(" ± 0.05", "")}),
        ("refused", {"refusals": ["The proposal changed since you saw it"]}),
        ("without_fault", {"onset_step": 120}),
        ("false", {"document": POST_MORTEM.replace("0.02 ±", "0.21 ±")}),
        ("false", {"document": POST_MORTEM + "- Look at the data at positions [49, 56)."}),
    ],
)  # fmt: skip
def test_each_column_finds_what_is_wrong_in_it_and_nothing_else(
    column: str, changes: dict[str, Any]
) -> None:
    right = _judged()
    assert not any(getattr(right, name) for name in (*WRONG, "false")), right
    assert (right.named, right.outcomes_right, right.proposed) == (1, 1, True)
    assert getattr(_judged(**changes), column)
