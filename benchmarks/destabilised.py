"""Which destabilised runs are made, how truth is read from a pair, which half is scored, and the
making: trains, forks, injects, and keeps what was measured.

Law: the plan is pure, and was fixed before the first run was made. Truth comes from the pair alone,
never from a detector. Runs already there are kept. One file of columns a run, `RUN.npz`, the first
row at step FORK + 1; the healthy run's own file holds its rows before the fork too.

A run is forked at step 1,200 of a healthy one (seed, beta2, clip) and trained on the same batches
as its twin without the fault; excess is the difference of their losses, step by step. Steps of
the truth rule count from the last step of the fault, from the first of a fault that never ends.

- delta: the larger of 0.02 nats and 3 standard deviations of the difference between no-fault
  twins whose weights were perturbed by different seeds, each difference averaged as below
- recoverable: the mean excess over steps +400 to +500 is below delta
- divergent: a loss up to step +500 is not finite at +400 or later, or the excess is above delta
  and rising: the mean of the second half of that window is above that of the first half by more
  than delta and 5 % of it
- lingering: above delta and flat, or falling too slowly to be back
"""

from __future__ import annotations

import copy
import math
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikeguard_protocol import Kind
from spikeguard_trainer.data import BatchLoader, Corpus, read_corpus
from spikeguard_trainer.faults import Fault, FaultName
from spikeguard_trainer.inject import FaultInjector, corrupt_batch
from spikeguard_trainer.model import VOCABULARY, Shape, Transformer
from spikeguard_trainer.schedule import lr_share, make_optimizer

Losses = NDArray[np.float64]  # (steps,), the first at step FORK + 1

FORK = 1200  # steps of the healthy run that every fault and twin of it share
STEPS = 510  # after the fork
WINDOW = (400, 500)  # steps after the fault that truth is read from
FLOOR = 0.02  # nats
DEVIATIONS = 3.0
RISE = 0.05  # of the excess, between the halves of the window

SEEDS = (3, 4)
BETA2 = (0.95, 0.99, 0.999)
CLIPS = (1.0, 0.0)  # 0: not clipped
PERTURBED = 1  # twins of each healthy run, for delta
PERTURBATION = 0.01  # of the root mean square of each matrix
NEVER_TUNED = FaultName.WEIGHT_SCALE
LASTING = STEPS  # a fault of this length never ends
ROWS = 96  # sequences of a batch
SHAPE = Shape(width=32, layers=1, heads=2, hidden=88, context=32)
LEARNING_RATE, WARMUP, TOTAL = 3e-3, 20, 2 * (FORK + STEPS)
WORKERS = 2  # processes that train
SIGNALS = (
    "loss",
    "grad_norm",
    "update_norm",
    "adam_v_norm",
    "param_norm",
    "lr",
    "token_entropy",  # nats, of the batch's histogram of bytes
    "unseen_tokens",  # share of the batch's bytes that no batch before held
)
Columns = NDArray[np.float64]  # (steps, SIGNALS)


@dataclass(frozen=True, slots=True)
class Healthy:
    """A run without faults, from which others are forked."""

    seed: int
    beta2: float
    clip: float

    def __str__(self) -> str:
        return f"s{self.seed}_b{self.beta2:g}_c{self.clip:g}"


@dataclass(frozen=True, slots=True)
class Run:
    """One destabilised run."""

    healthy: Healthy
    fault: Fault

    def __str__(self) -> str:
        fault = self.fault
        return f"{self.healthy}_{fault.name}_{fault.length}_{fault.strength:g}"

    @property
    def end(self) -> int:
        """Rows after the fork, from 0, of the step that truth counts from."""
        lasts = self.fault.length >= LASTING
        return 0 if lasts else self.fault.length - 1

    @property
    def tunes(self) -> bool:
        """Whether constants may be chosen on it: half of faults x seeds, one type never."""
        if self.fault.name is NEVER_TUNED:
            return False
        return (list(MENU).index(self.fault.name) + self.healthy.seed) % 2 == 0


