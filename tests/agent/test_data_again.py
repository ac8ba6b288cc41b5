"""A rollback reads the batches that lay there before, or says that it cannot."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from spikeguard.data.fingerprints import Fingerprints, fingerprint
from spikeguard_protocol import BatchRange, Medium, ResultState, Rollback

from .device import CUDA, device
from .heard import parts_of
from .job import FAST, Counted, Job, order, result, target_at

pytestmark = [
    pytest.mark.slow,  # seconds of restarts
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

TARGET, SEEN, LAST = 10, 15, 30


class Rows(Dataset[Tensor]):
    """Rows by their number, a pass of 20 batches of 4."""

    def __init__(self, count: int = 80) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Tensor:
        return torch.full((8,), float(number)) / 80


class Augmented(Rows):
    """Adds noise by a generator of its own."""

    def __init__(self, noise: Callable[[], float], **held: Any) -> None:
        super().__init__()
        self.noise = noise
        vars(self).update(held)

    def __getitem__(self, number: int) -> Tensor:
        return super().__getitem__(number) + self.noise()


class GlobalNoise(Rows):
    """Draws from numpy's global numbers, as augmentation libraries do."""

    def __getitem__(self, number: int) -> Tensor:
        return super().__getitem__(number) + float(np.random.rand())


class Stream(IterableDataset[Tensor]):
    """Goes on where it was, whoever begins it anew."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.number < 400:
            self.number += 1
            yield torch.full((8,), self.number / 80)


class Buffer(Counted, IterableDataset[Tensor]):
    """A shuffle buffer over a stream; its state says how far the stream is, not what it holds."""

    def __iter__(self) -> Iterator[Tensor]:
        drawn, buffer = random.Random(5), list[int]()
        while self.read < 400:
            buffer.append(self.read)
            self.read += 1
            if len(buffer) > 16:
                yield torch.full((4, 8), buffer.pop(drawn.randrange(16)) / 80)


def shuffled(**given: Any) -> DataLoader[Tensor]:
    return DataLoader(Rows(), batch_size=4, **{"shuffle": True, **given})


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def augmented(kind: str) -> DataLoader[Tensor]:
    if kind == "numpy":
        rng = np.random.default_rng(3)
        data = Augmented(rng.random, rng=rng)
    elif kind == "python":
        own = random.Random(3)
        data = Augmented(own.random, rng=[own])
    else:
        drawn = seeded()
        data = Augmented(lambda: float(torch.rand((), generator=drawn)), rng={"of": drawn})
    return DataLoader(data, batch_size=4, shuffle=True)


def hidden() -> DataLoader[Tensor]:
    """Its generator lies in a closure."""
    rng = np.random.default_rng(3)
    return DataLoader(Augmented(lambda: float(rng.random())), batch_size=4)


def by_clock() -> DataLoader[Tensor]:
    return DataLoader(Augmented(lambda: time.perf_counter() % 1), batch_size=4)


def stateful(**given: Any) -> StatefulDataLoader[Tensor]:
    return StatefulDataLoader(GlobalNoise(), batch_size=4, shuffle=True, **given)


EXACT: dict[str, Callable[[], Any]] = {
    "global": shuffled,
    "generator": lambda: shuffled(generator=seeded()),
    "weighted": lambda: shuffled(
        shuffle=None, sampler=WeightedRandomSampler([1.0, 2.0] * 40, 80, generator=seeded())
    ),
    "batch sampler": lambda: DataLoader(
        Rows(), batch_sampler=BatchSampler(RandomSampler(Rows(), generator=seeded()), 4, True)
    ),
    "numpy": lambda: augmented("numpy"),
    "python": lambda: augmented("python"),
    "torch": lambda: augmented("torch"),
    "torchdata": lambda: StatefulDataLoader(Rows(), batch_size=4, shuffle=True, generator=seeded()),
}
WORKERS: dict[str, Callable[[], Any]] = {
    "persistent": lambda: shuffled(num_workers=1, persistent_workers=True, generator=seeded()),
    "numpy in workers": lambda: DataLoader(
        GlobalNoise(), batch_size=4, shuffle=True, num_workers=1
    ),
    "torchdata's, which read ahead": lambda: StatefulDataLoader(
        Rows(), batch_size=4, shuffle=True, num_workers=2, prefetch_factor=4, generator=seeded()
    ),
}
REFUSED: dict[str, Callable[[], Any]] = {
    "closure": hidden,
    "clock": by_clock,
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "shuffle buffer": Buffer,
    "numpy in torchdata's workers": lambda: stateful(num_workers=1),
}


class Passes(Job):
    """The job over several passes; remembers the batch of each step, the newest of it."""

    def __init__(self, folder: Path, loader: Any, **given: Any) -> None:
        super().__init__(folder, loader=loader, settings=replace(FAST, snapshot_every=5, **given))
        self.trained: dict[int, Tensor] = {}
        self.said: tuple[ResultState, str] | None = None

    def run(
        self,
        to: int = LAST,
        back: int = 0,
        target: int = TARGET,
        skip: BatchRange | None = None,
    ) -> None:
        """Until step `to`; at step `back` the run is taken back to `target`, once."""
        torch.manual_seed(3)
        np.random.seed(3)
        command = ""
        for _ in self.guard.epochs(9):
            for batch in self.guard.batches(self.loader):
                self.trained[self.guard.steps] = batch.clone()
                if self.guard.steps == back - 1 and not command:
                    name = target_at(self, target, Medium.MEMORY)
                    command = order(self, Rollback(name, target, skip))
                self.train(batch)
                if self.guard.steps == to:
                    break
            if self.guard.steps == to:
                break
        self.guard.finish()
        if command:
            told = result(self, command)
            self.said = told.state, told.reason

    def train(self, batch: Tensor) -> None:
        self.guard.loss((self.model(batch) - batch.roll(1, 1)).square().mean()).backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.guard.step()


def differing(one: Passes, other: Passes) -> list[int]:
    return [s for s, batch in one.trained.items() if not torch.equal(batch, other.trained[s])]


@pytest.mark.parametrize(
    ("kind", "back"),
    [
        ("generator", 15),
        *((kind, 26) for kind in EXACT),
        *(pytest.param(kind, 26, marks=pytest.mark.slow) for kind in WORKERS),
    ],
)
def test_the_same_batches_come_again(tmp_path: Path, kind: str, back: int) -> None:
    """In the first pass, and from the second into it: `guard.epochs` makes no pass too many."""
    make = {**EXACT, **WORKERS}[kind]
    whole, job = Passes(tmp_path / "whole", make()), Passes(tmp_path / "back", make())
    whole.run()
    job.run(back=back)
    assert job.said is not None
    assert job.said[0] is ResultState.APPLIED, job.said
    assert "other data" not in job.said[1]
    assert differing(whole, job) == []
    assert job.guard.faults == whole.guard.faults == {}


@pytest.mark.slow
def test_a_loop_that_leaves_its_pass_has_no_workers_once_it_has_finished(tmp_path: Path) -> None:
    """Else each of them would be waited for, 5 s, wherever garbage is collected next."""
    before = set(active_children())
    job = Passes(tmp_path, WORKERS["numpy in workers"]())
    job.run()
    assert set(active_children()) <= before


@pytest.mark.parametrize("kind", [
    pytest.param(k, marks=pytest.mark.slow if "workers" in k else ()) for k in REFUSED
])  # fmt: skip
def test_a_loader_that_gives_other_data_is_refused_before_anything_changes(
    tmp_path: Path, kind: str
) -> None:
    job = Passes(tmp_path, REFUSED[kind]())
    job.run(back=SEEN)
    assert job.said is not None
    assert job.said[0] is ResultState.REFUSED, job.said
    assert "does not give the same items again" in job.said[1]
    assert job.guard.state().segment == 0
    assert sorted(job.trained) == list(range(LAST))


@pytest.mark.slow
def test_a_refused_rollback_changes_no_batch_and_no_random_number(tmp_path: Path) -> None:
    """Nor for loaders whose own place has to be found again: workers that persist, a state."""
    for kind in ("persistent", "torchdata", "shuffle buffer"):
        make = {**EXACT, **WORKERS, **REFUSED}[kind]
        whole, job = Passes(tmp_path / f"{kind} a", make()), Passes(tmp_path / f"{kind} b", make())
        whole.run()
        seen = parts_of(job.guard).feed.fingerprints
        seen.is_other = lambda *_: True
        job.run(back=SEEN)
        assert job.said is not None
        assert job.said[0] is ResultState.REFUSED
        assert differing(whole, job) == []
        one, other = (list(each.model.parameters()) for each in (whole, job))
        assert all(map(torch.equal, one, other))


def test_where_the_settings_allow_it_the_run_goes_back_and_the_result_says_other_data(
    tmp_path: Path,
) -> None:
    job = Passes(tmp_path, hidden(), rollback_on_other_data=True)
    job.run(back=SEEN)
    assert job.said is not None
    assert job.said[0] is ResultState.APPLIED
    assert job.said[1].startswith("other data, from step 15 back to snapshot") or (
        job.said[1].startswith("other data, from step 15 back to memory")
    )
    assert job.guard.faults == {}


class LaterOther(Rows):
    """Repeats its beginning alone."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = 0

    def __getitem__(self, number: int) -> Tensor:
        self.shown += 1
        late = self.shown > 4 * SEEN and number >= 4 * 12
        return super().__getitem__(number) + late


