"""Adaptive clipping does what the papers say, survives what they do not mention, and goes back."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spikeguard import AttachError, attach
from spikeguard.optim.clipping import ClipSignal, Rule, ZClip, rule_of, under
from spikeguard_protocol import Medium, Rollback

from .job import FAST, Job, assert_same, order, target_at
from .wire import Wire, served

LEVEL = [1.0 + 0.05 * math.sin(1.7 * n) for n in range(60)]


def run(rule: Rule, norms: list[float]) -> list[float]:
    """The clipped norm of each."""
    return [float(n * rule.judge(torch.tensor(n)).factor) for n in norms]


def papers_zclip(norms: list[float]) -> list[float]:
    """ZClip in plain floats from the paper's equations: 25 steps of warm-up, no maximum."""
    head = norms[:25]
    mean, variance, out = statistics.fmean(head), statistics.pvariance(head), list(head)
    for norm in norms[25:]:
        z = (norm - mean) / math.sqrt(variance)
        if z > 2.5:
            norm = mean + 2.5**2 / z * math.sqrt(variance)
        mean = 0.97 * mean + 0.03 * norm
        variance = 0.97 * variance + 0.03 * (norm - mean) ** 2
        out.append(norm)
    return out


def test_zclip_follows_the_papers_equations() -> None:
    norms = [*LEVEL[:40], 9.0, 1.02, 1.3, *LEVEL[43:]]
    clipped = run(ZClip(max_threshold=None), norms)
    assert clipped == pytest.approx(papers_zclip(norms), rel=1e-4)
    assert clipped[40] < 1.2


def test_zclip_catches_a_spike_after_a_nan_and_an_infinity() -> None:
    rule = ZClip(max_threshold=None)
    clipped = run(rule, [*LEVEL, math.nan, math.inf, *LEVEL, 25.0])
    assert math.isnan(clipped[60])
    assert clipped[61] == math.inf  # left as it is: the update_skipper's to drop
    assert clipped[-1] < 1.3


@pytest.mark.parametrize("factor", [1.5, 3.0, 20.0])
def test_a_level_that_moved_for_good_is_adopted(factor: float) -> None:
    rule = ZClip(max_threshold=None)
    moved = [factor * n for n in LEVEL * 2]
    clipped = run(rule, LEVEL * 2 + moved)
    assert clipped[120] < 1.3
    late = slice(160, None)
    free = [c for c, n in zip(clipped[late], moved[40:], strict=True) if c > 0.99 * n]
    assert len(free) >= 0.95 * len(moved[40:])


def test_the_maximum_bounds_the_limit() -> None:
    assert max(run(ZClip(max_threshold=0.5), LEVEL)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ZClip(decay=1.0),
        lambda: ZClip(max_threshold=0.0),
    ],
)
def test_a_wrong_setting_names_itself_and_the_remedy(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"is .*\. Give "):
        wrong()


@pytest.mark.parametrize(
    ("medium", "make"),
    [
        (Medium.MEMORY, lambda: ZClip(warm_up=5, patience=5)),
        (Medium.DISK, lambda: ZClip(warm_up=5)),
    ],
)
def test_what_a_rule_has_learnt_goes_back_with_the_training_state(
    tmp_path: Path, make: Any, medium: Medium
) -> None:
    """Rolled back from step 40 to 25 or 30 and on to 45: bit for bit what never left the road."""
    straight = Job(tmp_path / "a", clip=make()).train_to(45)
    expected = straight.everything()
    back = Job(tmp_path / "b", clip=make())  # sets the random numbers anew
    back.train_to(40)
    step = 25 if medium is Medium.DISK else 30
    order(back, Rollback(target_at(back, step, medium), step))
    back.train_step()
    assert back.guard.steps < 40
    back.train_to(45)
    assert_same(back.everything(), expected)
    assert back.guard.faults == straight.guard.faults == {}
    straight.guard.finish()
    back.guard.finish()


def norm_of_gradients(job: Job) -> float:
    held = [p.grad for p in job.model.parameters() if p.grad is not None]
    return math.sqrt(sum(g.square().sum().item() for g in held))