MENU: dict[FaultName, tuple[tuple[int, float], ...]] = {  # (length, strength), mild to grave
    FaultName.BAD_BATCH: ((1, 1.0), (3, 1.0), (8, 1.0)),
    FaultName.BAD_BATCH_REPEATED: ((2, 1.0), (4, 1.0), (8, 1.0)),
    FaultName.BAD_BATCH_SHUFFLED: ((2, 1.0), (8, 1.0), (LASTING, 0.5)),
    FaultName.GRADIENT_ASCENT: ((4, 10.0), (8, 40.0), (LASTING, 1.0)),
    FaultName.LR_BUMP: ((5, 20.0), (8, 60.0), (LASTING, 100.0)),
    FaultName.WEIGHT_SCALE: ((1, 1.5), (1, 3.0), (1, 8.0)),
    FaultName.WEIGHT_NOISE: ((1, 0.5), (1, 1.5), (1, 4.0)),
    FaultName.MOMENT_RESET: ((1, 1e2), (1, 1e4), (1, 1e10)),
    FaultName.BIT_FLIP: ((1, 25.0), (1, 28.0), (1, 30.0)),
    FaultName.NAN_GRAD: ((1, 1.0), (3, 1.0), (1, 10.0)),
}


def healthy_runs() -> Iterator[Healthy]:
    """Every healthy run."""
    for seed, beta2, clip in product(SEEDS, BETA2, CLIPS):
        yield Healthy(seed, beta2, clip)


