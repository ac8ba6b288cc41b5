"""The processes that train together: one alone, or as many as `torchrun` started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among all."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks to the terminal."""
        return self.rank == 0

    def replicate(self, model: nn.Module) -> nn.Module:
        """The model as the loop calls it: gradients are averaged over all ranks."""
        if self.world_size == 1:
            return model
        return DistributedDataParallel(model, broadcast_buffers=False)  # they never change

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a device scalar over all ranks; does not make the host wait on CUDA."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value / self.world_size

    def meet(self) -> None:
        """Return once every rank has come here."""
        if self.world_size > 1:
            dist.barrier()


def reduce_gradients(network: nn.Module, *, when: bool) -> AbstractContextManager[None]:
    """Around forward and backward of a micro-batch: only a step's last one averages over ranks."""
    if isinstance(network, DistributedDataParallel) and not when:
        skipping: AbstractContextManager[None] = network.no_sync()
        return skipping
    return nullcontext()


@contextmanager
def joined_ranks(*, allow_cuda: bool) -> Iterator[Ranks]:
    """Join the ranks that `torchrun` started, or be the only one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = _device(allow_cuda)
    if world_size == 1:
        yield Ranks(0, 1, device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), world_size, device)
    finally:
        dist.destroy_process_group()


def _device(allow_cuda: bool) -> torch.device:
    if not (allow_cuda and torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
