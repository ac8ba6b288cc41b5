"""A small sharded training job (FSDP2): tied, frozen, half-precision parameters and two groups.

Runs as one process or as several ranks that share every batch; writes what each rank saw.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from spikeguard import CheckpointDirectory, Forward, Guard, Settings, attach
from spikeguard.optim.clipping import AdaGC, Fixed, Hybrid, Rule, ZClip
from spikeguard_protocol import Ack, BatchRange, Medium, Order, Rollback
from tests.agent.heard import hear

ROWS, WORDS, WIDTH = 8, 11, 10  # a batch of all ranks; sizes that no number of ranks divides
SETTINGS = Settings(slow_signals_every=1, snapshot_every=4, send_interval_s=0.02)

EVERYTHING = replace(
    SETTINGS,
    unchanged_parameters=True,
    activation_layers=("blocks.*", "coarse"),
    sampled_signals_every=1,
    flight_recorder=2,
)

RULES: dict[str, Callable[[], Rule]] = {
    "fixed": lambda: Fixed(0.4),
    "zclip": lambda: ZClip(warm_up=2, max_threshold=0.5, z_threshold=1.0),
    "adagc": lambda: AdaGC(warm_up=2),
    "hybrid": lambda: Hybrid(ZClip(warm_up=2, z_threshold=1.0), AdaGC(warm_up=2)),
}


class Network(nn.Module):
    """Word to next word; the last layer is the first one's weight."""

    def __init__(self, coarse: torch.dtype) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 13), nn.GELU(), nn.Linear(13, WIDTH)) for _ in range(1)
        )
        self.add_module("0", nn.LayerNorm(WIDTH))  # named as optimizers number parameters
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.coarse = nn.Linear(WIDTH, WIDTH, dtype=coarse)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.frozen.requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = x + block(x)
        x = self.get_submodule("0")(x)
        x = self.frozen(x) + self.coarse(x.to(self.coarse.weight.dtype)).float()
        return self.head(x)  # type: ignore[no-any-return]


