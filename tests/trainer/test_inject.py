"""Each fault does what it says, then and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from spikeguard_trainer.faults import FaultName, parse_fault
from spikeguard_trainer.inject import FaultInjector, corrupt_batch
from spikeguard_trainer.model import Shape, Transformer
from spikeguard_trainer.schedule import make_optimizer, make_scheduler

SHAPE = Shape(16, 1, 2, 24, 8)
AROUND_THE_STEP = [name for name in FaultName if not name.startswith("bad_batch")]


class Lab:
    """A tiny run whose optimizer has moments and whose next step is ready to be made."""

    def __init__(self, folder: Path, *faults: str) -> None:
        torch.manual_seed(0)
        self.model = Transformer(SHAPE)
        self.optimizer = make_optimizer(self.model, lr=1e-3, beta2=0.95)
        self.scheduler = make_scheduler(self.optimizer, warmup=1, total=100)
        self._backward()
        self.optimizer.step()
        self._backward()
        self.injector = FaultInjector(
            [parse_fault(f) for f in faults],
            self.model,
            self.optimizer,
            memory=folder / "faults.json",
            seed=1,
        )

    def _backward(self) -> None:
        tokens = torch.arange(32).view(4, 8)
        self.optimizer.zero_grad()
        self.model(tokens, tokens + 1).backward()

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def gradients(self) -> list[Tensor]:
        return [p.grad.clone() for p in self.model.parameters() if p.grad is not None]

    def second_moments(self) -> list[Tensor]:
        return [s["exp_avg_sq"].clone() for s in self.optimizer.state.values()]

    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def everything(self) -> list[Tensor]:
        rates = torch.tensor(self.rates())
        return [*self.weights(), *self.gradients(), *self.second_moments(), rates]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """To the bit, so that NaN equals NaN."""
    pairs = zip(one, other, strict=True)
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


@pytest.mark.parametrize("name", AROUND_THE_STEP)
def test_a_fault_touches_nothing_before_and_after_its_steps(name: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path, f"{name}@10:2")
    before = lab.everything()
    with lab.injector.strike(9, 8):
        assert same(lab.everything(), before)
    for step in (10, 11):
        before = lab.everything()
        with lab.injector.strike(step, step - 1):
            assert not same(lab.everything(), before)
    before = lab.everything()
    with lab.injector.strike(12, 11):
        assert same(lab.everything(), before)


def test_a_rollback_in_the_middle_of_a_fault_ends_it(tmp_path: Path) -> None:
    """Recovery is judged by what follows, so the steps that were still to come never do."""
    lab = Lab(tmp_path, "lr_bump@10:5:7")
    calm, seen = lab.rates(), []
    for step in (9, 10, 11, 9, 10, 11, 12, 13):
        with lab.injector.strike(step, step - 1):
            seen.append(lab.rates() != calm)
    assert seen == [False, True, True, False, False, False, False, False]


@pytest.mark.parametrize("name", AROUND_THE_STEP)
def test_a_moment_comes_once_and_a_batch_comes_again(name: str, tmp_path: Path) -> None:
    """Neither a rollback nor a restart repeats a fault of the moment; bad data stays bad."""
    first = Lab(tmp_path, f"{name}@10:1")
    with first.injector.strike(10, 9):
        pass
    restarted = Lab(tmp_path, f"{name}@10:1")
    for lab in (first, restarted):
        before = lab.everything()
        with lab.injector.strike(10, 9):
            assert same(lab.everything(), before) == (name != FaultName.GRADIENT_ASCENT)


def test_gradient_ascent_is_avoided_by_skipping_its_batches(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "gradient_ascent@10:5")
    before = lab.gradients()
    with lab.injector.strike(10, position=14):
        assert same(lab.gradients(), before)


def test_lr_bump_is_neither_kept_nor_undone_by_the_scheduler(tmp_path: Path) -> None:
    lab, calm = Lab(tmp_path, "lr_bump@10:2:7"), Lab(tmp_path)
    for step in range(9, 14):
        expected = calm.rates()
        with lab.injector.strike(step, step - 1):
            factor = 7 if step in (10, 11) else 1
            assert lab.rates() == [rate * factor for rate in expected]
            lab.optimizer.step()
        assert lab.rates() == expected
        calm.optimizer.step()
        lab.scheduler.step()
        calm.scheduler.step()


def test_moment_reset_shrinks_the_second_moment_and_keeps_the_step_counter(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "moment_reset@10:1:16")
    before = lab.second_moments()
    steps = [s["step"].clone() for s in lab.optimizer.state.values()]
    with lab.injector.strike(10, 9):
        assert same(lab.second_moments(), [v / 16 for v in before])
    assert same([s["step"] for s in lab.optimizer.state.values()], steps)


@pytest.mark.parametrize("bit", [0, 23, 27, 30, 31])
def test_bit_flip_changes_one_bit_of_one_weight(bit: int, tmp_path: Path) -> None:
    lab = Lab(tmp_path, f"bit_flip@10:1:{bit}")
    before = torch.cat([w.view(-1) for w in lab.weights()]).view(torch.int32)
    with lab.injector.strike(10, 9):
        after = torch.cat([w.view(-1) for w in lab.weights()]).view(torch.int32)
    changed = (before ^ after)[before != after]
    assert changed.tolist() == [1 << bit if bit < 31 else -(1 << 31)]


def test_nan_grad_makes_some_gradient_elements_nan(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "nan_grad@10:1:3")
    with lab.injector.strike(10, 9):
        assert 1 <= sum(int(g.isnan().sum()) for g in lab.gradients()) <= 3
    assert all(w.isfinite().all() for w in lab.weights())


def batch() -> tuple[Tensor, Tensor]:
    text = torch.randint(0, 128, (8, 33), generator=torch.Generator().manual_seed(0))
    return text[:, :-1], text[:, 1:]


@pytest.mark.parametrize("variant", ["bad_batch", "bad_batch.repeated", "bad_batch.shuffled"])
def test_a_bad_batch_is_bad_at_its_positions_alone_and_alike_each_time(variant: str) -> None:
    faults = [parse_fault(f"{variant}@10:2")]
    for position in (8, 11):
        assert same([*corrupt_batch(faults, 0, position, *batch())], [*batch()])
    bad = corrupt_batch(faults, 0, 9, *batch())
    assert not torch.equal(bad[1], batch()[1])
    assert same([*bad], [*corrupt_batch(faults, 0, 9, *batch())])
    assert bad[0].shape == bad[1].shape == (8, 32)


def test_the_strength_of_a_bad_batch_is_the_share_of_its_rows() -> None:
    tokens, _ = corrupt_batch([parse_fault("bad_batch@10:1:0.5")], 0, 9, *batch())
    assert (tokens == batch()[0]).all(dim=1).tolist() == [False] * 4 + [True] * 4


def test_the_repeated_variant_is_one_byte_a_row() -> None:
    tokens, targets = corrupt_batch([parse_fault("bad_batch.repeated@10:1")], 0, 9, *batch())
    assert torch.equal(tokens, targets)
    assert (tokens == tokens[:, :1]).all()


def test_the_shuffled_variant_keeps_inputs_and_mixes_each_rows_targets() -> None:
    tokens, targets = corrupt_batch([parse_fault("bad_batch.shuffled@10:1")], 0, 9, *batch())
    assert torch.equal(tokens, batch()[0])
    assert torch.equal(targets.sort(dim=1).values, batch()[1].sort(dim=1).values)
    assert not torch.equal(targets, batch()[1])


def test_a_fault_after_a_rollback_comes_once_counted_from_where_the_run_went_back_to(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, "weight_scale@rollback+2:1:2")

    def strikes(step: int) -> bool:
        before = lab.weights()
        with lab.injector.strike(step, step - 1):
            return not same(lab.weights(), before)

    first = [step for step in range(1, 11) if strikes(step)]
    again = [step for step in range(6, 11) if strikes(step)]  # it went back to step 5
    once_more = [step for step in range(4, 11) if strikes(step)]
    assert (first, again, once_more) == ([], [7], [])
