"""What may have started a spike: each cause from the marks it leaves, and `unknown` without any."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from spikeguard_core.detection.sample import Sample
from spikeguard_core.diagnosis.cause.layers import LayerRow, clues_of_layers, first_layer
from spikeguard_core.diagnosis.cause.ranking import rank
from spikeguard_core.diagnosis.evidence import WATCHED, gather_evidence
from spikeguard_core.events import Closed, Event, Opened, Recurred, Revised, Trend
from spikeguard_core.monitor.monitor import Monitor
from spikeguard_core.suspicion import Mark, Ranking, again, known_in, worth_showing
from spikeguard_protocol import BatchRange, Cause, Outcome, Verb
from spikeguard_server.ingest.detection import freeze, thaw

ONSET = 301
STRANGE = [0.0, -0.0, 5e-324, 1e308, -1e308, math.nan, math.inf, -math.inf, 1.0, -1.0, 30.0]
SLOW = ("update_norm", "adam_v_norm", "param_norm")
Change = Callable[[int], Mapping[str, float]]  # step -> what is measured there instead


@cache
def measured(step: int) -> Mapping[str, float]:
    """A calm step with every norm; updates move the weights by 0.09, their norm by 0.01."""
    rng = np.random.default_rng(step)
    noise = 1 + 0.05 * rng.normal(size=4)
    return {
        "loss": 3.0 - 0.1 * math.log(step) + 0.02 * float(rng.normal()),
        "grad_norm": float(noise[0]),
        "update_norm": 30.0 * float(noise[1]),
        "adam_v_norm": 0.02,
        "param_norm": 50.0 + 0.01 * step,
        "lr": 3e-3,
        "token_entropy": 3.2 + 0.05 * float(rng.normal()),
        "unseen_tokens": 0.0,
    }


def row(step: int, change: Change, without: tuple[str, ...] = ()) -> Sample:
    values = {name: v for name, v in measured(step).items() if name not in without}
    return Sample(step, values | dict(change(step)), BatchRange(step - 1, step))


def told(change: Change, without: tuple[str, ...] = (), rows: int = 360) -> list[Event]:
    monitor = Monitor()
    return monitor.observe([row(step, change, without) for step in range(1, rows + 1)])


def newest(events: list[Event]) -> Ranking:
    explained = [e for e in events if isinstance(e, Opened | Revised | Recurred | Closed)]
    assert explained, "no incident"
    return explained[-1].causes


def only_at(step: int, **values: float) -> Change:
    return lambda at: values if at == step else {}


def lasting(change: Mapping[str, float], since: int = ONSET) -> Change:
    return lambda at: change if at >= since else {}


def reasons(ranking: Ranking) -> str:
    return "; ".join(ranking[0].reasons)


def parted(step: int) -> Mapping[str, float]:
    """Every 50 steps the ranks' weights are compared; from step 250 on rank 3 has others."""
    compared = {"replicas_apart": float(step >= 250)} if step % 50 == 0 else {}
    which = {"replica_apart": 3.0} if step % 50 == 0 and step >= 250 else {}
    return compared | which | ({"loss": 6.0, "grad_norm": 8.0} if step >= ONSET else {})


def reset(step: int) -> Mapping[str, float]:
    """The second moment falls to a 200th before the onset."""
    moment = {"adam_v_norm": 1e-4, "update_norm": 600.0} if step >= ONSET - 1 else {}
    return moment | ({"loss": 5.0, "grad_norm": 3.0} if step >= ONSET else {})


def stale(step: int) -> Mapping[str, float]:
    """Updates grow before their gradients do."""
    updates = {"update_norm": 400.0} if step >= ONSET - 1 else {}
    grown = {"loss": 5.0, "grad_norm": 2.0 - 0.001 * (step - ONSET)}  # no limit cuts it off
    return updates | (grown if step >= ONSET else {})


def decayed(step: int) -> Mapping[str, float]:
    """Updates that point at zero: each takes 0.8 of 0.9 off the norm."""
    pulled = {"param_norm": 53.0 - 0.8 * (step - ONSET + 4), "update_norm": 300.0}
    return (pulled if step >= ONSET - 4 else {}) | (
        {"loss": 2.43 + 0.1 * (step - ONSET)} if step >= ONSET else {}
    )


