"""Whoever holds what, a bad update is skipped by all ranks or `attach()` refuses the job."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from spikeguard import AttachError, CheckpointDirectory, Guard, Settings, attach
from spikeguard.measure.norms import GlobalNorms
from spikeguard.optim.clipping import Rule, ZClip
from spikeguard_protocol import Answer, ScaleLr, Verb

from . import layouts
from .heard import parts_of
from .job import order
from .layouts import ranks_in
from .ranks import Told, named, own, play, same

pytestmark = pytest.mark.slow

LIMIT = 0.05  # every gradient is clipped to it
SETTINGS = Settings(snapshot_every=0, watch_alone=False)


class Halves(nn.Module):
    """Two matrices of the same shape, which lie as the test likes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


def stage_of_halves(rank: int) -> nn.Module:
    """One matrix each."""
    return nn.Sequential(Halves().first if rank == 0 else Halves().last)


def stages_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))


def adam(model: nn.Module, **options: Any) -> torch.optim.AdamW:
    """One group a parameter, since torch puts no tensors of two kinds into one call."""
    return torch.optim.AdamW([{"params": [p]} for p in model.parameters()], lr=1e-2, **options)


def guarded(folder: Path, model: nn.Module, optimizer: Any, **stated: Any) -> Guard:
    given = {"settings": SETTINGS, **ranks_in(stated)}
    return attach(model, optimizer, run="test", directory=folder, **given)


def refused(folder: Path, model: nn.Module, optimizer: Any = None, **stated: Any) -> list[str]:
    """Argument, problem and remedy; empty where `attach` took it."""
    optimizer = adam(model) if optimizer is None else optimizer
    try:
        guard = guarded(folder, model, optimizer, **stated)
    except AttachError as error:
        assert not optimizer._optimizer_step_pre_hooks
        return [error.argument, error.problem, error.remedy]
    guard.finish()
    return []


def unmoved(weights: list[list[Tensor]]) -> list[bool]:
    """Whether each step left them as they were."""
    return [same(*pair) for pair in itertools.pairwise(weights)]


def refusals(folder: Path, rank: int, _: int) -> dict[str, list[str]]:
    """Jobs that nobody could guard, and one that can be."""
    told: dict[str, nn.Module] = {
        "stages": nn.Sequential(*[nn.Identity()] * rank, nn.Linear(4, 4)),
        "named alike": (alike := Halves()),
    }
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
    fully_shard(alike, mesh=mesh["dp"])
    said = {name: refused(folder / name, model) for name, model in told.items()}
    for layout in (layouts.small, layouts.half, layouts.hsdp):
        said[layout.__name__] = refused(folder / layout.__name__, layout(2).model)
    frozen = Halves()
    frozen.first.requires_grad_(rank == 1)  # rank 1 alone trains what its optimizer does not know
    said["frozen apart"] = refused(folder, frozen, torch.optim.AdamW(frozen.last.parameters()))
    model, other = Halves(), Halves()
    said["wrong on one"] = refused(folder, model, adam(other if rank else model))
    return said


