"""Makes the destabilised runs of the plan: trains, forks, injects, and keeps what was measured.

Law: decides nothing; `naming_plan.py` says which runs and what truth is. Runs already there are
kept. One file of columns a run, `RUN.npz`, the first row at step FORK + 1; the healthy run's own
file holds its rows before the fork too.
"""

from __future__ import annotations

import copy
import math
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.naming_plan import (
    FORK,
    PERTURBATION,
    PERTURBED,
    ROWS,
    STEPS,
    Healthy,
    Run,
)
from spikeguard_trainer.data import BatchLoader, Corpus, read_corpus
from spikeguard_trainer.faults import Fault
from spikeguard_trainer.inject import FaultInjector, corrupt_batch
from spikeguard_trainer.model import VOCABULARY, Shape, Transformer
from spikeguard_trainer.schedule import lr_share, make_optimizer

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