def raised(step: int) -> Mapping[str, float]:
    rate = {"lr": 3e-2} if step >= ONSET - 4 else {}
    return rate | ({"loss": 3.0 + 0.5 * (step - ONSET)} if step > ONSET else {})


def restarted(step: int) -> Mapping[str, float]:
    """The rate is back where the run had it at first."""
    return {"lr": 3e-2, **raised(step)} if step < 100 else raised(step)


def poisoned(step: int) -> Mapping[str, float]:
    if step < ONSET:
        return {}
    values = dict.fromkeys(("grad_norm", *SLOW), math.nan)
    return values if step == ONSET else {**values, "loss": math.nan}


def few(step: int, worst: float, mean: float) -> dict[str, float]:
    """Losses in the onset, and the worst sequence's elsewhere, by a tenth about 3.9."""
    if step == ONSET:
        return {"loss": mean, "grad_norm": 30.0, "loss_sequence_max": worst}
    return {"loss_sequence_max": 3.9 + 0.1 * (-1) ** step}


def corrupted(step: int) -> Mapping[str, float]:
    """The weights jump by 4 after step 300; the loss shows it in the next."""
    weights = {"param_norm": 54.0 + 0.01 * step} if step >= ONSET - 1 else {}
    return weights | ({"loss": 6.0, "grad_norm": 8.0} if step >= ONSET else {})


def climbing(step: int) -> Mapping[str, float]:
    """It diverges over twelve steps, and overflows then."""
    over = step - ONSET
    return {} if over < 0 else {"loss": 3.0 + 2.0 * over if over < 12 else math.nan}


ODD = {"loss": 9.0, "grad_norm": 30.0}
# 16 rows of one byte each: the entropy is that of text
BYTES = {"token_entropy": 3.0, "unseen_tokens": 0.87}
NEW = {"unseen_tokens": 0.25, "update_norm": 30.0}
MARKS: dict[str, tuple[Change, Cause, str]] = {
    "a batch that stood out alone": (
        only_at(ONSET, **ODD), Cause.BAD_BATCH,
        "at once with step 302, and the gradient norm too",
    ),
    "tokens never seen": (only_at(ONSET, **ODD, unseen_tokens=0.2), Cause.RARE_TOKENS, "20.0%"),
    "tokens unlike any text": (
        only_at(ONSET, **ODD, token_entropy=5.5, unseen_tokens=0.6), Cause.BAD_BATCH,
        "entropy of 5.5 nats",
    ),
    "most tokens are new": (
        only_at(ONSET, **ODD, **BYTES), Cause.BAD_BATCH, "87.0% of its tokens were never seen"
    ),
    "ranks hold other weights": (
        parted, Cause.WEIGHT_CORRUPTION, "comparison at step 250 on, 1 rank (rank 3) did not hold"
    ),
    "a second moment that beta2 lets fall less fast": (
        reset, Cause.STALE_SECOND_MOMENT, "fell from 0.02 to 0.0001"
    ),
    "updates outgrow gradients": (stale, Cause.STALE_SECOND_MOMENT, "2-fold"),
    "weight decay was raised": (decayed, Cause.UNKNOWN, "shrank the weights by 89% of their own"),
    "the rate rose": (
        raised, Cause.LR_TOO_HIGH, "rose 10-fold, from 0.003 to 0.03, at step 297"
    ),
    "the schedule began anew": (
        restarted, Cause.LR_TOO_HIGH, "back where it was at step 1: a warm restart, or a schedule"
    ),
    "the gradient is not finite first": (poisoned, Cause.NON_FINITE_SOURCE, "backward pass"),
    "two of 16 rows are random bytes": (
        lambda step: few(step, 9.5, 3.2), Cause.BAD_BATCH, "few sequences carry it"
    ),
    "a quarter of the rows is one byte each, none ever seen": (
        lambda step: few(step, 14.0, 4.6) | (NEW if step == ONSET else {}), Cause.BAD_BATCH, ""
    ),
    "as many new tokens in all rows": (
        only_at(ONSET, loss=4.6, grad_norm=30.0, **NEW), Cause.RARE_TOKENS, "25.0%"
    ),
    "weights changed by no update": (
        corrupted, Cause.WEIGHT_CORRUPTION, "changed by 4.01 from 53 between steps 299 and 300"
    ),
    "a batch's own loss stood out, and updates grew with its gradient": (
        only_at(ONSET, loss=9.0, grad_norm=96.0, update_norm=193.0), Cause.BAD_BATCH, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "cause", "said"), MARKS.values(), ids=MARKS)
