"""torchdata's loader goes back by its state, whatever its workers have read ahead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from spikeguard_protocol import BatchRange, Medium, ResultState, Rollback

from .job import Job, batch_at, order, result, target_at

pytestmark = pytest.mark.slow

SKIPPED = BatchRange(22, 25)


class Rows(Dataset[Tensor]):
    """Micro-batches by their number."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, number: int) -> Tensor:
        return batch_at(number)


def loader() -> StatefulDataLoader[Tensor]:
    """Two workers, each up to four items ahead of the loop, in shuffled order."""
    order = torch.Generator().manual_seed(5)
    return StatefulDataLoader(
        Rows(), batch_size=None, shuffle=True, num_workers=2, prefetch_factor=4, generator=order
    )


class Without:
    """The same without what is to be skipped."""

    def __iter__(self) -> Iterator[Tensor]:
        for position, batch in enumerate(loader()):
            if position not in SKIPPED:
                yield batch


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_what_workers_read_ahead_is_read_again_after_a_rollback(tmp_path: Path) -> None:
    job = Job(tmp_path / "back", loader=loader())
    job.train_to(30)
    command = order(job, Rollback(target_at(job, 20, Medium.MEMORY), 20, SKIPPED))
    job.train_step()
    assert result(job, command).state is ResultState.APPLIED
    job.train_to(50)
    job.guard.finish()
    other = Job(tmp_path / "never", loader=Without())
    other.train_to(50)
    other.guard.finish()
    pairs = zip(job.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
