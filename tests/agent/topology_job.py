"""What two ranks say to jobs of many kinds: who holds what, and what becomes of a bad update."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from spikeguard import AttachError, CheckpointDirectory, Forward, Settings, attach
from spikeguard.optim.clipping import AdaGC, Rule
from spikeguard.optim.lr_scale import LrScale
from spikeguard_protocol import Answer, Verb

LIMIT = 0.05  # every gradient is clipped to it
SETTINGS = Settings(snapshot_every=0)


class Halves(nn.Module):
    """Two matrices of the same shape, which lie as the test likes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """One each, since torch puts no tensors of two kinds into one call."""
    return [{"params": [p]} for p in model.parameters()]


def refused(folder: Path, model: nn.Module, **stated: Any) -> list[str]:
    """Argument, problem and remedy; empty where `attach` took it."""
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-2)
    try:
        guard = attach(model, optimizer, run="test", directory=folder, settings=SETTINGS, **stated)
    except AttachError as error:
        assert not optimizer._optimizer_step_pre_hooks
        return [error.argument, error.problem, error.remedy]
    guard.finish()
    return []


def stages(folder: Path, rank: int) -> list[str]:
    """Each rank has the half that the other lacks."""
    return refused(folder, nn.Sequential(*[nn.Identity()] * rank, nn.Linear(4, 4)))


def stages_named_alike(folder: Path, _rank: int) -> list[str]:
    """Sharded within each stage, of which there are two."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
    model = Halves()
    fully_shard(model, mesh=mesh["dp"])
    return refused(folder, model)


def frozen_apart(folder: Path, rank: int) -> list[str]:
    """Rank 1 alone trains a matrix that its optimizer does not know."""
    model = Halves()
    model.first.requires_grad_(rank == 1)
    optimizer = torch.optim.AdamW(model.last.parameters(), lr=1e-2)
    try:
        attach(model, optimizer, run="test", directory=folder, settings=SETTINGS)
    except AttachError as error:
        return [error.argument, error.problem, error.remedy]
    return []


def spread_small(model: Halves) -> None:
    """Over a mesh of one rank: both hold all, and no mesh says so."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    fully_shard(model, mesh=mesh["tp"])


def spread_half(model: Halves) -> None:
    """The first matrix alone."""
    fully_shard(model.first)


def spread_twice(model: Halves) -> None:
    """Each matrix over a mesh of its own, both of all ranks."""
    fully_shard(model.first, mesh=init_device_mesh("cpu", (2,)))
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model.last, mesh=mesh)


def spread_hybrid(model: Halves) -> None:
    """Copies of whole tensors on both ranks, as HSDP keeps them between machines."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)


SPREADS: dict[str, tuple[Callable[[Halves], None], bool | None]] = {
    "small": (spread_small, True),
    "half": (spread_half, True),
    "twice": (spread_twice, None),
    "hybrid": (spread_hybrid, None),
}


def unsaid(folder: Path, _rank: int) -> dict[str, list[str]]:
    """Each way of lying on some ranks, of which nobody says what the others hold."""
    told = {}
    for name in ("small", "half", "hybrid"):
        model = Halves()
        SPREADS[name][0](model)
        told[name] = refused(folder / name, model)
    return told


def whole(tensors: Sequence[Any]) -> list[Tensor]:
    return [(t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for t in tensors]


def own(model: nn.Module) -> list[Tensor]:
    return [
        (p.to_local() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()
    ]


def trained(folder: Path, rank: int) -> dict[str, Any]:
    """Four steps of each way, with a NaN in one rank's part of the first matrix in the third."""
    told = {}
    for name, (spread, stated) in SPREADS.items():
        model = Halves()
        spread(model)
        optimizer = torch.optim.AdamW(groups_of(model), lr=1e-2, fused=True)
        guard = attach(
            model,
            optimizer,
            run="test",
            directory=folder / name,
            settings=SETTINGS,
            replicated=stated,
        )
        off, bits = 0.0, [own(model)]
        for step in range(4):
            torch.manual_seed(step)
            guard.loss(model(torch.randn(4, 8)).square().mean()).backward()
            plain = [nn.Parameter(p) for p in whole(list(model.parameters()))]
            for one, grad in zip(plain, whole([p.grad for p in model.parameters()]), strict=True):
                one.grad = grad
            norm = torch.nn.utils.clip_grad_norm_(plain, LIMIT)
            if step == 2 and name not in ("small", "hybrid") and rank == 1:
                local = model.first.weight.grad.to_local()  # type: ignore[union-attr]
                local[0, 0] = float("nan")
            elif step == 2 and name in ("small", "hybrid"):
                model.first.weight.grad.to_local()[0, 0] = float("nan")  # type: ignore[union-attr]
            measured = guard.clip_grad_norm_(LIMIT)
            if step != 2:
                clipped = whole([p.grad for p in model.parameters()])
                pairs = zip(clipped, whole([p.grad for p in plain]), strict=True)
                off = max([off, *(float((a - b).abs().max()) for a, b in pairs)])
                off = max(off, float((measured - norm).abs()))
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
            bits.append(own(model))
        same = [all(map(torch.equal, *pair)) for pair in itertools.pairwise(bits)]
        told[name] = {"off": off, "same": same, "faults": guard.faults}
        guard.finish()
    return told