def test_a_cause_is_told_by_the_marks_that_it_leaves(
    change: Change, cause: Cause, said: str
) -> None:
    found = newest(told(change))
    assert found[0].cause is cause
    assert said in reasons(found)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda step: {**corrupted(step), **only_at(ONSET - 1, update_norm=3000.0)(step)},
         Cause.WEIGHT_CORRUPTION),
        (climbing, Cause.NON_FINITE_SOURCE),
    ],
    ids=["updates explain the change", "it diverged before it overflowed"],
)  # fmt: skip
def test_a_cause_is_not_blamed_where_something_else_explains_its_mark(
    change: Change, cause: Cause
) -> None:
    assert newest(told(change))[0].cause is not cause


def test_an_outlier_batch_is_put_down_to_its_data_whatever_else_is_measured() -> None:
    nothing = tuple(name for name in measured(1) if name != "loss")
    events = told(only_at(ONSET, loss=2.43 + 25 * 0.02), nothing)
    assert isinstance(events[-1], Closed)
    assert events[-1].outcome is Outcome.OUTLIER
    assert newest(events)[0].cause is Cause.BAD_BATCH


def test_tokens_are_looked_at_where_the_loss_stood_out_and_not_a_step_early() -> None:
    """Two high losses by chance right before bad data make the onset a step early."""
    odd = {"grad_norm": 3.0, "token_entropy": 5.0, "unseen_tokens": 0.6}

    def change(step: int) -> Mapping[str, float]:
        if step == ONSET:
            return {"loss": measured(step)["loss"] + 0.09, "grad_norm": 1.7}
        heights = [7.9, 8.3, 8.0, 7.5, 7.2, 7.0, 6.1, 5.4]
        bad = ONSET < step <= ONSET + len(heights)
        return {"loss": heights[step - ONSET - 1], **odd} if bad else {}

    events = told(change, rows=ONSET + 5)
    opened = next(event for event in events if isinstance(event, Opened))
    assert opened.onset_step == ONSET
    found = newest(events)
    assert found[0].cause is Cause.BAD_BATCH
    assert found[0].mark is not None
    assert found[0].mark.first_step == ONSET + 1
    assert "entropy of 5 nats" in reasons(found)


def test_ranks_that_were_made_equal_again_explain_nothing_that_follows() -> None:
    def change(step: int) -> Mapping[str, float]:
        known = parted(step)
        return {**known, "replicas_apart": 0.0} if step == 300 else known

    said = [r for one in newest(told(change, rows=345)) for r in one.reasons]
    assert not [reason for reason in said if "did not hold the weights" in reason]


def test_weights_measured_now_and_then_show_it_too_less_surely() -> None:
    monitor, events = Monitor(), list[Event]()
    for step in range(1, 361):
        far = not monitor.attentive and step % 10 != 5
        events += monitor.observe([row(step, _without_slow(corrupted, far), SLOW if far else ())])
    found = newest(events)
    assert found[0].cause is Cause.WEIGHT_CORRUPTION
    assert "about" in reasons(found)
    assert found[0].confidence < newest(told(corrupted))[0].confidence


def _without_slow(change: Change, far: bool) -> Change:
    return lambda at: {n: v for n, v in change(at).items() if not (far and n in SLOW)}


def test_the_jobs_own_beta2_says_how_fast_its_second_moment_may_fall() -> None:
    def reset(step: int, beta2: float | None) -> Mapping[str, float]:
        own = {} if beta2 is None else {"adam_beta2": beta2}
        moment = {"adam_v_norm": 0.0175, "update_norm": 400.0} if step >= ONSET - 1 else {}
        grown = {"loss": 5.0, "grad_norm": 2.0 - 0.001 * (step - ONSET)}
        return own | moment | (grown if step >= ONSET else {})

    told_own, told_none = (
        reasons(newest(told(partial(reset, beta2=beta2)))) for beta2 in (0.999, None)
    )
    assert "no beta2 of 0.999 or more lets it fall below 0.02" in told_own
    assert "follows within some 1,000 steps" in told_own
    assert "fell from" not in told_none
    assert "beta2" not in told_none


