"""However a model lies on the ranks, it is measured, clipped and skipped as in one process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from spikeguard import CheckpointDirectory, Guard, Settings, attach, by_position
from spikeguard_protocol import BatchRange, Medium

from . import layouts
from .layouts import Laid, Whole, norm_of, ranks_in
from .rank_job import order_back
from .ranks import Told, bits_of, named, own, play, same

pytestmark = pytest.mark.slow

CLOSE = 2e-6  # fp32, sums in another order
LIMIT, STEPS, SPOILT = 0.05, 5, 2  # the norm clipped to, and the step with a NaN
SETTINGS = Settings(slow_signals_every=1, snapshot_every=2, watch_alone=False)
BACK = (  # where to, at which step, and what is left out
    (Medium.MEMORY, 4, (4, 5)),
    (Medium.DISK, 3, (3, 4)),
)


def batch(step: int) -> Tensor:
    torch.manual_seed(step)
    return torch.randn(4, layouts.WIDTH)


def adam(model: nn.Module) -> torch.optim.AdamW:
    return adam_of(list(model.parameters()))


def adam_of(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    groups = [{"params": [p]} for p in parameters]  # torch mixes no kinds in one call
    return torch.optim.AdamW(groups, lr=1e-2, fused=True)


class Beside:
    """The whole model, in this process alone."""

    def __init__(self) -> None:
        self.model = Whole()
        self.optimizer = adam(self.model)

    def backward(self, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self.model(batch(step)).square().mean()
        loss.backward()
        return float(loss.detach())

    def train(self) -> dict[str, float]:
        held = list(self.model.parameters())
        norm = float(torch.nn.utils.clip_grad_norm_(held, LIMIT))
        before = [p.detach().clone() for p in held]
        self.optimizer.step()
        moments = [state["exp_avg_sq"] for state in self.optimizer.state.values()]
        moved = [(p.detach() - old) / 1e-2 for p, old in zip(held, before, strict=True)]
        return {
            "grad_norm": norm,
            "param_norm": norm_of([p.detach() for p in held]),
            "update_norm": norm_of(moved),
            "adam_v_norm": norm_of(moments),
        }


def laid_gradients(laid: Laid, whole: nn.Module) -> None:
    named = dict(whole.named_parameters())
    for name, parameter in laid.model.named_parameters():
        gradient = named[layouts.name_in_whole(laid, name)].grad
        assert gradient is not None
        part = layouts.own_part(laid, gradient, parameter, name)
        parameter.grad = layouts.like(parameter, part)


def off_by(laid: Laid, whole: nn.Module) -> float:
    """The largest difference of a weight from that of the whole model."""
    named, most = dict(whole.named_parameters()), 0.0
    for (name, parameter), here in zip(laid.model.named_parameters(), own(laid.model), strict=True):
        wanted = named[layouts.name_in_whole(laid, name)].detach()
        part = layouts.own_part(laid, wanted, parameter, name)
        most = max(most, float((part - here).abs().max()))
    return most


def guarded(folder: Path, laid: Laid, optimizers: Any, **given: Any) -> Guard:
    given = {"settings": SETTINGS, **ranks_in(laid.stated), **given}
    return attach(laid.model, optimizers, run="test", directory=folder, **given)


def spoil(laid: Laid, rank: int, ranks: int, everywhere: bool = False) -> None:
    """A NaN in one number of the last rank's part of a tensor that is cut, if one is."""
    held = list(laid.model.parameters())
    cut = next((p for p in reversed(held) if isinstance(p, DTensor)), held[-1])
    if cut.grad is not None and (everywhere or rank == ranks - 1):
        part = cut.grad.to_local() if isinstance(cut.grad, DTensor) else cut.grad
        part.view(-1)[0] = math.nan


def trained(folder: Path, layout: layouts.Layout, rank: int, ranks: int) -> dict[str, Any]:
    """A few steps, one with a NaN in one number on the last rank; on all where they are alike."""
    laid, beside, seen = layout(ranks), Beside(), list[dict[str, float]]()
    optimizer = adam(laid.model)
    guard = guarded(folder, laid, optimizer, forward=lambda values, _: seen.append(dict(values)))
    expected: list[dict[str, float]] = []
    bits, off, meetings = [own(laid.model)], 0.0, []
    for step in range(STEPS):
        loss = beside.backward(step)
        laid_gradients(laid, beside.model)
        guard.loss(torch.tensor(loss if laid.stated.get("has_loss", True) else -1.0))
        if step == SPOILT:
            spoil(laid, rank, ranks, everywhere=layout in ALIKE)
        with CommDebugMode() as met:
            guard.clip_grad_norm_(LIMIT)
        meetings.append(met.get_total_counts())
        optimizer.step()
        guard.step()
        if step != SPOILT:
            expected.append({"loss": loss, **beside.train()})
            off = max(off, off_by(laid, beside.model))
        bits.append(own(laid.model))
    guard.finish()
    told = {"seen": seen, "expected": expected, "off": off, "meetings": meetings}
    unmoved = [same(*pair) for pair in itertools.pairwise(bits)]
    return {**told, "same": unmoved, "faults": guard.faults}