def losses(folder: Path, rank: int) -> dict[str, Any]:
    """Losses that are DTensors, of which each rank has a part: what is told, and who met whom."""
    model = DistributedDataParallel(Halves())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    seen: list[float] = []
    guard = attach(
        model,
        optimizer,
        run="test",
        directory=folder,
        settings=SETTINGS,
        forward=Forward(lambda values, _: seen.append(values["train/loss"])),
    )
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


def grouped(folder: Path, rank: int) -> str:
    """DDP over a group of one rank: the ranks do not share their gradients."""
    groups = [dist.new_group([n]) for n in range(2)]
    model = DistributedDataParallel(Halves(), process_group=groups[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    guard = attach(model, optimizer, run="test", directory=folder, settings=SETTINGS)
    guard.finish()
    return guard.state().facts["update_skipper"]


def local_sgd(folder: Path, _rank: int) -> dict[str, Any]:
    """DDP whose ranks step by their own gradients and average weights now and then."""
    model = DistributedDataParallel(Halves())
    model.register_comm_hook(PostLocalSGDState(None, None, 0), post_localSGD_hook)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    outer = PostLocalSGDOptimizer(inner, PeriodicModelAverager(4))
    try:
        attach(model, outer, run="test", directory=folder, settings=SETTINGS)
        remedy = ""
    except AttachError as error:
        remedy = error.remedy
    guard = attach(model, inner, run="test", directory=folder, settings=SETTINGS)
    guard.finish()
    return {"remedy": remedy, "update_skipper": guard.state().facts["update_skipper"]}


def partitioned(folder: Path, rank: int) -> dict[str, Any]:
    """ZeRO: each rank's inner optimizer trains a part and hands it on; a NaN in the second step."""
    network = Halves()
    model = DistributedDataParallel(network)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    settings = Settings(skip_by_sync=True)
    guard = attach(model, optimizer, run="test", directory=folder, settings=settings)
    guard._p.rates.scale = LrScale(0.5, 2, 10)
    weights, rates = [own(network)], []
    for step in range(3):
        model(torch.ones(2, 8) + rank).sum().backward()
        if step == 1:
            network.first.weight.grad[0, 0] = float("nan")  # type: ignore[index]
        guard.clip_grad_norm_(LIMIT)
        optimizer.step()
        rates.append(optimizer.optim.param_groups[0]["lr"])
        optimizer.zero_grad()
        guard.step()
        weights.append(own(network))
    same = [all(map(torch.equal, *pair)) for pair in itertools.pairwise(weights)]
    rewind = guard._p.rewind.answer.value
    guard.finish()
    return {"same": same, "rates": rates, "rewind": rewind, "faults": guard.faults}


def wrong_on_one(folder: Path, rank: int) -> list[str]:
    """What rank 1 gives is no optimizer of its model."""
    model = Halves()
    trained = Halves() if rank else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    try:
        attach(model, optimizer, run="test", directory=folder, settings=SETTINGS)
    except AttachError as error:
        return [error.argument, error.problem]
    return []


def differing(folder: Path, rank: int) -> dict[str, Any]:
    """The last stage's optimizer cannot leave an update out, or has no rate."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    told: dict[str, Any] = {}
    for way in ("unable", "rateless"):
        model = stage_of_halves(rank)
        optimizer: Any = torch.optim.AdamW(model.parameters(), fused=True)
        if rank == 1 and way == "unable":
            optimizer = torch.optim.LBFGS(model.parameters())
        elif rank == 1:
            del optimizer.param_groups[0]["lr"]
        guard = attach(
            model,
            optimizer,
            run="test",
            directory=folder / way,
            settings=SETTINGS,
            pipeline=mesh,
            has_loss=rank == 1,
        )
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


def by_rows(folder: Path, _rank: int) -> dict[str, Any]:
    """Resumed after the third of five steps: whether all is as if it had never been left."""
    told = {}
    for kind in (ByRows, ByRowsOfItsOwn):
        bits = []
        for steps in (5, 2):
            model = Halves()
            fully_shard(model)
            optimizer = kind(model.parameters())
            guard = attach(
                model,
                optimizer,
                run="test",
                directory=folder / kind.__name__,
                settings=SETTINGS,
                checkpoints=CheckpointDirectory(
                    folder / kind.__name__ / "kept", every=3, background=False
                ),
            )
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
        told[kind.__name__] = {"begun": begun, "same": all(map(torch.equal, *bits))}
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


def stage_of_tied(rank: int, marked: bool = False) -> nn.Module:
    """The table on the first stage, a copy of it on the last; `marked` as Megatron does."""
    whole = Tied()
    whole.words.weight.shared_embedding = marked  # type: ignore[attr-defined]
    if rank == 0:
        return nn.ModuleDict({"words": whole.words})
    whole.head.weight = nn.Parameter(whole.words.weight.detach().clone())
    whole.head.weight.shared_embedding = marked  # type: ignore[attr-defined]
    return nn.ModuleDict({"middle": whole.middle, "head": whole.head})


def tied(folder: Path, rank: int) -> dict[str, Any]:
    """An embedding tied to the head of the other stage: marked, said, and said not to be tied."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    stated: dict[str, Any] = {"pipeline": mesh, "has_loss": rank == 1}
    names = [("words.weight", "stage1.head.weight")]
    ways: dict[str, dict[str, Any]] = {"marked": {}, "said": {"tied": names}, "not": {"tied": ()}}
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
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    attach(model, optimizer, run="test", directory=folder, settings=SETTINGS, **stated).finish()
    logging.getLogger("spikeguard").removeHandler(handler)
    return [line for line in told if "one shape" in line]


def off_beside(folder: Path, rank: int, stated: dict[str, Any]) -> float:
    """How far weights and norms are from those of one process; three steps clipped by each rule."""
    model, beside = stage_of_tied(rank, "tied" not in stated), Tied()
    seen: list[dict[str, float]] = []
    guard = attach(
        model,
        optimizer := torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        run="test",
        directory=folder,
        settings=Settings(snapshot_every=0, slow_signals_every=1),
        forward=Forward(lambda values, _: seen.append(dict(values))),
        **stated,
    )
    alone = torch.optim.AdamW(beside.parameters(), lr=1e-2, fused=True)
    named = dict(beside.named_parameters(remove_duplicate=False))
    rule, whole_rule = AdaGC(warm_up=1), AdaGC(warm_up=1)
    off, norms = 0.0, list[float]()
    for step in range(6):
        torch.manual_seed(step)
        alone.zero_grad()
        beside(torch.randint(11, (4, 5))).square().mean().backward()
        for name, parameter in model.named_parameters():  # the stages have added up theirs
            parameter.grad = named[name].grad.clone()  # type: ignore[union-attr]
        if step < 3:
            measured = guard.clip_grad_norm_(LIMIT)
            norm = torch.nn.utils.clip_grad_norm_(beside.parameters(), LIMIT)
        else:
            measured = guard.clip_(rule)
            norm = clipped_by(whole_rule, beside)
        optimizer.step()
        alone.step()
        guard.step()
        norms.append(float(torch.stack([p.detach().norm() for p in beside.parameters()]).norm()))
        moved = [float((p - named[n]).abs().max()) for n, p in model.named_parameters()]
        off = max(off, float((measured - norm).abs() / norm), *moved)
    guard.finish()
    assert guard.faults == {}
    pairs = zip(seen, norms, strict=True) if rank == 0 else ()
    return max(off, *(abs(values["train/param_norm"] / norm - 1) for values, norm in pairs), 0.0)


def clipped_by(rule: Rule, model: nn.Module) -> Tensor:
    """By the rule itself, in one process; the norm before."""
    held = [p.grad for p in model.parameters() if p.grad is not None]
    each = torch.stack([grad.norm() for grad in held])
    norm: Tensor = each.norm()
    factors = rule.judge(norm, each).factor
    for grad, factor in zip(held, factors, strict=True):
        grad.mul_(factor)
    return norm


def stage_of_halves(rank: int) -> nn.Module:
    """One matrix each."""
    return nn.Sequential(Halves().first if rank == 0 else Halves().last)


def scaled(folder: Path, rank: int) -> dict[str, Any]:
    """A scaler on each stage, given or not; of four steps the last stage overflows in one."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    told = {}
    for fused, given in itertools.product((True, False), (True, False)):
        model = stage_of_halves(rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        guard = attach(
            model,
            optimizer,
            run="test",
            directory=folder / f"{fused}-{given}",
            settings=SETTINGS,
            state=[scaler] if given else [],
            pipeline=mesh,
            has_loss=rank == 1,
        )
        scaler.scale(torch.zeros(()))
        weights, scales = [own(model)], []
        for step in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, scaler.get_scale() * (step + 1.0))
                if step == 1 and rank == 1:
                    parameter.grad[0, 0] = float("inf")
            if given:
                scaler.unscale_(optimizer)
                guard.clip_grad_norm_(LIMIT)
            scaler.step(optimizer)
            scaler.update()
            guard.step()
            weights.append(own(model))
            scales.append(scaler.get_scale())
        guard.finish()
        same = [all(map(torch.equal, *pair)) for pair in itertools.pairwise(weights)]
        told[f"{fused}, {given}"] = {"same": same, "scales": scales, "faults": guard.faults}
        left = vars(scaler).get("_unscale_grads_")
        assert left is None
    return told


def unmeasured(folder: Path, rank: int) -> dict[str, Any]:
    """The last stage fails to take the norm of its part, once in each way of asking for it."""
    model = stage_of_halves(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    guard = attach(
        model,
        optimizer,
        run="test",
        directory=folder,
        settings=SETTINGS,
        pipeline=mesh,
        has_loss=rank == 1,
    )
    rule, norms, sizes = AdaGC(warm_up=1, warm_up_norm=LIMIT), [], []
    for step in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        failing = rank == 1 and step < 2
        if failing:
            guard._p.collector._norms._held = lambda: 1 / 0  # type: ignore[method-assign, return-value, assignment]
        norm = guard.clip_grad_norm_(LIMIT) if step % 2 == 0 else guard.clip_(rule)
        if failing:
            del guard._p.collector._norms._held
        norms.append(float(norm))
        sizes.append([float(p.grad.norm()) for p in model.parameters()])  # type: ignore[union-attr]
        optimizer.step()
        guard.step()
    guard.finish()
    return {"norms": norms, "sizes": sizes, "faults": guard.faults}


SCENES = (
    stages,
    stages_named_alike,
    frozen_apart,
    wrong_on_one,
    by_rows,
    differing,
    unsaid,
    trained,
    losses,
    grouped,
    local_sgd,
    partitioned,
    tied,
    scaled,
    unmeasured,
)

if plan := globals().get("PLAN"):
    torch.set_num_threads(1)
    meeting = f"file://{plan['meeting']}"
    dist.init_process_group("gloo", init_method=meeting, rank=plan["rank"], world_size=plan["size"])
    where = Path(plan["folder"])
    said = {scene.__name__: scene(where / scene.__name__, plan["rank"]) for scene in SCENES}
    (where / f"rank{plan['rank']}.json").write_text(json.dumps(said))
    dist.destroy_process_group()
