"""The score of root causes: truth for every fault, and ways of measuring that hide things."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.causes import ALL, WAYS, Named, summarise, watch
from benchmarks.causes_truth import RIGHT, right_causes
from benchmarks.destabilised import SIGNALS, Columns
from benchmarks.naming_plan import FORK, Healthy, Run
from spikeguard_core.suspicion import Suspicion
from spikeguard_protocol import Cause
from spikeguard_trainer.faults import Fault, FaultName


def run(name: FaultName, strength: float) -> Run:
    return Run(Healthy(4, 0.95, 1.0), Fault(name, FORK + 1, 1, strength))


def test_every_fault_has_a_right_cause() -> None:
    assert set(RIGHT) == set(FaultName)
    assert all(right and Cause.UNKNOWN not in right for right in RIGHT.values())


def test_uphill_at_the_usual_rate_only_unknown_is_right() -> None:
    assert right_causes(run(FaultName.GRADIENT_ASCENT, 1.0)) == {Cause.UNKNOWN}
    assert right_causes(run(FaultName.GRADIENT_ASCENT, 10.0)) == {Cause.LR_TOO_HIGH}


def corrupted() -> Columns:
    """Calm rows whose weights jump with the fork, and whose loss follows a step later."""
    rng = np.random.default_rng(0)
    calm = [1.7, 1.0, 33.0, 0.02, 49.0, 2.3e-3, 3.2, 0.0]
    rows = np.array(calm) * (1 + 0.03 * rng.normal(size=(400, len(SIGNALS))))
    rows[:, SIGNALS.index("lr")] = 2.3e-3
    rows[:, SIGNALS.index("param_norm")] = 49.0
    rows[300:, SIGNALS.index("param_norm")] = 60.0
    rows[301:, SIGNALS.index("loss")] += 3.0
    rows[301:, SIGNALS.index("grad_norm")] *= 5.0
    return rows


@pytest.mark.parametrize(("way", "found"), [("every_step", True), ("loss_and_grad_norm", False)])
def test_a_way_of_measuring_tells_the_monitor_no_more_than_it_says(way: str, found: bool) -> None:
    opened, ranking = watch(corrupted(), WAYS[way])
    assert opened is not None
    assert opened.step > FORK
    assert (ranking[0].cause is Cause.WEIGHT_CORRUPTION) is found
    assert WAYS[way].signals <= ALL


def test_a_run_without_an_incident_is_neither_right_nor_wrong() -> None:
    wrong = Named(run(FaultName.NAN_GRAD, 1.0), (Suspicion(Cause.BAD_BATCH, 0.9),))
    silent = Named(run(FaultName.NAN_GRAD, 1.0), ())
    unsure = Named(run(FaultName.NAN_GRAD, 1.0), (Suspicion(Cause.UNKNOWN, 0.6),))
    found = summarise([wrong, silent, unsure])
    assert (found["right"]["right"], found["right"]["of"]) == (0, 2)
    assert (found["right_of_named"]["of"], found["without_incident"]) == (1, 1)
    assert found["confusion"]["nan_grad (non_finite_source)"] == {
        "bad_batch": 1,
        "no incident": 1,
        "unknown": 1,
    }