def late(at: int) -> Change:
    """The trainer's gradient_jump of 100 after 500 calm steps with a beta2 of .999: the growth of
    gradient, update and loss in the first six steps, as they were measured."""
    grew = (
        (96.5, 6.44, 0.0), (1.54, 5.78, 0.0), (2.49, 5.19, 0.23),
        (3.29, 4.67, 0.6), (3.1, 4.26, 0.5), (2.75, 3.89, 0.75),
    )  # fmt: skip

    def change(step: int) -> Mapping[str, float]:
        if step < at:
            return {}
        gradient, update, excess = grew[min(step - at, 5)]
        calm = measured(step)
        return {
            "loss": calm["loss"] + excess, "adam_v_norm": calm["adam_v_norm"] * 18.4,
            "grad_norm": calm["grad_norm"] * gradient, "update_norm": calm["update_norm"] * update,
        }  # fmt: skip

    return change


@pytest.mark.parametrize("without", [(), ("adam_v_norm", "param_norm", "lr")])
def test_a_gradient_that_the_second_moment_had_not_followed_is_said_where_the_loss_rose_after_it(
    without: tuple[str, ...],
) -> None:
    found = newest(told(late(ONSET), without))
    assert (found[0].cause, found[0].mark) == (Cause.STALE_SECOND_MOMENT, Mark(ONSET, ONSET))
    assert found[0].confidence > 0.6
    assert f"at step {ONSET} gradients grew 9" in reasons(found)
    assert "the loss rose only after it" in reasons(found)


HIT = {"loss": 6.0, "grad_norm": 9.0}
BARE = ("token_entropy", "unseen_tokens", *SLOW)


def gone_back(first: Change, without: tuple[str, ...]) -> tuple[Monitor, list[Event], bytes]:
    """250 calm steps, 90 with `first`, and a rollback to step 250; the events of the 90, and the
    monitor as it was at that step."""
    monitor = Monitor()
    monitor.observe([row(step, lambda _: {}, without) for step in range(1, 251)])
    past = freeze(monitor)
    events = monitor.observe([row(step, first, without) for step in range(251, 341)])
    monitor.rewind(thaw(past))
    monitor.intervened(250, Verb.ROLLBACK)
    return monitor, events, past


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        ({"lr": 3e-2}, Cause.LR_TOO_HIGH),
        ({"param_norm": 120.0}, Cause.WEIGHT_CORRUPTION),
    ],
    ids=["another", "the same"],
)
def test_what_comes_back_is_explained_by_its_own_rows(
    second: dict[str, float], cause: Cause
) -> None:
    """Weights changed by no update at first; what follows the rollback is told from it."""
    bare = ("token_entropy", "unseen_tokens")
    monitor, events, _ = gone_back(lasting({**HIT, "param_norm": 120.0}), bare)
    assert newest(events)[0].cause is Cause.WEIGHT_CORRUPTION

    def again(step: int) -> Mapping[str, float]:
        return (second if step >= 333 else {}) | (HIT if step >= 335 else {})

    events = monitor.observe([row(step, again, bare) for step in range(251, 380)])
    assert any(isinstance(event, Recurred) for event in events)
    found = newest(events)
    assert found[0].cause is cause
    assert found[0].confidence > 0.6