def losses(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """Losses that are DTensors, of which each rank has a part: what is told, and who met whom."""
    model, seen = DistributedDataParallel(Halves()), list[float]()
    optimizer = adam(model, fused=True)
    guard = guarded(folder, model, optimizer, forward=lambda values, _: seen.append(values["loss"]))
    mesh, met = init_device_mesh("cpu", (2,)), 0
    for placement in (Partial("sum"), Partial("avg"), Replicate()):
        value = torch.tensor(2.0 if isinstance(placement, Replicate) else 1.0 + 2.0 * rank)
        loss = DTensor.from_local(value, mesh, [placement], run_check=False)
        model(torch.ones(2, 8)).sum().backward()
        with CommDebugMode() as comm:
            guard.loss(loss)
        met += comm.get_total_counts()
        optimizer.step()
        optimizer.zero_grad()
        guard.step()
    guard.finish()
    return {"seen": seen, "met": met, "faults": guard.faults}


def partitioned(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """ZeRO: each rank's inner optimizer trains a part and hands it on; a NaN in the second step,
    and later a lower rate by order."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    network = Halves()
    model = DistributedDataParallel(network)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    guard = guarded(folder, model, optimizer, settings=Settings(skip_by_sync=True))
    if rank == 0:
        order(guard, ScaleLr(0.5, 10))
    weights, rates = [own(network)], list[float]()
    while rates[-1:] != [0.05] and guard.steps < 20:
        model(torch.ones(2, 8) + rank).sum().backward()
        if guard.steps == 1:
            network.first.weight.grad[0, 0] = float("nan")  # type: ignore[index]
        guard.clip_grad_norm_(LIMIT)
        optimizer.step()
        rates.append(optimizer.optim.param_groups[0]["lr"])
        optimizer.zero_grad()
        guard.step()
        weights.append(own(network))
    rows = {row.name: str(row.answer) for row in guard.state().abilities}
    guard.finish()
    told = {"same": unmoved(weights)[:3], "rates": sorted(set(rates)), "faults": guard.faults}
    return {**told, "rewind": rows["rewind_from_memory"]}


def differing(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """The last stage's optimizer cannot leave an update out, or has no rate."""
    mesh, told = stages_mesh(), dict[str, Any]()
    for way in ("unable", "rateless"):
        model = stage_of_halves(rank)
        optimizer: Any = torch.optim.AdamW(model.parameters(), fused=True)
        if rank == 1 and way == "unable":
            optimizer = torch.optim.LBFGS(model.parameters())
        elif rank == 1:
            del optimizer.param_groups[0]["lr"]
        guard = guarded(folder / way, model, optimizer, pipeline=mesh, has_loss=rank == 1)
        rows = {row.name: row.reason for row in guard.state().abilities if row.answer is Answer.NO}
        told[way] = {"no": rows, "scales": Verb.SCALE_LR in guard.capabilities}
        told["parameters"] = guard.state().facts["parameters"]
        guard.finish()
    return told


class ByRows(torch.optim.Optimizer):
    """Keeps a mean for each row and one for each column of a matrix that is cut by rows."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for p in self.param_groups[0]["params"]:
            rows, state = p.grad.square().mean(-1, keepdim=True), self.state[p]
            columns = p.grad.square().mean(0, keepdim=True)
            columns = columns.redistribute(placements=[Replicate()])
            if not state:
                state["rows"], state["columns"] = rows, columns
            state["rows"].lerp_(rows, 0.1)
            state["columns"].lerp_(columns, 0.1)
            p.sub_(p.grad / (state["rows"] + state["columns"] + 1e-3), alpha=1e-3)


class ByRowsOfItsOwn(ByRows):
    """Takes its state back in a way of its own."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)


def by_rows(folder: Path, _rank: int, _: int) -> dict[str, Any]:
    """Resumed after the third of five steps: whether all is as if it had never been left."""
    told = {}
    for kind in (ByRows, ByRowsOfItsOwn):
        home, bits = folder / kind.__name__, []
        for steps in (5, 2):
            model = Halves()
            fully_shard(model)
            optimizer = kind(model.parameters())
            kept = CheckpointDirectory(home / "kept", every=3, background=False)
            guard = guarded(home, model, optimizer, checkpoints=kept)
            begun = guard.resume()
            for step in range(begun, begun + steps):
                torch.manual_seed(step)
                model(torch.randn(4, 8)).square().mean().backward()
                guard.clip_grad_norm_(LIMIT)
                optimizer.step()
                optimizer.zero_grad()
                guard.step()
            states = [t for state in optimizer.state.values() for t in state.values()]
            bits.append([*own(model), *[t.to_local().clone() for t in states]])
            guard.finish()
        told[kind.__name__] = {"begun": begun, "same": same(*bits)}
    return told


class Tied(nn.Module):
    """Words in, scores of words out, by the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(11, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(self.words(words))))  # type: ignore[no-any-return]


def stage_of_tied(rank: int) -> nn.Module:
    """The table on the first stage, a copy of it on the last."""
    whole = Tied()
    if rank == 0:
        return nn.ModuleDict({"words": whole.words})
    whole.head.weight = nn.Parameter(whole.words.weight.detach().clone())
    return nn.ModuleDict({"middle": whole.middle, "head": whole.head})


def tied(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """An embedding tied to the head of the other stage: said, and said not to be tied."""
    stated: dict[str, Any] = {"pipeline": stages_mesh(), "has_loss": rank == 1}
    names = [("words.weight", "stage1.head.weight")]
    ways: dict[str, dict[str, Any]] = {"said": {"tied": names}, "not": {"tied": ()}}
    wrong: list[Any] = [[("words.weight", "nowhere")], [("words.weight", "middle.weight")]]
    return {
        "off": {way: off_beside(folder / way, rank, stated | ways[way]) for way in ways},
        "warned": warned(folder / "warned", rank, stated),
        "refused": [refused(folder, stage_of_tied(rank), **stated, tied=each) for each in wrong],
    }


def warned(folder: Path, rank: int, stated: dict[str, Any]) -> list[str]:
    """What attach logs where nobody says whether the two are tied."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("spikeguard").addHandler(handler)
    model = stage_of_tied(rank)
    attach(
        model,
        adam(model, fused=True),
        run="test",
        directory=folder,
        settings=SETTINGS,
        **ranks_in(stated),
    ).finish()
    logging.getLogger("spikeguard").removeHandler(handler)
    return [line for line in told if "one shape" in line]


def off_beside(folder: Path, rank: int, stated: dict[str, Any]) -> float:
    """How far weights and norms are from those of one process; three steps by each kind of clip."""
    model, beside, seen = stage_of_tied(rank), Tied(), list[dict[str, float]]()
    stated["forward"] = lambda values, _: seen.append(dict(values))
    stated["settings"] = Settings(snapshot_every=0, slow_signals_every=1)
    optimizer, alone = adam(model, fused=True), adam(beside, fused=True)
    named = dict(beside.named_parameters(remove_duplicate=False))
    whole_rule = ZClip(max_threshold=LIMIT)
    off, norms = 0.0, list[float]()
    guard = guarded(folder / "by norm", model, optimizer, **stated)
    for step in range(6):
        if step == 3:
            guard.finish()
            assert guard.faults == {}
            stated["clip"] = ZClip(max_threshold=LIMIT)
            guard = guarded(folder / "by rule", model, optimizer, **stated)
        torch.manual_seed(step)
        alone.zero_grad()
        beside(torch.randint(11, (4, 5))).square().mean().backward()
        for name, parameter in model.named_parameters():  # the stages have added up theirs
            parameter.grad = named[name].grad.clone()  # type: ignore[union-attr]
        if step < 3:
            measured = guard.clip_grad_norm_(LIMIT)
            norm = torch.nn.utils.clip_grad_norm_(beside.parameters(), LIMIT)
        else:
            measured = guard.clip_grad_norm_(None)
            norm = clipped_by(whole_rule, beside)
        _, layers = parts_of(guard).collector._norms.by_name()
        for name, value in zip(layers.names[:-1], layers.norms, strict=False):
            off = max(off, float((value - named[name].grad.norm()).abs()))  # type: ignore[union-attr]
        optimizer.step()
        alone.step()
        guard.step()
        norms.append(float(torch.stack([p.detach().norm() for p in beside.parameters()]).norm()))
        moved = [float((p - named[n]).abs().max()) for n, p in model.named_parameters()]
        off = max(off, float((measured - norm).abs() / norm), *moved)
    guard.finish()
    assert guard.faults == {}
    pairs = zip(seen, norms, strict=True) if rank == 0 else ()
    return max(off, *(abs(values["param_norm"] / norm - 1) for values, norm in pairs), 0.0)


def clipped_by(rule: Rule, model: nn.Module) -> Tensor:
    """By the rule itself, in one process; the norm before."""
    held = [p.grad for p in model.parameters() if p.grad is not None]
    norm: Tensor = torch.stack([grad.norm() for grad in held]).norm()
    torch._foreach_mul_(held, rule.judge(norm).factor)
    return norm


def scaled(folder: Path, rank: int, _: int) -> list[str]:
    """A scaler on the first stage alone."""
    state = [torch.amp.GradScaler("cpu", init_scale=8.0)] if rank == 0 else []
    stated = {"pipeline": stages_mesh(), "has_loss": rank == 1}
    return refused(folder, stage_of_halves(rank), **stated, state=state)


def unmeasured(folder: Path, rank: int, _: int) -> dict[str, Any]:
    """The last stage fails to take the norm of its part, once in each way of asking for it."""
    model = stage_of_halves(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    mesh, norms, sizes, faults = stages_mesh(), [], [], []
    for rule in (None, ZClip(max_threshold=LIMIT)):
        place = folder / str(rule is None)
        guard = guarded(place, model, optimizer, pipeline=mesh, has_loss=rank == 1, clip=rule)
        for step in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            with pytest.MonkeyPatch.context() as patch:
                if rank == 1 and step == 0:
                    patch.setattr(GlobalNorms, "_held", lambda *_: 1 / 0)
                norms.append(float(guard.clip_grad_norm_(LIMIT if rule is None else None)))
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            sizes.append([float(grad.norm()) for grad in grads])
            optimizer.step()
            guard.step()
        guard.finish()
        faults.append(guard.faults)
    return {"norms": norms, "sizes": sizes, "faults": faults}


SCENES = (refusals, losses, partitioned, differing, by_rows, tied, scaled, unmeasured)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each of two ranks told of every scene."""
    return play(tmp_path_factory.mktemp("ranks"), 2, named(*SCENES))


def test_ranks_that_hold_different_parameters_are_refused_on_both(ranks: Told) -> None:
    """With the names, and what to do; a job that comes after is none the worse."""
    one, other = (rank["refusals"]["stages"] for rank in ranks)
    assert one == other
    argument, problem, remedy = one
    assert argument == "model"
    for name in ("rank 0 alone '0.weight', '0.bias'", "rank 1 alone '1.weight', '1.bias'"):
        assert name in problem
    assert "pipeline=" in remedy


def test_stages_that_name_their_parameters_alike_are_known_by_the_mesh(ranks: Told) -> None:
    for rank in ranks:
        argument, problem, _ = rank["refusals"]["named alike"]
        assert argument == "model"
        assert "'pp'" in problem


def test_what_one_rank_must_refuse_all_do(ranks: Told) -> None:
    """Instead of one that raises and others that wait for it."""
    for rank in ranks:
        argument, problem, _ = rank["refusals"]["frozen apart"]
        assert argument == "optimizer"
        assert problem.startswith("rank 1: 'first.weight' of the model trains")
        wrong = ["optimizer", "rank 1: it trains no parameter of the model"]
        assert rank["refusals"]["wrong on one"][:2] == wrong


def test_parameters_that_no_mesh_of_all_ranks_holds_need_a_word(ranks: Told) -> None:
    """On a mesh of some ranks, or plain beside DTensors; under HSDP the mesh says it all."""
    for rank in ranks:
        for name, lacking in (("small", "layers.0.weight"), ("half", "layers.1.weight")):
            argument, problem, remedy = rank["refusals"][name]
            assert argument == "model"
            assert lacking in problem
            assert ("layers.0." in problem) == (name == "small")
            assert "replicated=True" in remedy
        assert rank["refusals"]["hsdp"] == []


def test_a_loss_that_is_a_dtensor_is_told_whole_and_makes_no_ranks_meet(ranks: Told) -> None:
    """A sum still to be made over the ranks, a mean, and one that both hold."""
    assert ranks[0]["losses"] == {"seen": [4.0, 2.0, 2.0], "met": 0, "faults": {}}
    assert ranks[1]["losses"]["faults"] == {}


def test_an_optimizer_that_each_rank_has_a_part_of_is_skipped_and_slowed_as_one(
    ranks: Told,
) -> None:
    """ZeRO: its state is no rank's to save, so nothing is offered that would need it."""
    for rank in ranks:
        assert rank["partitioned"] == {
            "same": [False, True, False],
            "rates": [0.05, 0.1],
            "rewind": "no",
            "faults": {},
        }


def test_a_sharded_state_that_has_not_its_parameters_shape_goes_on_after_a_restart(
    ranks: Told,
) -> None:
    """One number for each row, cut as the matrix is, and one for each column, on all ranks."""
    for rank in ranks:
        told = {"begun": 3, "same": True}
        assert rank["by_rows"] == {"ByRows": told, "ByRowsOfItsOwn": told}


def test_what_one_stages_optimizer_cannot_do_is_offered_of_none(ranks: Told) -> None:
    """The table names it, and the record has the parameters of all stages."""
    for rank in ranks:
        unable, rateless = (rank["differing"][way] for way in ("unable", "rateless"))
        assert unable["no"]["skip_update"].startswith("LBFGS on rank 1 takes no found_inf")
        assert "AdamW on rank 1 has no learning rate" in rateless["no"]["scale_lr"]
        assert (unable["scales"], rateless["scales"]) == (True, False)
        assert rank["differing"]["parameters"] == "128"


def test_a_scaler_that_would_judge_one_stage_alone_is_refused_on_all(ranks: Told) -> None:
    for rank in ranks:
        argument, problem, remedy = rank["scaled"]
        assert argument == "state"
        assert "would skip different steps" in problem
        assert "bf16" in remedy


def test_a_stage_that_cannot_measure_its_part_leaves_nobody_waiting_and_clips_alike(
    ranks: Told,
) -> None:
    """Its part is missing in the norm of all ranks; the next norm is whole again."""
    one, other = (rank["unmeasured"] for rank in ranks)
    assert one["norms"] == other["norms"] == pytest.approx([8.0, 128**0.5] * 2)
    assert one["sizes"][:2] == other["sizes"][:2]  # clipped to one norm
    assert (one["faults"], other["faults"]) == ([{}, {}], [{"clip": 1}] * 2)


def test_what_two_stages_hold_a_copy_of_counts_once(ranks: Told) -> None:
    """An embedding tied to the head: clipping, by rule too, and norms by layer are those of one
    process; where it is said not to be tied it counts on both."""
    for number, rank in enumerate(ranks):
        told = rank["tied"]
        assert told["off"]["said"] < 1e-5
        assert told["off"]["not"] > 1e-2
        assert [line.split()[0] for line in told["warned"]] == [[], ["'head.weight'"]][number]
        nowhere, other = told["refused"]
        assert nowhere[0] == other[0] == "ranks.tied"
        assert "name 'words.weight' of stage 0: not one parameter each of several" in nowhere[1]
        assert "different shapes: [11, 8] and [8, 8]" in other[1]
