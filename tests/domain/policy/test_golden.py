"""What is proposed, situation by situation: cause, kind, history and abilities give an action and
its target. How it is worded is held elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from spikeguard_core.policy.proposal import propose
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_core.policy.situation import PastCommand, Target
from spikeguard_core.suspicion import Mark, Suspicion
from spikeguard_protocol import (
    Action,
    BatchRange,
    Cause,
    CommandState,
    Health,
    IncidentState,
    Kind,
    Medium,
    Rollback,
    ScaleLr,
    Stop,
    Verb,
    Watch,
)
from tests.domain.policy.situations import (
    EVERY_VERB,
    SEGMENT,
    TARGETS,
    blamed,
    done,
    incident,
    situation,
    target,
)

ABOUT_THE_ONSET = BatchRange(1198, 1205)
NEAR = Rollback("mem-1190", 1190, ABOUT_THE_ONSET)
WITHOUT_A_SKIP = Rollback("mem-1190", 1190)
WIDENED = Rollback("mem-1190", 1190, BatchRange(1198, 1217))
RAISED = Mark(1198, 1204, ratio=40.0)
INFINITE = math.inf
NO_ROLLBACK = EVERY_VERB - {Verb.ROLLBACK}
SETTLED = {"settled": True}
CLIMBING = {"peak_step": 1340}
STUCK = {
    "confidence": 0.95, "dropped": True, "newest_step": 1209, "excess": 0.0,
    "worst_z": {"grad_norm": INFINITE, "update_dropped": INFINITE},
}  # fmt: skip
APART = {
    "confidence": 0.95, "onset_step": 1151, "onset_batches": BatchRange(1150, 1151),
    "newest_step": 1250, "excess": 0.0, "signal": "replicas_apart",
    "worst_z": {"replicas_apart": INFINITE}, "first_moves": {"replicas_apart": 1151},
}  # fmt: skip
APART_AGAIN = {
    **APART, "recurrences": 1, "recurred_step": 1101, "first_moves": {"replicas_apart": 1101},
}  # fmt: skip
YOUNG = tuple(target(step, Health.PENDING) for step in (100, 250, 299))
EARLY = {
    "onset_step": 300,
    "detected_step": 301,
    "onset_batches": BatchRange(299, 300),
    "peak_step": 360,
    "first_moves": {},
}
SLOW = {
    "onset_step": 19_000, "onset_batches": BatchRange(18_999, 19_000), "detected_step": 43_000,
    "peak_step": 43_000, "newest_step": 43_200, "anomalous_step": 43_200, "first_moves": {},
    **SETTLED,
}  # fmt: skip
FAR = {
    "peak_step": 40_000, "anomalous_step": 40_000, "onset_step": 12_000,
    "onset_batches": BatchRange(11_999, 12_000), "first_moves": {}, **SETTLED,
}  # fmt: skip


def came_back(at: int, batch: int | None, times: int = 1, **changes: Any) -> dict[str, Any]:
    """The spike again at step `at` with `batch`, 30 steps ago unless told otherwise."""
    return {
        "recurrences": times, "recurred_segment": SEGMENT, "recurred_step": at,
        "recurred_batches": None if batch is None else BatchRange(batch, batch + 1),
        "came_back": batch is not None,
        "newest_step": at + 30, "anomalous_step": at + 30, **SETTLED, **changes,
    }  # fmt: skip


def just_back(batch: int | None = 1200, **changes: Any) -> dict[str, Any]:
    """The spike again where it began, two steps old and not sure to last."""
    known = {"newest_step": 1202, "anomalous_step": 1202, "confidence": 0.7, "peak_step": 1208}
    return came_back(1201, batch, **{**known, "settled": False, **changes})


def rolled(*actions: Action) -> tuple[PastCommand, ...]:
    return tuple(map(done, actions))


class Row(NamedTuple):
    """One situation; what it does not say is a lingering spike at step 1200, seen from 1340."""

    name: str
    action: Action | None
    kind: Kind = Kind.LINGERING
    cause: tuple[Suspicion, ...] = ()
    about: Mapping[str, Any] = {}  # of the incident
    history: tuple[PastCommand, ...] = ()
    step: int = 1340
    targets: tuple[Target, ...] = TARGETS
    can: frozenset[Verb] = EVERY_VERB


LINGERING, DIVERGENT, HEALING = Kind.LINGERING, Kind.DIVERGENT, Kind.RECOVERABLE
WATCHED = (done(Watch(200), CommandState.APPLIED, step=1150),)
REFUSED = (done(NEAR, CommandState.REJECTED, step=1255),)
OFFERED = (done(NEAR, CommandState.PROPOSED),)

GOLDEN = [
    # ---- nothing to do, or too early ----
    Row("it heals", Watch(200), HEALING),
    Row("it heals and is watched", None, HEALING, history=WATCHED),
    Row("it heals, watched long enough", Watch(200), HEALING, history=WATCHED, step=1350),
    Row("it surely heals, a rollback was offered", Watch(200), HEALING,
        about={"confidence": 0.9}, history=OFFERED),
    Row("it may heal, a rollback was offered", NEAR, HEALING,
        about={"confidence": 0.7}, history=OFFERED),
    Row("one batch stood out", None, Kind.OUTLIER_BATCH),
    Row("an update was dropped just now", None, HEALING, step=1202,
        about={"dropped": True, "newest_step": 1202, "worst_z": {"grad_norm": INFINITE}}),
    Row("an update was dropped, all calm since", None, HEALING, step=1205,
        about={"dropped": True, "newest_step": 1205, "worst_z": {"grad_norm": INFINITE}}),
    Row("not sure", None, about={"confidence": 0.45}),
    Row("not sure, and it will not change", None, about={"confidence": 0.45, **SETTLED}),
    Row("not sure, once infinite", None, DIVERGENT,
        about={"confidence": 0.5, "worst_z": {"grad_norm": INFINITE}}),
    Row("it may still heal", None, about={"newest_step": 1330}),
    Row("it hardly stands out", None, about={"excess": 0.05}),
    Row("it hardly stands out and will not change", NEAR, about={"excess": 0.05, **SETTLED}),
    Row("it hardly stands out, and somebody reads", NEAR, about={"excess": 0.05}, history=OFFERED),
    Row("less sure, and somebody reads", NEAR, about={"confidence": 0.59}, history=OFFERED),
    Row("not sure any more, and somebody reads", None, about={"confidence": 0.45}, history=OFFERED),
    Row("a rollback is approved", None, history=(done(NEAR, CommandState.APPROVED),)),
    Row("a rollback is delivered", None, history=(done(NEAR, CommandState.DELIVERED),)),
    Row("a watch is delivered", NEAR, history=(done(Watch(200), CommandState.DELIVERED),)),
    Row("a command is being judged", None, about={"state": IncidentState.RECOVERING}),
    Row("it is closed", None, about={"state": IncidentState.CLOSED, "closed_step": 1300}),
    Row("a person said no", None, history=REFUSED),
    Row("a person said no and then watched", None,
        history=(done(NEAR, CommandState.REJECTED, step=1240), done(Watch(200), step=1250))),
    Row("a person said no 200 steps ago", Rollback("mem-1190", 1190, ABOUT_THE_ONSET),
        about={"newest_step": 1455}, history=REFUSED, step=1455),
    # ---- nobody knows why ----
    Row("few steps did it", NEAR),
    Row("few steps did it, peak a little later", Rollback("mem-1190", 1190, BatchRange(1198, 1212)),
        about={"peak_step": 1210, **SETTLED}),
    Row("few steps did it, batches not known", NEAR, about={"onset_batches": None}),
    Row("it climbs", Rollback("ckpt-1000", 1000, BatchRange(1198, 1258)), DIVERGENT,
        about=CLIMBING),
    Row("it climbs in a long run", Rollback("ckpt-1250", 1250, BatchRange(11_998, 12_498)),
        DIVERGENT, about=FAR, step=40_000, targets=(target(1250),)),
    Row("no target is healthy", Rollback("ckpt-250", 250, BatchRange(298, 318)), DIVERGENT,
        about=EARLY, step=360, targets=YOUNG),
    Row("the healthy one lies 3,000 steps further back",
        Rollback("ckpt-12940", 12_940, BatchRange(12_998, 13_142)), DIVERGENT, step=13_140,
        about={"onset_step": 13_000, "onset_batches": BatchRange(12_999, 13_000), "first_moves": {},
               "peak_step": 13_140, "newest_step": 13_140, "anomalous_step": 13_140},
        targets=(target(9_940), target(12_940, Health.PENDING))),
    Row("the updates moved first", Rollback("ckpt-1150", 1150, BatchRange(1187, 1205)),
        about={"first_moves": {"loss": 1200, "update_norm": 1189}}),
    Row("another signal moved long before", NEAR,
        about={"first_moves": {"loss": 1200, "param_norm": 700}}),
    Row("the second moment moved first", Rollback("ckpt-900", 900, BatchRange(1193, 1253)),
        DIVERGENT, about={"first_moves": {"loss": 1200, "adam_v_norm": 1195}, **CLIMBING}),
    Row("it is not finite", NEAR, DIVERGENT, step=1201,
        about={"confidence": 0.6, "newest_step": 1201, "worst_z": {"loss": INFINITE}}),
    Row("the nearest target failed", Rollback("ckpt-1150", 1150, ABOUT_THE_ONSET),
        history=(done(NEAR, CommandState.FAILED),)),
    Row("the nearest target was refused by the job", Rollback("ckpt-1150", 1150, ABOUT_THE_ONSET),
        history=(done(NEAR, CommandState.REFUSED),)),
    Row("the nearest target is gone", Rollback("ckpt-1150", 1150, ABOUT_THE_ONSET),
        targets=tuple(each for each in TARGETS if each.name != "mem-1190")),
    Row("earlier incidents went back three times", NEAR,
        history=tuple(done(NEAR, number=number) for number in (1, 2, 2, 2))),
    Row("two causes, both outside the data", Rollback("mem-1190", 1190), about=SETTLED,
        cause=(Suspicion(Cause.LR_TOO_HIGH, 0.5), Suspicion(Cause.STALE_SECOND_MOMENT, 0.4))),
    Row("a cause that is not sure", NEAR, about=SETTLED, cause=blamed(Cause.LR_TOO_HIGH, 0.4)),
    Row("it rose over thousands of steps", ScaleLr(0.5, 500), about=SLOW, step=43_200,
        targets=(target(18_900),)),
    Row("it rose over thousands of steps, and a lower rate was tried",
        Rollback("ckpt-18900", 18_900, None, 0.5, 500), about=SLOW, step=43_200,
        targets=(target(18_900),), history=rolled(ScaleLr(0.5, 500))),
    Row("it rose over thousands of steps, and there is no target", ScaleLr(0.5, 500), about=SLOW,
        step=43_200, targets=()),
    Row("it rose over 220 steps", Rollback("ckpt-1000", 1000, None, 0.5, 250),
        about={"detected_step": 1420, "peak_step": 1490, **SETTLED}, step=1500),
    # ---- the cause is known ----
    Row("bad batches", Rollback("mem-1190", 1190, BatchRange(1199, 1202)), about=SETTLED,
        cause=blamed(Cause.BAD_BATCH, mark=Mark(1200, 1202))),
    Row("bad batches without a known end",
        Rollback("mem-1190", 1190, BatchRange(1198, 1482)), about=SETTLED,
        cause=blamed(Cause.BAD_BATCH, mark=Mark(1200))),
    Row("bad batches that ended long ago, nobody knows where", NEAR, step=1900,
        about={"newest_step": 1900, "anomalous_step": 1900, **SETTLED},
        cause=blamed(Cause.BAD_BATCH)),
    Row("rare tokens", Rollback("mem-1190", 1190, BatchRange(1199, 1202)), about=SETTLED,
        cause=blamed(Cause.RARE_TOKENS, mark=Mark(1200, 1202))),
    Row("the rate was raised", Rollback("mem-1190", 1190, None, 0.05, 22), about=SETTLED,
        cause=blamed(Cause.LR_TOO_HIGH, mark=RAISED)),
    Row("the rate was raised tenfold", Rollback("mem-1190", 1190, None, 0.1, 22), about=SETTLED,
        cause=blamed(Cause.LR_TOO_HIGH, mark=Mark(1198, 1204, ratio=10.0))),
    Row("the rate was raised nine steps before", Rollback("ckpt-1188", 1188, None, 0.05, 24),
        about=SETTLED, cause=blamed(Cause.LR_TOO_HIGH, mark=Mark(1191, 1204, 40.0)),
        targets=(target(1150), target(1188), target(1195))),
    Row("the rate is too high here", Rollback("mem-1190", 1190, None, 0.5, 290), about=SETTLED,
        cause=blamed(Cause.LR_TOO_HIGH)),
    Row("the rate was raised for good", Rollback("mem-1190", 1190, None, 1 / 3, 290),
        about=SETTLED, cause=blamed(Cause.LR_TOO_HIGH, mark=Mark(1198, None, ratio=3.0))),
    Row("the second moment was spoilt", WITHOUT_A_SKIP, about=SETTLED,
        cause=blamed(Cause.STALE_SECOND_MOMENT, mark=Mark(1195, 1200))),
    Row("the second moment was spoilt at no known step", Rollback("ckpt-900", 900, None, 0.5, 220),
        about=SETTLED, cause=blamed(Cause.STALE_SECOND_MOMENT)),
    Row("weights changed by no update", WITHOUT_A_SKIP, about=SETTLED,
        cause=blamed(Cause.WEIGHT_CORRUPTION, mark=Mark(1199, 1200, rank=3))),
    Row("a value was not finite in the computation", WITHOUT_A_SKIP, about=SETTLED,
        cause=blamed(Cause.NON_FINITE_SOURCE)),
    Row("one layer is at fault", WITHOUT_A_SKIP, about=SETTLED, cause=blamed(Cause.LAYER_FAULT)),
    Row("no loss scale fits", None, DIVERGENT, about=SETTLED,
        cause=blamed(Cause.LOSS_SCALE_OVERFLOW)),
    Row("updates round to nothing", None, DIVERGENT, about=SETTLED,
        cause=blamed(Cause.STALLED_WEIGHTS)),
    # ---- it came back ----
    Row("elsewhere", Rollback("ckpt-1000", 1000, BatchRange(1406, 1411), 0.5, 250),
        about=came_back(1400, 1407), history=rolled(NEAR), step=1430),
    Row("elsewhere, twice", Rollback("ckpt-1000", 1000, BatchRange(1406, 1411), 1 / 3, 250),
        about=came_back(1400, 1407, 2), history=rolled(NEAR, NEAR), step=1430),
    Row("three times", Stop(), about=came_back(1400, 1407, 3), history=rolled(NEAR, NEAR, NEAR),
        step=1430),
    Row("right behind the skipped batches", Rollback("mem-1190", 1190, BatchRange(1198, 1271)),
        about=came_back(1199, 1208), history=rolled(NEAR), step=1229),
    Row("right behind the widened skip", Stop(), about=came_back(1199, 1218, 2),
        history=rolled(NEAR, WIDENED), step=1229),
    *(
        Row(f"where it began, {cause.value}",
            Rollback(f"ckpt-{back}", back, BatchRange(1198, 1210), *rate),
            cause=blamed(cause), about=just_back(), history=rolled(WITHOUT_A_SKIP), step=1202)
        for cause, back, rate in (
            (Cause.LR_TOO_HIGH, 1150, (1 / 3, 280)), (Cause.STALE_SECOND_MOMENT, 900, (1 / 3, 220)),
            (Cause.NON_FINITE_SOURCE, 1150, ()), (Cause.LAYER_FAULT, 1150, ()),
            (Cause.UNKNOWN, 1000, (0.5, 250)), (Cause.BAD_BATCH, 1000, ()),
        )
    ),
    Row("with other batches, just now", None, cause=blamed(Cause.LR_TOO_HIGH),
        about=just_back(1230), history=rolled(WITHOUT_A_SKIP), step=1202),
    Row("weights change again", Stop(), cause=blamed(Cause.WEIGHT_CORRUPTION),
        about=came_back(1400, None), step=1430,
        history=(replace(done(WITHOUT_A_SKIP), cause=Cause.WEIGHT_CORRUPTION),)),
    Row("weights change again just now", Stop(), cause=blamed(Cause.WEIGHT_CORRUPTION), step=1402,
        about=came_back(1400, None, newest_step=1402, settled=False),
        history=(replace(done(WITHOUT_A_SKIP), cause=Cause.WEIGHT_CORRUPTION),)),
    Row("weights change, after the rate was too high", Rollback("ckpt-1150", 1150),
        cause=blamed(Cause.WEIGHT_CORRUPTION), about=came_back(1400, None), step=1430,
        history=(replace(done(WITHOUT_A_SKIP), cause=Cause.LR_TOO_HIGH),)),
    # ---- the run is stuck, or its ranks differ ----
    Row("stuck", NEAR, DIVERGENT, about=STUCK, step=1209),
    Row("stuck, no way back", Stop(), DIVERGENT, about=STUCK, step=1209, targets=()),
    Row("ranks differ", Rollback("ckpt-1000", 1000), DIVERGENT, about=APART, step=1250),
    Row("ranks differ, a target right before", Rollback("ckpt-1149", 1149), DIVERGENT, about=APART,
        step=1250, targets=(*TARGETS, target(1149))),
    Row("ranks differ since before the spike", Rollback("ckpt-1000", 1000), DIVERGENT, step=1250,
        about={**APART, "onset_step": 1200, "onset_batches": BatchRange(1199, 1200),
               "signal": "loss"}),
    Row("ranks differ, no target", Stop(), DIVERGENT, about=APART, step=1250, targets=()),
    Row("ranks differ, no rollback", Stop(), DIVERGENT, about=APART, step=1250, can=NO_ROLLBACK),
    Row("ranks differ again", Stop(), DIVERGENT, about=APART_AGAIN, step=1200,
        history=(done(Rollback("ckpt-1000", 1000), CommandState.JUDGED, step=1255),)),
    Row("ranks were made equal", Watch(200), HEALING, step=1250,
        about={**APART, "first_moves": {}}),
    # ---- there is no way back ----
    Row("no target", Stop(), targets=()),
    Row("no rollback", Stop(), can=NO_ROLLBACK),
    Row("no command at all", None, can=frozenset()),
    Row("no target, the rate is too high", ScaleLr(0.5, 300), targets=(),
        cause=blamed(Cause.LR_TOO_HIGH)),
    Row("no target before it, climbing", ScaleLr(0.5, 300), DIVERGENT, about=CLIMBING,
        targets=(target(1250),)),
    Row("no target, climbing at a lowered rate", Stop(), DIVERGENT, about=CLIMBING, targets=(),
        history=rolled(ScaleLr(0.5, 300))),
    Row("no target, not finite", Stop(), DIVERGENT, about={"excess": math.nan}, targets=()),
    Row("a target in memory, no rollback", Stop(), can=NO_ROLLBACK,
        targets=(target(1190, Health.HEALTHY, Medium.MEMORY),)),
]  # fmt: skip


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row.name)
def test_a_situation_is_answered_as_the_table_says(row: Row) -> None:
    about = incident(kind=row.kind, causes=row.cause, **row.about)
    asked = situation(
        about, step=row.step, targets=row.targets, capabilities=row.can, past=row.history
    )
    proposal = propose(asked, DEFAULT_POLICY)
    assert proposal.action == row.action, proposal.reason
    assert proposal.reason