def runs_of(healthy: Healthy) -> Iterator[Run]:
    """Its destabilised runs: every fault once, in a strength that goes round."""
    place = list(healthy_runs()).index(healthy)
    for number, (name, choices) in enumerate(MENU.items()):
        length, strength = choices[(place + place // len(choices) + number) % len(choices)]
        yield Run(healthy, Fault(name, FORK + 1, length, strength))


def damage(run: Run, loss: Losses, twin: Losses) -> Losses:
    """Excess over the twin in the window that truth is read from, nats."""
    first, last = (run.end + edge for edge in WINDOW)
    excess: Losses = loss[first:last] - twin[first:last]
    return excess


def truth(run: Run, loss: Losses, twin: Losses, delta: float) -> Kind:
    """The kind of `run` from the pair."""
    excess = damage(run, loss, twin)
    if not np.isfinite(excess).all():
        return Kind.DIVERGENT
    mean = float(excess.mean())
    if mean < delta:
        return Kind.RECOVERABLE
    half = len(excess) // 2
    rise = float(excess[half:].mean() - excess[:half].mean())
    return Kind.DIVERGENT if rise > max(delta, RISE * mean) else Kind.LINGERING


def delta_of(pairs: Sequence[tuple[Losses, Losses]]) -> float:
    """What a pair must differ by to be damaged, from no-fault twins; nats."""
    first, last = WINDOW
    means = [float((a[first:last] - b[first:last]).mean()) for a, b in pairs]
    deviation = math.sqrt(sum(mean * mean for mean in means) / len(means))
    return max(FLOOR, DEVIATIONS * deviation)


class Job:
    """The reference trainer's model and loop, in memory, that can be put back to a fork."""

    def __init__(self, corpus: Corpus, healthy: Healthy) -> None:
        torch.manual_seed(healthy.seed)
        self.healthy, self.corpus = healthy, corpus
        self.model = Transformer(SHAPE)
        self.optimizer = make_optimizer(self.model, lr=LEARNING_RATE, beta2=healthy.beta2)
        self.groups = self.optimizer.param_groups
        self.rates = [float(group["lr"]) for group in self.groups]
        self.steps = 0
        self._schedule()
        self.counts = torch.zeros(VOCABULARY, dtype=torch.int64)  # of bytes trained on

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, copied."""
        kept = [self.model.state_dict(), self.optimizer.state_dict()]
        return copy.deepcopy({"parts": kept, "steps": self.steps, "counts": self.counts})

    def go_back(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        model, optimizer = state["parts"]
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.groups = self.optimizer.param_groups
        self.steps, self.counts = state["steps"], state["counts"]

    def train(self, steps: int, faults: Sequence[Fault] = ()) -> Columns:
        """`steps` more of them."""
        seed = self.healthy.seed
        loader = BatchLoader(
            self.corpus.training,
            rows=ROWS,
            context=SHAPE.context,
            seed=seed,
            corrupt=partial(corrupt_batch, tuple(faults), seed),
        )
        loader.skip_to(self.steps)
        nowhere = Path("faults.json.none")
        injector = FaultInjector(
            faults, self.model, self.optimizer, memory=nowhere, seed=seed, writes=False
        )
        return np.array([self.step(next(loader), injector) for _ in range(steps)])

    def step(
        self, batch: Any, injector: FaultInjector, lower: Callable[[], None] | None = None
    ) -> list[float]:
        """Train on one batch; what was measured, in the order of SIGNALS. `lower`: what a guard
        does to the learning rates just before the update."""
        self.steps += 1
        loss = self.model(batch.tokens, batch.targets)
        loss.backward()
        weights = list(self.model.parameters())
        with injector.strike(self.steps, batch.position):
            if lower is not None:
                lower()
            before = [weight.detach().clone() for weight in weights]  # after the fault's own change
            lr = float(self.groups[0]["lr"])
            limit = self.healthy.clip or math.inf
            grad_norm = torch.nn.utils.clip_grad_norm_(weights, limit)
            self.optimizer.step()
        self._schedule()
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            moved = torch._foreach_sub([weight.detach() for weight in weights], before)
            norms = (_norm(moved) / lr, self._second_moment(), _norm(weights))
        tokens = self._look_at(batch.tokens)
        return [float(value) for value in (loss.detach(), grad_norm, *norms, lr, *tokens)]

    def _schedule(self) -> None:
        """Set the learning rates of the next step."""
        share = lr_share(self.steps, warmup=WARMUP, total=TOTAL)
        for group, rate in zip(self.groups, self.rates, strict=True):
            group["lr"] = rate * share

    def _second_moment(self) -> Tensor:
        """Its L2 norm over all parameters, () fp32."""
        return _norm([state["exp_avg_sq"] for state in self.optimizer.state.values()])

    def _look_at(self, tokens: Tensor) -> tuple[float, float]:
        """Entropy in nats of the batch's bytes, and the share of them that are new."""
        count = torch.bincount(tokens.flatten(), minlength=VOCABULARY)
        part = count[count > 0] / count.sum()
        unseen = float(count[self.counts == 0].sum() / count.sum())
        self.counts += count
        return float(-(part * part.log()).sum()), unseen


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return norm


def perturb(job: Job, seed: int) -> None:
    """Add noise of a hundredth to every matrix: a twin that differs by chance alone."""
    random = torch.Generator().manual_seed(1_000_003 * job.healthy.seed + seed)
    with torch.no_grad():
        for weight in job.model.parameters():
            if weight.dim() >= 2:
                noise = torch.randn(weight.shape, generator=random)
                weight.add_(noise * PERTURBATION * weight.square().mean().sqrt())


def make(
    folder: Path,
    corpus: Corpus,
    healthy: Healthy,
    destabilised: Iterable[Run],
) -> Iterator[str]:
    """Train `healthy`, its twins and its destabilised runs that are not there yet; their names."""
    runs: dict[str, Callable[[Job], Columns]] = {str(healthy): lambda job: job.train(STEPS)}
    for number in range(PERTURBED):
        runs[f"{healthy}_twin{number}"] = partial(_perturbed, number)
    for run in destabilised:
        runs[str(run)] = partial(_faulty, run)
    missing = {name: act for name, act in runs.items() if not file_of(folder, name).exists()}
    if not missing:
        return
    job = Job(corpus, healthy)
    before = job.train(FORK)
    fork = job.state()
    for name, act in missing.items():
        job.go_back(fork)
        made = act(job)
        whole = np.concatenate([before, made]) if name == str(healthy) else made
        _write(file_of(folder, name), whole)
        yield name


def generate(
    folder: Path,
    chosen: Sequence[Healthy],
    runs_of: Callable[[Healthy], Iterable[Run]],
) -> None:
    """Train what is missing in `folder`, on both cores; names go to standard error."""
    folder.mkdir(parents=True, exist_ok=True)
    made = partial(_made, folder, runs_of)
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for names in pool.map(made, chosen):
            print(*names, sep="\n", end="\n" if names else "", file=sys.stderr)


def _made(folder: Path, runs_of: Callable[[Healthy], Iterable[Run]], healthy: Healthy) -> list[str]:
    torch.set_num_threads(1)  # the model is too small for more
    return list(make(folder, read_corpus(None), healthy, runs_of(healthy)))


def _perturbed(number: int, job: Job) -> Columns:
    perturb(job, number)
    return job.train(STEPS)


def _faulty(run: Run, job: Job) -> Columns:
    return job.train(STEPS, (run.fault,))


def file_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz"


def _write(file: Path, made: Columns) -> None:
    draft = file.with_suffix(".tmp.npz")
    np.savez_compressed(draft, rows=made)
    draft.replace(file)


def read(folder: Path, name: str) -> Columns:
    """The rows (steps, SIGNALS) of one run; raises `zipfile.BadZipFile` if cut off."""
    try:
        with np.load(file_of(folder, name)) as kept:
            rows: Columns = kept["rows"]
            return rows
    except zipfile.BadZipFile as error:
        raise zipfile.BadZipFile(f"{name}.npz is cut off; delete it and run again") from error