@pytest.mark.parametrize("raised", [False, True], ids=["back", "raised"])
def test_a_rate_that_climbs_back_from_where_a_command_lowered_it_has_not_risen(
    raised: bool,
) -> None:
    """Back at its usual height it explains nothing; three times as high it does."""

    def first(step: int) -> Mapping[str, float]:
        return ({"lr": 0.12} if 299 <= step < 307 else {}) | (HIT if step >= ONSET else {})

    monitor, events, _ = gone_back(first, SLOW)
    assert newest(events)[0].cause is Cause.LR_TOO_HIGH

    def again(step: int) -> Mapping[str, float]:
        rate = 1.5e-4 if step < 321 else 9e-3 if raised and step < 329 else 3e-3
        return {"lr": rate} | (HIT | {"token_entropy": 0.1} if step >= 325 else {})

    events = monitor.observe([row(step, again, SLOW) for step in range(251, 380)])
    recurred = next(event for event in events if isinstance(event, Recurred))
    blamed = {one.cause: one for one in newest(events)}
    said = " ".join(blamed[Cause.LR_TOO_HIGH].reasons)
    assert recurred.onset_step == 325
    assert ("rose 3-fold, from 0.003 to 0.009, at step 321" in said) is raised
    if raised:
        mark = blamed[Cause.LR_TOO_HIGH].mark
        assert mark is not None
        assert (mark.first_step, mark.last_step, round(mark.ratio or 0.0)) == (321, 328, 60)
    else:
        assert "rose" not in said
        assert newest(events)[0].cause is not Cause.LR_TOO_HIGH


@pytest.mark.parametrize("at", [ONSET + 10, ONSET + 80])
@pytest.mark.parametrize("further", [True, False])
def test_a_rate_that_rises_while_the_loss_is_up_is_told_and_blamed_for_what_follows(
    at: int, further: bool
) -> None:
    """The loss climbs for five steps and stays up; then the rate is ten times as high."""

    def change(step: int) -> Mapping[str, float]:
        over, since = step - ONSET, step - at
        up = min(0.6, 0.12 * over) + (max(0.0, min(2.0, 0.1 * since)) if further else 0.0)
        return {} if over < 0 else {"loss": 2.43 + up, "lr": 3e-2 if since >= 0 else 3e-3}

    found = newest(told(change, rows=460))
    assert found[0].cause is (Cause.LR_TOO_HIGH if further else Cause.UNKNOWN)
    said = f"the learning rate rose 10-fold at step {at}"
    assert (said in reasons(found)) or (said in known_in(found))


def test_what_comes_back_right_behind_left_out_batches_speaks_for_the_data() -> None:
    """A longer stretch of bad data comes back with the next batches of it, time after time."""
    monitor, events, past = gone_back(lasting(HIT), BARE)
    before = {one.cause: one.confidence for one in newest(events)}
    for left_out in (5, 16):
        monitor.rewind(thaw(past))
        monitor.intervened(250, Verb.ROLLBACK)
        rows = [row(step, lasting(HIT), BARE) for step in range(251, 380)]
        events = monitor.observe([behind(sample, left_out) for sample in rows])
        recurred = next(event for event in events if isinstance(event, Recurred))
        after = {one.cause: one.confidence for one in recurred.causes}
        assert after[Cause.BAD_BATCH] > before[Cause.BAD_BATCH]
        assert after[Cause.BAD_BATCH] > after[Cause.LR_TOO_HIGH]
        assert "right behind" in " ".join(recurred.causes[0].reasons)
    monitor.rewind(thaw(past))
    monitor.intervened(250, Verb.ROLLBACK)
    calm = [row(step, lambda _: {}, BARE) for step in range(251, 420)]
    events = monitor.observe([behind(sample, 60) for sample in calm])
    assert isinstance(events[-1], Closed)
    assert events[-1].causes[0].cause is Cause.BAD_BATCH


def behind(sample: Sample, left_out: int) -> Sample:
    """The same step with later batches, if it comes after those that are left out."""
    if sample.step < ONSET - 2:
        return sample
    first = sample.step - 1 + left_out
    return replace(sample, batches=BatchRange(first, first + 1))


def test_the_rate_of_another_group_that_jumped_is_blamed_and_no_device() -> None:
    """It is told only while it is not the first group's."""

    def raised(step: int) -> Mapping[str, float]:
        moved = {"param_norm": 58.0 + 0.01 * step} if step >= ONSET else {}
        rate = {"lr_group_1": 0.3} if ONSET - 1 <= step < ONSET + 12 else {}
        return moved | rate | ({"loss": 3.0 + 0.5 * (step - ONSET)} if step > ONSET else {})

    found = newest(told(raised))
    assert found[0].cause is Cause.LR_TOO_HIGH
    assert "the learning rate of group 1 rose 100-fold, from 0.003 to 0.3, at step 300" in reasons(
        found
    )
    assert all(one.cause is not Cause.WEIGHT_CORRUPTION for one in worth_showing(found))
    mark = found[0].mark
    assert mark is not None
    assert (mark.first_step, mark.last_step) == (300, 312)
    assert mark.usual is None  # a cap is one on the first group's rate