def test_a_difference_that_comes_later_corrects_the_result_and_is_told(tmp_path: Path) -> None:
    job = Passes(tmp_path, DataLoader(LaterOther(), batch_size=4))
    job.run(to=18, back=SEEN)
    assert job.said is not None
    assert job.said[0] is ResultState.APPLIED
    assert job.said[1].startswith("other data, from step 15 back to")
    assert job.guard.faults == {"data": 1}


@pytest.mark.parametrize("kind", ["shuffled", "augmented"])
def test_what_is_drawn_anew_behind_a_skip_is_not_called_other_data(
    tmp_path: Path, kind: str
) -> None:
    """The next pass's order, or noise in the items: a run without these batches draws them so."""
    loader = shuffled() if kind == "shuffled" else DataLoader(GlobalNoise(), batch_size=4)
    job = Passes(tmp_path, loader)
    job.run(to=45, back=26, skip=BatchRange(12, 15))
    assert job.said is not None
    assert job.said[0] is ResultState.APPLIED
    assert "other data" not in job.said[1]
    assert job.guard.faults == {}


# --- fingerprints ---


def test_a_fingerprint_is_of_everything_in_a_batch() -> None:
    ids = torch.arange(24).view(4, 6)
    batch = {"ids": ids, "text": ["a", "b"], "mask": ids > 3, "n": np.arange(3.0), "weight": 0.5}
    batch |= {"half": ids.bfloat16(), "turned": ids.float().t(), "none": ids[:0]}
    first = fingerprint(batch)
    assert first == fingerprint({**batch, "ids": ids.clone()})
    others = [
        {**batch, "ids": ids.flip(0)},
        {**batch, "ids": ids.view(6, 4)},
        {**batch, "text": ["b", "a"]},
        {**batch, "mask": ids > 4},
        {**batch, "n": np.arange(3.0) + 1},
        {**batch, "weight": 0.25},
        {**batch, "half": ids.bfloat16() + 1},
    ]
    assert first not in map(fingerprint, others)
    assert fingerprint(object()) is None


def test_on_a_device_it_is_made_there_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Fingerprints()
    with device(monkeypatch) as waits:
        for step in range(20):
            items = {"ids": torch.empty(8, 4_096, dtype=torch.int64, device=CUDA), "n": [step]}
            seen.see((1, step), items)
            seen.settle()
        assert waits.operations > 0
        assert waits.found == []
        assert len(seen._flying) == 20