class Words:
    """This rank's rows of each micro-batch, a pure function of its number."""

    def __init__(self, rank: int, size: int, micro: int, left_out: Collection[int]) -> None:
        self.rank, self.size, self.micro = rank, size, micro
        self.left_out, self.read = left_out, 0

    def __iter__(self) -> Words:
        return self

    def __next__(self) -> Tensor:
        while self.read // self.micro in self.left_out:
            self.read += 1
        self.read += 1
        whole = np.random.default_rng(self.read - 1).integers(0, WORDS, (ROWS, 4))
        share = ROWS // self.size
        return torch.from_numpy(whole[self.rank * share : (self.rank + 1) * share])

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class ShardedJob:
    """One attempt at training `Network`."""

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        size: int = 1,
        *,
        rule: Rule | None = None,
        micro: int = 1,
        coarse: torch.dtype = torch.float32,
        left_out: Collection[int] = (),
        state: Sequence[Any] = (),
        checkpoints: CheckpointDirectory | None = None,
        settings: Settings = SETTINGS,
        server: str | None = None,
    ) -> None:
        torch.manual_seed(5)
        self.model, self.rule = Network(coarse), rule
        self.size, self.micro = size, micro
        self.network: Any = self.model
        if size > 1:
            self.spread()
        decayed = [p for p in self.model.parameters() if p.requires_grad and p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.requires_grad and p.ndim == 1]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": rest, "weight_decay": 0.0, "lr": 3e-2},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
        self.seen: list[dict[str, float]] = []
        self.trail: list[tuple[int, int]] = []
        self.spoil: Callable[[ShardedJob], object] = id
        self.factor, self.more = 1.0, 0.0  # of the next losses of this rank, and upon them
        self.guard: Guard = attach(
            self.network,
            self.optimizer,
            run="sharded",
            state=state,
            checkpoints=checkpoints,
            directory=folder / "guard",
            micro_batches=micro,
            settings=settings,
            server=server,
            forward=Forward(self._note),
        )
        self._batches = iter(self.guard.batches(Words(rank, size, micro, left_out)))

    def spread(self) -> None:
        """Over the ranks: each holds a part."""
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model.coarse)
        fully_shard(self.model)

    def meet(self, now: bool) -> None:
        """Whether the next backward pass brings the ranks' gradients together."""
        self.network.set_requires_gradient_sync(now)

    def _note(self, values: dict[str, float], step: int) -> None:
        self.seen.append({"step": step, **values})

    def train_to(self, step: int, most: int = 1000) -> None:
        """Until `guard.steps` is `step`; at most `most` optimizer steps."""
        while self.guard.steps != step and most and self.train_step():
            most -= 1

    def train_step(self) -> bool:
        """One optimizer step; False when the data ended or the run was stopped."""
        for micro in range(self.micro):
            batch = next(self._batches, None)
            if batch is None:
                return False
            if self.size > 1:
                self.meet(micro == self.micro - 1)
            scores = self.network(batch[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            (self.guard.loss(loss * self.factor + self.more) / self.micro).backward()
        self.spoil(self)
        if self.rule is None:
            self.guard.clip_grad_norm_(0.5)
        else:
            self.guard.clip_(self.rule)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        before = self.guard.steps
        self.guard.step()
        self.trail.append((before + 1, self.guard.steps))
        return True

    def weights(self) -> dict[str, Tensor]:
        """Whole parameters, in double precision. Collective."""
        with torch.no_grad():
            return {
                name: (p.full_tensor() if isinstance(p, DTensor) else p).double().clone()
                for name, p in self.model.named_parameters()
            }

    def shards(self) -> list[Tensor]:
        """This rank's bits of weights, moments and step counters."""
        own = [p for g in self.optimizer.param_groups for p in g["params"]]
        states = [t for p in own for t in self.optimizer.state[p].values()]
        return [
            (t.to_local() if isinstance(t, DTensor) else t).detach().clone() for t in own + states
        ]


def spoil_one_shard(job: ShardedJob) -> None:
    """A NaN in one number of the last rank's shard, at step 4 alone."""
    if job.guard.steps == 3 and dist.get_rank() == dist.get_world_size() - 1:
        grad = job.model.blocks[0][0].weight.grad  # type: ignore[index]
        assert isinstance(grad, DTensor)
        grad.to_local()[0, 0] = float("nan")


def measured(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Clipping rules for six steps each: what was reported, and the weights it led to."""
    told: dict[str, Any] = {}
    for name, make in RULES.items() if size < 4 else [("hybrid", RULES["hybrid"])]:
        job = ShardedJob(folder / name, rank, size, rule=make(), micro=2)
        job.train_to(6)
        job.guard.finish()
        weights = {key: value.tolist() for key, value in job.weights().items()}
        told[name] = {"seen": job.seen, "weights": weights, "faults": job.guard.faults}
    return told


def mixed(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """With a bf16 layer: the norms of whole tensors in double precision, beside the reported.

    Every optional signal is on, and makes no rank meet another.
    """
    job = ShardedJob(
        folder / "mixed", rank, size, micro=2, coarse=torch.bfloat16, settings=EVERYTHING
    )
    outputs: list[Tensor] = []
    for layer in (*job.model.blocks, job.model.coarse):
        layer.register_forward_hook(lambda _m, _a, out: outputs.append(out.detach().double()))
    expected: list[dict[str, float]] = []
    before: list[Tensor] = []
    reductions: list[int] = []

    def look(job: ShardedJob) -> None:
        trained = [p for p in job.model.parameters() if p.requires_grad]
        before[:] = _whole(trained)
        expected.append({"grad_norm_raw": _norm(_whole([p.grad for p in trained]))})
        with CommDebugMode() as met:
            job.guard.clip_grad_norm_(None)
        reductions.append(met.get_total_counts())
        with CommDebugMode() as met:
            job.guard.clip_(AdaGC(warm_up=1000, warm_up_norm=1e9))
        reductions.append(met.get_total_counts())

    job.spoil = look
    for _ in range(3):
        outputs.clear()
        job.train_step()
        trained = [p for p in job.model.parameters() if p.requires_grad]
        rates = {
            id(p): group["lr"] for group in job.optimizer.param_groups for p in group["params"]
        }
        moved = [
            (new - old) / rates[id(p)]
            for p, old, new in zip(trained, before, _whole(trained), strict=True)
        ]
        moments = [job.optimizer.state[p]["exp_avg_sq"] for p in trained]
        expected[-1] |= {"param_norm": _norm(_whole(trained)), "update_norm": _norm(moved)}
        expected[-1]["adam_v_norm"] = _norm(_whole(moments))
        expected[-1]["activation_norm_max"] = _highest(_norm(outputs[::2]), _norm(outputs[1::2]))
    job.guard.finish()
    told = {"seen": job.seen, "expected": expected, "faults": job.guard.faults}
    return {**told, "reductions": reductions, "recorded": len(job.guard._reporter._recorder)}


def _whole(tensors: list[Any]) -> list[Tensor]:
    with torch.no_grad():
        return [(t.full_tensor() if isinstance(t, DTensor) else t).double() for t in tensors]


def _highest(*values: float) -> float:
    """Over all ranks. Collective."""
    highest = torch.tensor(max(values))
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return float(highest)


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.square().sum() for t in tensors]).sum().sqrt())


def dropped(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Whether a NaN in one shard left this rank's bits as they were, and the next step did not.

    The last rank can write no checkpoint: a file is in its way.
    """
    kept = CheckpointDirectory(folder / f"kept-{rank == size - 1}", every=2, background=False)
    (folder / "kept-True").touch()
    job = ShardedJob(folder / "dropped", rank, size, checkpoints=kept)
    job.spoil = spoil_one_shard
    bits = []
    for _ in range(5):
        job.train_step()
        bits.append(job.shards())
    job.guard.finish()
    same = [all(map(torch.equal, one, two)) for one, two in itertools.pairwise(bits)]
    told = {"same": same, "seen": job.seen, "faults": job.guard.faults}
    return {**told, "checkpoints": [target.step for target in kept.targets()]}


def order_back(job: ShardedJob, number: int, step: int, medium: Medium, skip: BatchRange) -> None:
    """Rank 0 hears of a rollback, as from the server."""
    state = job.guard.state()
    held = state.checkpoints if medium is Medium.DISK else state.snapshots or ()
    name = next(target.name for target in held if target.step == step)
    order = Order(f"test#1.{number}", job.guard.attempt, Rollback(name, step, skip), 60.0, None)
    if job.guard._p.world.leads:
        hear(job.guard, Ack(number, (order,)))


def without(
    folder: Path, rank: int, size: int, step: int, left_out: Collection[int]
) -> list[Tensor]:
    """The bits at `step` of a run that never saw those positions."""
    job = ShardedJob(folder, rank, size, left_out=left_out)
    job.train_to(step)
    job.guard.finish()
    return job.shards()


def recovered(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Back to memory, back to disk, and a restart: what became of this rank's bits."""
    kept = CheckpointDirectory(folder / "checkpoints", every=5, background=False)
    job = ShardedJob(folder / "recovered", rank, size, checkpoints=kept)
    job.train_to(11)
    order_back(job, 1, 8, Medium.MEMORY, BatchRange(9, 11))
    told: dict[str, Any] = {"steps": [], "same": []}
    while job.guard.steps >= 11:
        job.train_step()
    told["steps"].append(job.guard.steps)
    job.train_to(12)
    bits = without(folder / "one", rank, size, 12, [9, 10])
    told["same"].append(all(map(torch.equal, job.shards(), bits)))
    order_back(job, 2, 5, Medium.DISK, BatchRange(6, 7))
    while job.guard.steps >= 12:
        job.train_step()
    told["steps"].append(job.guard.steps)
    job.train_to(11)
    job.guard.finish()
    bits = without(folder / "two", rank, size, 11, [6, 9, 10])
    told["same"].append(all(map(torch.equal, job.shards(), bits)))
    again = ShardedJob(folder / "recovered", rank, size, checkpoints=kept)
    told["resumed"] = again.guard.resume()
    again.train_to(11)
    again.guard.finish()
    told["same"].append(all(map(torch.equal, again.shards(), bits)))
    told["faults"] = [job.guard.faults, again.guard.faults]
    return told


class Stall:
    """Something whose pickling hangs while `gate` exists, once `started` was told."""

    def __init__(self, gate: Path, started: Path) -> None:
        self.gate, self.started = gate, started

    def __deepcopy__(self, _: object) -> Stall:
        return self

    def __reduce__(self) -> Any:
        self.started.touch()
        while self.gate.exists():
            time.sleep(0.01)
        return str, ("pickled",)


class Stalling:
    """A part of the training state that takes as long to write as the test likes."""

    def __init__(self, stall: Stall) -> None:
        self.stall = stall

    def state_dict(self) -> dict[str, Any]:
        return {"stall": self.stall}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        pass


def stalled(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Checkpoints at 5, 10, 15, ...; the last rank's disk stops while it writes that of 10."""
    gate = folder / f"gate-{rank}"
    state = [Stalling(Stall(gate, folder / f"started-{rank}"))]
    kept = CheckpointDirectory(folder / "checkpoints", every=5)
    job = ShardedJob(folder / "stalled", rank, size, checkpoints=kept, state=state)
    resumed, bits = job.guard.resume(), folder / f"bits-{rank}.pt"
    told: dict[str, Any] = {"resumed": resumed}
    if resumed:
        saved = torch.load(bits)
        told["same"] = all(map(torch.equal, job.shards(), saved))
        job.guard.finish()
        return told
    job.train_to(5)
    torch.save(job.shards(), bits)
    weights = job.weights()
    while not kept.targets():  # the first one is whole
        job.guard._p.recovery.settle()
        time.sleep(0.01)
    if rank == 0:
        torch.save(weights, folder / "weights.pt")
    if rank == size - 1:
        gate.touch()
    while job.train_step():
        written = folder / f"writing-{rank}"
        written.write_text(json.dumps({"step": job.guard.steps, "faults": job.guard.faults}))
        written.replace(folder / f"step-{rank}")
    return told


def whole_state(job: ShardedJob) -> dict[str, Tensor]:
    """All weights, moments and counters, whole, by name. Collective."""
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in job.model.named_parameters():
            state = job.optimizer.state.get(parameter, {})
            for key, value in {"weight": parameter, **state}.items():
                whole = value.full_tensor() if isinstance(value, DTensor) else value
                found[f"{name}.{key}"] = whole.detach().clone()
    return found


def another_size(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Go on with whatever number of ranks, five steps more; at last back to where it went on."""
    kept = CheckpointDirectory(folder / "checkpoints", every=5, background=False)
    job = ShardedJob(folder / "guard", rank, size, checkpoints=kept)
    told: dict[str, Any] = {"resumed": job.guard.resume()}
    begun = told["resumed"]
    if begun:
        told["same"] = equal_to_saved(whole_state(job), folder / f"whole-{begun}.pt")
    job.train_to(begun + 5)
    if begun == 10:
        order_back(job, 1, 10, Medium.DISK, BatchRange(11, 12))
        while job.guard.steps >= 15:
            job.train_step()
        told["back"] = [job.guard.steps, equal_to_saved(whole_state(job), folder / "whole-10.pt")]
        job.train_to(15)
    state = whole_state(job)
    told["states"] = len(state)
    if rank == 0:
        torch.save(state, folder / f"whole-{begun + 5}.pt")
    job.guard.finish()
    told["losses"] = [seen["train/loss"] for seen in job.seen]
    return {**told, "faults": job.guard.faults}


class OfThisRank:
    """A part of the training state that each rank has for itself."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def state_dict(self) -> dict[str, int]:
        return {"rank": self.rank}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.rank = state["rank"]


def apart(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """One checkpoint of a run whose `state=` is another on each rank."""
    kept = CheckpointDirectory(folder / "apart", every=5, background=False)
    state = [OfThisRank(rank)]
    job = ShardedJob(folder / "guard", rank, size, checkpoints=kept, state=state)
    job.train_to(5)
    job.guard.finish()
    return {}


def equal_to_saved(state: dict[str, Tensor], saved: Path) -> bool:
    """To the bit."""
    there = torch.load(saved)
    return state.keys() == there.keys() and all(torch.equal(state[n], there[n]) for n in there)


def watched(folder: Path, rank: int, size: int) -> dict[str, Any]:
    """Norms by layer while the server watches closely: each step's, of whole tensors, and how often
    the job's own ranks meet for them."""
    settings = replace(SETTINGS, slow_signals_every=10)
    job = ShardedJob(folder / "watched", rank, size, settings=settings)
    recorder, told = job.guard._reporter._recorder, dict[int, Any]()
    pass_on = recorder.pass_on

    def note(row: Any, watched: bool) -> Any:
        for detail in (details := list(pass_on(row, watched))):
            told[detail.step] = detail().norms
        return details

    recorder.pass_on = note  # type: ignore[method-assign]
    names = {id(p): name for name, p in job.network.named_parameters()}
    expected: dict[int, dict[str, float]] = {}
    sizes: list[int] = []

    def look(job: ShardedJob) -> None:
        held = [p for p in job.model.parameters() if p.grad is not None]
        wholes = _whole([p.grad for p in held])
        expected[job.guard.steps + 1] = {
            names[id(p)]: float(whole.norm()) for p, whole in zip(held, wholes, strict=True)
        }
        reduce = dist.all_reduce

        def counted(tensor: Tensor) -> Any:
            sizes.append(tensor.numel())
            return reduce(tensor)

        dist.all_reduce = counted  # type: ignore[assignment]
        try:
            job.guard.clip_grad_norm_(None)
        finally:
            dist.all_reduce = reduce

    job.spoil = look
    for step in range(1, 18):
        if rank == 0:
            hear(job.guard, Ack(0, (), 3 <= step < 14, ()), time.monotonic())
        job.train_step()
    job.guard.finish()
    return {"told": told, "expected": expected, "sizes": sizes, "faults": job.guard.faults}


def main(folder: Path, scenes: Sequence[str]) -> None:
    """What one rank of a test does."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    told = {name: globals()[name](folder, rank, size) for name in scenes}
    (folder / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":  # under torchrun
    dist.init_process_group("gloo")
    main(Path(sys.argv[1]), sys.argv[2:])
elif plan := globals().get("PLAN"):  # one of the processes of the test's own
    meeting = f"file://{plan['meeting']}"
    dist.init_process_group("gloo", init_method=meeting, rank=plan["rank"], world_size=plan["size"])
    main(Path(plan["folder"]), plan["scenes"])