@pytest.mark.parametrize("height", [0.2, 2.0])
def test_a_loss_that_climbs_beside_calm_norms_has_no_known_cause(height: float) -> None:
    """Nothing else moved: whatever it was, it was not measured."""

    def climbing(step: int) -> Mapping[str, float]:
        return {} if step < ONSET else {"loss": 2.43 + height * min(1.0, (step - ONSET) / 20)}

    found = newest(told(climbing))
    assert found[0].cause is Cause.UNKNOWN
    assert found[0].confidence > 0.5


Again = Callable[[Sample], Sample]


def returned(
    onset: int, shifted: Again = lambda sample: sample, first: Change | None = None
) -> tuple[Recurred, Ranking]:
    """A lasting jump that was gone back from and came back at step `onset`: what is told of it, and
    what the same rows were put down to as an incident of their own."""
    monitor, _, past = gone_back(first or lasting(HIT), BARE)
    rows = [shifted(row(step, lasting(HIT, onset), BARE)) for step in range(251, 380)]
    events = monitor.observe(rows)
    alone = [event for event in thaw(past).observe(rows) if isinstance(event, Opened)]
    return next(event for event in events if isinstance(event, Recurred)), alone[0].causes


@pytest.mark.parametrize("late", [0, 1, 2])
def test_what_comes_back_with_its_batches_speaks_for_the_data(late: int) -> None:
    """The second time its onset may be seen a step or two later."""
    recurred, alone = returned(ONSET + late)
    told = {one.cause: one for one in recurred.causes}
    assert told[Cause.BAD_BATCH].confidence > of(alone, Cause.BAD_BATCH)
    assert told[Cause.BAD_BATCH].confidence > told[Cause.LR_TOO_HIGH].confidence
    assert "came again at step" in reasons(recurred.causes[:1])
    assert ("with the same data" in reasons(recurred.causes[:1])) is (late == 0)


def test_what_shows_later_at_a_lowered_rate_comes_back_within_the_first_rise() -> None:
    """It climbed for nine steps at first."""

    def climb(step: int) -> Mapping[str, float]:
        return {"loss": 3.0 + min(step - ONSET + 1, 9), "grad_norm": 9.0} if step >= ONSET else {}

    recurred, _ = returned(ONSET + 6, first=climb)
    assert "where it had risen over" in reasons(recurred.causes[:1])
    recurred, _ = returned(ONSET + 14, first=climb)
    assert "again" not in reasons(recurred.causes)


def test_what_comes_back_at_its_step_with_other_batches_hangs_on_the_step() -> None:
    def later(sample: Sample) -> Sample:
        first = sample.step - 1 + 40
        return replace(sample, batches=BatchRange(first, first + 1))

    recurred, alone = returned(ONSET, later)
    assert of(recurred.causes, Cause.LR_TOO_HIGH) > of(alone, Cause.LR_TOO_HIGH)
    assert of(recurred.causes, Cause.BAD_BATCH) < of(alone, Cause.BAD_BATCH)


def test_what_comes_at_another_step_with_other_batches_is_told_from_its_own_rows() -> None:
    """Nothing comes again there: it says neither of the rate nor of the data."""
    recurred, alone = returned(ONSET + 40)
    for one in alone:
        assert of(recurred.causes, one.cause) == pytest.approx(one.confidence, abs=1e-6)
    assert "again" not in reasons(recurred.causes)


def of(ranking: Ranking, cause: Cause) -> float:
    return next(one.confidence for one in ranking if one.cause is cause)


def test_batches_that_pass_without_harm_the_second_time_are_cleared() -> None:
    """The same data and no spike: it was not the data."""
    monitor, events, _ = gone_back(lasting(HIT), SLOW)
    before = {one.cause: one.confidence for one in newest(events)}
    events = monitor.observe([row(step, lambda _: {}, SLOW) for step in range(251, 420)])
    after = {one.cause: one.confidence for one in newest(events)}
    assert isinstance(events[-1], Closed)
    assert after[Cause.BAD_BATCH] < before[Cause.BAD_BATCH] / 5