def flipped(folder: Path, rank: int, ranks: int) -> list[Any]:
    """A weight of the last rank's that is no longer that of its replica, under HSDP."""
    laid, seen = layouts.hsdp(ranks), list[dict[str, float]]()
    guard = guarded(
        folder,
        laid,
        adam(laid.model),
        settings=Settings(snapshot_every=0, replica_checksum_every=2),
        forward=lambda values, _: seen.append(dict(values)),
    )
    for step in range(4):
        if step == 2 and rank == ranks - 1:
            weight = next(laid.model.parameters())
            assert isinstance(weight, DTensor)
            weight.to_local().detach().view(-1)[0] += 1.0
        guard.step()
    guard.finish()
    apart = [values for values in seen if "replicas_apart" in values]
    return [[v["replicas_apart"], v.get("replica_apart")] for v in apart]


def unable(folder: Path, rank: int, ranks: int) -> list[bool]:
    """A NaN on the last stage, once the first stage's optimizer takes no flag any more."""
    laid, whole = layouts.pp(ranks), Whole()
    optimizer = adam(laid.model)
    guard, unmoved = guarded(folder, laid, optimizer), []
    for step in range(4):
        for parameter in whole.parameters():
            parameter.grad = torch.ones_like(parameter)
        laid_gradients(laid, whole)
        if step >= 2:
            spoil(laid, rank, ranks)
        for group in optimizer.param_groups if step == 3 and rank == 0 else ():
            group["fused"] = False
        before = own(laid.model)
        guard.clip_grad_norm_(LIMIT)
        optimizer.step()
        guard.step()
        unmoved.append(same(before, own(laid.model)))
    guard.finish()
    return unmoved


def mixed(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    """Muon for the matrices beside AdamW; of three steps one has a NaN on the last rank alone."""
    told = {}
    for layout in layouts.MIXED[ranks]:
        laid, whole = layout(ranks), Whole()
        held = list(laid.model.parameters())
        matrices, others = ([p for p in held if (p.ndim == 2) == flat] for flat in (True, False))
        given = [torch.optim.Muon(matrices, lr=1e-2), adam_of(others)]
        guard, unmoved = guarded(folder / layout.__name__, laid, given), []
        for step in range(3):
            for parameter in whole.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + step)
            laid_gradients(laid, whole)
            if step == 1:
                spoil(laid, rank, ranks)
            before = bits_of(laid.model, given)
            guard.clip_grad_norm_(LIMIT)
            for each in given:
                each.step()
            guard.step()
            unmoved.append(same(before, bits_of(laid.model, given)))
        guard.finish()
        told[layout.__name__] = {"same": unmoved, "faults": guard.faults}
    return told


class LaidJob:
    """One attempt at training a layout; the gradients are a function of the position alone."""

    def __init__(
        self, folder: Path, layout: layouts.Layout, ranks: int, left_out: Collection[int] = ()
    ) -> None:
        self.rank = dist.get_rank()
        self.kept = CheckpointDirectory(folder / "kept", every=3, background=False)
        self.laid, self.whole, self.left_out = layout(ranks), Whole(), left_out
        self.optimizer: Any = adam(self.laid.model)
        self.average = layout(ranks).model  # of the weights, laid as they are
        self.guard = guarded(
            folder / "guard",
            self.laid,
            self.optimizer,
            checkpoints=self.kept,
            state=[self.average],
        )
        self.positions = iter(self.guard.batches(by_position(lambda position: position)))

    def train_to(self, step: int) -> None:
        while self.guard.steps != step:
            self.train_step()

    def train_step(self) -> None:
        position = next(self.positions)
        while position in self.left_out:
            position = next(self.positions)
        torch.manual_seed(position)
        for parameter in self.whole.parameters():
            parameter.grad = torch.randn_like(parameter)
        laid_gradients(self.laid, self.whole)
        self.guard.clip_grad_norm_(LIMIT)
        self.optimizer.step()
        pairs = zip(self.average.parameters(), self.laid.model.parameters(), strict=True)
        with torch.no_grad():
            for kept, parameter in pairs:
                kept.lerp_(parameter, 0.5)
        self.guard.step()

    def bits(self) -> list[Tensor]:
        """Of weights, their average, moments and counters."""
        return [*bits_of(self.laid.model, [self.optimizer]), *own(self.average)]


