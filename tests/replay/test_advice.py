"""`spikeguard replay --policy`: what would have been proposed, when, and at what cost."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spikeguard_cli.command import CommandFailed
from spikeguard_core.detection.sample import Sample
from spikeguard_core.policy.cost import Cost, cost_of
from spikeguard_core.policy.settings import DEFAULT_POLICY
from spikeguard_core.policy.unattended import Unanswered
from spikeguard_protocol import Rollback, Verb, verb_of
from spikeguard_replay.advice import Assumed, advise
from spikeguard_replay.commands import REPLAY
from tests.domain.detection.curves import plateau, samples, spiked
from tests.replay.running import run

ONSET = 2_001


def diverging() -> list[Sample]:
    """A run that climbs by 0.05 nats a step from step 2001 on and never comes back."""
    losses = enumerate(plateau(2_200, seed=3), start=1)
    return samples([loss + (n >= ONSET) * (1.0 + 0.05 * (n - ONSET)) for n, loss in losses])


def healing() -> list[Sample]:
    return samples(spiked(plateau(2_600, seed=3), ONSET - 1, 2.0, 15))


def rollbacks(advice: list[Unanswered]) -> list[Rollback]:
    return [one.action for one in advice if isinstance(one.action, Rollback)]


def cost(one: Unanswered) -> Cost:
    return cost_of(one.action, one.situation, DEFAULT_POLICY)


def test_a_divergence_would_have_been_rolled_back_to_before_it() -> None:
    *early, one = advise(diverging(), DEFAULT_POLICY, Assumed(300, 2.0))
    assert {verb_of(before.action) for before in early} <= {Verb.WATCH}
    assert isinstance(one.action, Rollback)
    assert one.action.step == 1_800
    assert one.situation.step >= ONSET + DEFAULT_POLICY.patience_steps
    assert cost(one).steps == one.situation.step - 1_800
    assert cost(one).seconds == 2.0 * cost(one).steps


def test_without_a_checkpoint_there_is_no_way_back() -> None:
    advice = advise(diverging(), DEFAULT_POLICY, Assumed(checkpoint_every=0))
    assert rollbacks(advice) == []
    assert Verb.SCALE_LR in {verb_of(one.action) for one in advice}


def test_a_spike_that_heals_is_watched_and_never_rolled_back() -> None:
    advice = advise(healing(), DEFAULT_POLICY, Assumed(300))
    assert {verb_of(one.action) for one in advice} <= {Verb.WATCH}


def test_a_watch_is_told_once_however_far_the_rows_of_a_log_lie_apart() -> None:
    sparse = [Sample(1_000 * one.step, one.values) for one in healing()]
    told = [verb_of(one.action) for one in advise(sparse, DEFAULT_POLICY, Assumed())]
    assert told.count(Verb.WATCH) == 1


def test_of_a_loss_that_swings_a_command_is_told_again_only_after_another() -> None:
    rows = np.arange(1_000)
    swing = np.minimum(1.2, (rows - 499).clip(0) / 150) * np.abs(np.sin(np.pi * (rows - 499) / 60))
    noise = np.random.default_rng(59).normal(0.0, 0.02, len(rows))
    losses = 2.0 + 9.0 * (rows + 3.0) ** -0.3 + noise + swing
    samples = [Sample(n, {"loss": float(loss)}) for n, loss in enumerate(losses, start=1)]
    told = [verb_of(one.action) for one in advise(samples, DEFAULT_POLICY, Assumed())]
    assert Verb.SCALE_LR in told
    assert all(one is not other for one, other in pairwise(told))


@pytest.mark.parametrize("apart", [1, 10, 1_000])
def test_a_skip_reaches_back_to_the_row_before_the_cause_or_there_is_none(apart: int) -> None:
    sparse = [Sample(apart * one.step, one.values) for one in diverging()]
    back = rollbacks(advise(sparse, DEFAULT_POLICY, Assumed(300 * apart)))[0]
    row_before = apart * (ONSET - 1)
    if apart == 1_000:
        assert back.skip is None
    else:
        assert back.skip is not None
        assert back.skip.first <= row_before < back.skip.end


def test_the_pace_is_read_from_the_log_where_it_stands_there() -> None:
    samples = [Sample(one.step, {**one.values, "step_time": 0.5}) for one in diverging()]
    one = advise(samples, DEFAULT_POLICY, Assumed(300))[-1]
    assert cost(one).steps > 0
    assert cost(one).seconds == 0.5 * cost(one).steps


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = (f"{one.step},{one.values['loss']:.6f}\n" for one in diverging())
    (tmp_path / "run.csv").write_text("step,loss\n" + "".join(rows))
    return tmp_path / "run.csv"


def test_a_policy_file_and_a_price_say_what_it_would_have_cost(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """36 of a currency an hour at 2 s a step are 0.02 a step; the file's patience is kept."""
    policy = log.parent / "policy.toml"
    policy.write_text("version = 7\npatience_steps = 60\nprice_per_hour = 36.0\ncurrency = 'EUR'\n")
    run(REPLAY, str(log), "--json")
    plain = json.loads(capsys.readouterr().out)
    paced = ("--step-time", "2")
    run(REPLAY, str(log), "--json", "--policy", str(policy), "--checkpoint-every", "300", *paced)
    told = json.loads(capsys.readouterr().out)
    one = told["policy"]["proposals"][-1]
    assert one["verb"] == "rollback"
    assert one["step"] >= ONSET + 60
    assert one["cost"]["money"] == pytest.approx(0.02 * one["cost"]["steps"])
    assert (told["policy"]["currency"], told["policy"]["policy_version"]) == ("EUR", 7)
    assert "a checkpoint every 300 steps, all kept" in told["policy"]["assumed"]
    del told["policy"]
    assert told == plain


def test_the_listing_says_that_nothing_was_done(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(REPLAY, str(log), "--policy", "default", "--checkpoint-every", "300")
    out = capsys.readouterr().out
    assert "nothing was done." in out
    assert "step time unknown" in out
    assert "roll back to step 1,800 (step-1800), skip" in out
    assert "(a person decides)" in out
    assert "\n    Go back to step-1800" in out
    assert "\n\n    " not in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--policy", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("--policy", "default", "--checkpoint-every", "-1"), "--checkpoint-every takes steps"),
        (("--policy", "default", "--step-time", "0"), "--step-time takes seconds"),
    ],
)
def test_a_wrong_option_is_refused_by_name(log: Path, words: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandFailed, match=told):
        run(REPLAY, str(log), *words)