@pytest.mark.parametrize("seed", range(40))
def test_no_measurement_is_too_strange_to_be_ranked(seed: int) -> None:
    """Zeros, huge values, gaps of any length, whatever is not finite."""
    rng, state, steps = random.Random(seed), Monitor(), [0]
    for _ in range(rng.randint(1, 60)):
        steps.append(steps[-1] + rng.choice([1, 1, 1, 10, rng.randint(1, 2**40)]))
        found = {name: rng.choice(STRANGE) for name in WATCHED if rng.random() < 0.8}
        state.traces.take(Sample(steps[-1], found))
    onset = rng.choice(steps)
    for trend in (None, Trend(onset, 1.0, 0.0, 1e-12)):
        ranking = rank(gather_evidence(state.traces, onset, None, trend, False))
        assert math.isclose(sum(one.confidence for one in ranking), 1.0)


# --- layers -----------------------------------------------------------------------------------

LAYERS = [f"blocks.{number}.weight" for number in range(20)]


def norms(moved: Mapping[str, float], at: int, signal: str = "grad_norm") -> list[LayerRow]:
    """Rows of 40 steps before ONSET and 10 after; `moved`: factor from step `at` on."""
    rng = np.random.default_rng(1)
    return [
        LayerRow(
            step,
            signal,
            {n: float(0.4 + 0.02 * rng.random()) * (moved.get(n, 1) if step >= at else 1)
             for n in LAYERS},
        )
        for step in range(ONSET - 40, ONSET + 10)
    ]  # fmt: skip


def test_the_layer_that_moves_first_is_named_with_its_lead() -> None:
    first = first_layer(norms({LAYERS[7]: 30.0}, ONSET - 2), ONSET)
    assert first is not None
    assert (first.layer, first.ahead, first.moved, first.known) == (LAYERS[7], 2, 1, 20)
    assert first.ratio == pytest.approx(30.0, rel=0.1)
    assert "2 steps before the loss" in first.sentence
    found = again(newest(told(lasting({"loss": 6.0}), SLOW)), clues_of_layers(first))
    assert found[0].cause is Cause.LAYER_FAULT


def test_a_whole_model_that_moves_is_no_fault_of_one_layer() -> None:
    first = first_layer(norms(dict.fromkeys(LAYERS, 30.0), ONSET), ONSET)
    assert first is not None
    assert not first.alone
    before = newest(told(lasting({"loss": 6.0})))
    after = again(before, clues_of_layers(first))
    sure = [next(o.confidence for o in r if o.cause is Cause.LAYER_FAULT) for r in (before, after)]
    assert sure[1] < sure[0]


def test_a_layer_whose_weights_alone_jump_speaks_for_corruption_too() -> None:
    first = first_layer(norms({LAYERS[3]: 1.5}, ONSET - 1, "param_norm"), ONSET)
    assert first is not None
    said = {clue.cause for clue in clues_of_layers(first) if clue.weight > 0}
    assert said == {Cause.LAYER_FAULT, Cause.WEIGHT_CORRUPTION}


def test_calm_layers_and_too_few_rows_name_none() -> None:
    assert first_layer(norms({}, ONSET), ONSET) is None
    assert first_layer(norms({LAYERS[7]: 30.0}, ONSET + 9), ONSET) is None  # with the loss
    assert first_layer(norms({LAYERS[7]: 30.0}, ONSET)[-12:], ONSET) is None


@pytest.mark.parametrize(
    ("of_loss", "of_gradient", "known"), [(4, 4, True), (4, 1, False), (2.5, 2.5, False)]
)
def test_a_loss_that_is_counted_otherwise_is_told_from_one_that_rose(
    of_loss: float, of_gradient: float, known: bool
) -> None:
    def change(step: int) -> Mapping[str, float]:
        calm = measured(step)
        after = step >= ONSET
        return {
            "loss": calm["loss"] * (of_loss if after else 1.0),
            "grad_norm": calm["grad_norm"] * (of_gradient if after else 1.0),
        }

    (likeliest, *_) = newest(told(change, without=SLOW))
    said = any("evenly 4 times" in reason for reason in likeliest.reasons)
    assert (said, likeliest.cause is Cause.UNKNOWN and said) == (known, known)