def gone_back(folder: Path, _rank: int, ranks: int) -> dict[str, Any]:
    """To memory, to disk and by a restart; beside one that never saw what is left out."""
    layout = layouts.pp_fsdp_named_alike
    job: Any = LaidJob(folder, layout, ranks)
    job.train_to(5)
    told: dict[str, Any] = {"steps": [], "positions": [], "same": []}
    for number, (medium, step, skip) in enumerate(BACK, 1):
        order_back(job, number, step, medium, BatchRange(*skip))
        reached = job.guard.steps
        while job.guard.steps >= reached:
            job.train_step()
        told["steps"].append(job.guard.steps)
        told["positions"].append(job.guard.position)
        job.train_to(6)
    job.guard.finish()
    wanted = LaidJob(folder / "without", layout, ranks, left_out=[3, 4])
    wanted.train_to(6)
    wanted.guard.finish()
    again = LaidJob(folder, layout, ranks)
    told["resumed"] = again.guard.resume()
    again.guard.finish()
    told["same"] = [same(each.bits(), wanted.bits()) for each in (job, again)]
    return {**told, "faults": [job.guard.faults, again.guard.faults]}


def laid(folder: Path, rank: int, ranks: int) -> dict[str, Any]:
    """Every layout of so many ranks."""
    return {each.__name__: trained(folder / each.__name__, each, rank, ranks) for each in ON[ranks]}


ON = {2: layouts.ON_TWO, 4: layouts.ON_FOUR}
ALIKE = (layouts.replicated, layouts.small)
SCENES = {2: (laid, mixed, unable), 4: (laid, mixed, flipped, gone_back)}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return play(tmp_path_factory.mktemp("two"), 2, named(*SCENES[2]))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return play(tmp_path_factory.mktemp("four"), 4, named(*SCENES[4]))


@pytest.fixture(scope="module", params=["two", "four"])
def ranks(request: pytest.FixtureRequest) -> Told:
    """What each of two, then of four ranks told of every layout."""
    return [rank["laid"] for rank in request.getfixturevalue(request.param)]


def test_clipping_is_that_of_one_process_on_the_whole_model(ranks: Told) -> None:
    """After four updates clipped to a twentieth of a norm the weights are its weights."""
    for rank in ranks:
        for name, told in rank.items():
            assert told["off"] < CLOSE, name
            assert told["faults"] == {}, name


def test_every_part_of_the_model_counts_once_in_every_norm(ranks: Told) -> None:
    """Gradients, parameters, updates, second moments; and the loss of the ranks that have one."""
    for name, told in ranks[0].items():
        seen = [values for step, values in enumerate(told["seen"]) if step != SPOILT]
        assert len(seen) == STEPS - 1, name
        for values, expected in zip(seen, told["expected"], strict=True):
            for signal, value in expected.items():
                assert values[signal] == pytest.approx(value, rel=1e-5), (name, signal)


def test_a_nan_on_one_rank_is_skipped_by_all(ranks: Told) -> None:
    wanted = [step == SPOILT for step in range(STEPS)]
    for rank in ranks:
        for name, told in rank.items():
            assert told["same"] == wanted, name


def test_ranks_meet_once_for_a_norm_and_not_where_all_hold_the_same(
    ranks: list[dict[str, Any]],
) -> None:
    """And once for the norms by layer, which are measured in each step here."""
    for rank in ranks:
        for name, told in rank.items():
            assert set(told["meetings"]) == {0 if name == "replicated" else 2}, name


def test_replicas_of_a_part_are_compared_with_each_other_alone(four: Told) -> None:
    """Under HSDP the last of four ranks has a replica, and two that hold other parts."""
    assert four[0]["flipped"] == [[0.0, None], [1.0, 3.0]]


def test_stages_that_are_sharded_go_back_together_bit_for_bit(four: Told) -> None:
    """Though both stages name their parameters alike: from memory, from disk and by a restart."""
    for told in four:
        back = told["gone_back"]
        assert (back["steps"], back["positions"]) == ([4, 3], [4, 3])
        assert (back["same"], back["resumed"]) == ([True, True], 6)
        assert back["faults"] == [{}, {}]


def test_what_one_rank_cannot_leave_out_none_does(two: Told) -> None:
    """Of four steps two have a NaN; in the last of them one stage can only report it."""
    for told in two:
        assert told["unable"] == [False, False, True, False]


def test_one_optimizer_beside_another_leaves_out_what_the_other_does(two: Told, four: Told) -> None:
    """AdamW takes the flag and Muon does not: to the bit the same, on every rank and stage."""
    for told in (*two, *four):
        for name, seen in told["mixed"].items():
            assert seen == {"same": [False, True, False], "faults": {}}, name