def test_the_plain_call_tells_the_norm_on_both_sides_and_whether_it_clipped(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        clip, norms = job.guard.clip_grad_norm_, list[float]()
        limit = itertools.cycle([0.3, 1e3])
        job.guard.clip_grad_norm_ = lambda _: clip(next(limit))  # type: ignore[method-assign, assignment]
        job.spoil = lambda j: norms.append(norm_of_gradients(j))
        job.train_to(12)
        job.guard.clip_grad_norm_ = lambda _: clip(None)  # type: ignore[method-assign, assignment]
        job.train_to(14)
        job.guard.finish()
        raw, clipped = wire.column("grad_norm"), wire.column("grad_norm_clipped")
        hits, shares = wire.column("grad_clipped"), wire.column("clip_factor")
    assert [clipped[0, n] for n in range(1, 13)] == pytest.approx(norms[:12], rel=1e-4)
    assert [hits[0, n] for n in range(1, 13)] == [float(n % 2) for n in range(1, 13)]
    for n in range(1, 13):
        assert shares[0, n] == pytest.approx(norms[n - 1] / raw[0, n], rel=1e-4)
    assert max(step for _, step in clipped) == 12  # only measured: nothing to tell


def gradients_of(job: Job) -> list[Tensor]:
    return [p.grad.clone() for p in job.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("clip", [None, "zclip"])
def test_sparse_gradients_are_measured_and_clipped_as_dense_ones(
    tmp_path: Path, clip: str | None
) -> None:
    """Torch's own clipping refuses them."""

    def trained(sparse: bool) -> tuple[list[float], list[Tensor], dict[str, int]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(8, 4, sparse=sparse), nn.Linear(4, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = attach(model, optimizer, run="r", directory=tmp_path / f"{sparse}", clip=clip)
        norms = []
        for step in range(4):
            rows = torch.tensor([0, 1, 1, step])  # twice the same row: its gradients add up
            guard.loss(nn.functional.cross_entropy(model(rows), rows)).backward()
            norms.append(float(guard.clip_grad_norm_(0.05)))
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
        guard.finish()
        return norms, [p.detach() for p in model.parameters()], dict(guard.faults)

    norms, weights, faults = trained(sparse=True)
    usual, dense, _ = trained(sparse=False)
    assert norms == pytest.approx(usual, rel=1e-5)
    torch.testing.assert_close(weights, dense)
    assert faults == {}


@pytest.mark.parametrize("called", [True, False], ids=["called", "not called"])
def test_a_rule_by_its_name_clips_as_its_factor_says(called: bool, tmp_path: Path) -> None:
    """By the loop's own call, under its maximum, or where the loop clips by none."""
    plain = rule_of("zclip")
    assert plain is not None
    with served(Wire()) as wire:
        job = Job(tmp_path, clip="zclip", server=wire.url)
        guarded = job.guard.clip_grad_norm_
        most, scaled, left, told = 5.0 if called else None, [], [], []

        def clip(_: float | None) -> Tensor:
            if job.guard.steps == 32:
                for p in job.model.parameters():
                    p.grad = None if p.grad is None else 20.0 * p.grad
            before = gradients_of(job)
            norm = torch.linalg.vector_norm(torch.stack([grad.norm() for grad in before]))
            judged = plain.judge(norm)
            judged = judged if most is None else under(judged, norm, most)
            for p in job.model.parameters():
                p.grad = None if p.grad is None else p.grad * judged.factor
            told.append((norm, judged.signals))
            scaled.append(gradients_of(job))
            for p, grad in zip(job.model.parameters(), before, strict=True):
                p.grad = grad
            return guarded(most) if called else torch.zeros(())

        job.guard.clip_grad_norm_ = clip  # type: ignore[method-assign, assignment]
        job.optimizer.register_step_pre_hook(lambda *_: left.append(gradients_of(job)))
        job.train_to(40)
        job.guard.finish()
        columns = {
            signal: wire.column(signal)
            for signal in ("grad_norm", "grad_norm_clipped", "grad_clipped", "clip_limit")
        }
    assert job.guard.faults == {}
    for ours, theirs in zip(left, scaled, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-8)
    results = {
        (0, n): (norm, said[ClipSignal.NORM], said[ClipSignal.CLIPPED], said[ClipSignal.LIMIT])
        for n, (norm, said) in enumerate(told, start=1)
    }
    for place, result in results.items():
        for column, value in zip(columns.values(), result, strict=True):
            expected = float(value) if math.isfinite(float(value)) else None
            found = column.get(place)
            assert found == expected or found == pytest.approx(expected, rel=1e-4)
    clipped = [n for n, r in results.items() if float(r[2])]
    assert (0, 33) in clipped
    assert all(float(results[n][0]) > float(results[n][3]) for n in clipped)


def test_a_rule_that_there_is_none_of_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    for wrong in ("zlip", 1.0):
        with pytest.raises(AttachError, match=r"clip=.*Give one of zclip"):
            Job(tmp_path, clip=wrong)


def test_gradients_that_a_scaler_leaves_to_the_optimizer_are_judged_unscaled(
    tmp_path: Path,
) -> None:
    """Fused, the optimizer divides by the scale in its own step, after the rule has judged."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    with served(Wire()) as wire:
        guard = attach(
            model, optimizer, run="test", directory=tmp_path, server=wire.url, settings=FAST,
            state=[scaler], clip=ZClip(max_threshold=0.01),
        )  # fmt: skip
        for _ in range(3):
            loss = guard.loss(model(torch.ones(4, 8)).square().mean())
            scaler.scale(loss).backward()
            expected = model.weight.grad.norm() / 1024.0 if model.weight.grad is not None else 0
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            guard.step()
        guard.finish()
        raw, left = wire.column("grad_norm"), wire.column("grad_norm_clipped")
    assert guard.faults == {}
    assert float(expected) <= raw[0, 3] < 100.0
    assert all(value == pytest.approx(0.01, rel=1e-4) for value in left.values())
