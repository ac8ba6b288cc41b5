"""How a state lies in a checkpoint's folder: through `torch.distributed.checkpoint` (DCP).

What all ranks hold together lies there under names of its own (`model.blocks.0.weight`,
`optimizer.state.blocks.0.weight.exp_avg`, as torch's `get_state_dict` names them), each part once,
so that plain `dcp.load` reads it too; what a rank
has for itself (random numbers, data position, buffers) is one blob, `rank-00000`.
Written from host copies, in a thread of `async_save`'s, on a gloo group that nothing else
uses; read by each rank alone, without meeting the others, so that a vote can follow.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from spikeguard.faults import log
from spikeguard.state.folders import FileSums, claim, sum_of
from spikeguard.state.lineage import Tree
from spikeguard.state.random_numbers import random_state
from spikeguard.state.replicated_parts import BoxOf, Part, difference, joined, names_in
from spikeguard.state.snapshots import Staged

ALONE = r"torch\.distributed is (disabled|unavailable)"  # said at every save of one process


class _Saving(DefaultSavePlanner):
    """Writes what was staged; waits for the copy in DCP's own thread."""

    def __init__(self, staged: Staged, rank: int) -> None:
        super().__init__(flatten_state_dict=False)
        self._staged, self._rank = staged, rank
        self._tensors: dict[str, Tensor] = {}
        self.trained = trained(names_in(staged.own))

    def create_local_plan(self) -> SavePlan:
        if self._staged.copied is not None:
            self._staged.copied.synchronize()
        buffer = io.BytesIO()
        torch.save(self._staged.own, buffer)
        blob = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
        parts = {**self._staged.parts, _own_name(self._rank): Part.whole(blob)}
        self._tensors = {name: part.tensor for name, part in parts.items()}
        self.plan = SavePlan([_write(n, p) for n, p in parts.items() if p.tensor.numel()])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._tensors[index.fqn]


class _Loading(DefaultLoadPlanner):
    """Reads the parts that are asked for into their tensors on the host."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(flatten_state_dict=False)
        self._parts = parts

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, part in self._parts.items():
            if part.tensor.numel():
                stored = _stored(self.metadata, name)
                items += create_read_items_for_chunk_list(name, stored, [_chunk(part)])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._parts[index.fqn].tensor


Complete = Callable[[FileSums, str | None], None]  # rank 0, once all ranks have written


class _Writer(FileSystemWriter):
    """Takes what it is given as staged, and completes it on rank 0 by checksums of what all ranks
    have written and the damage in it. Files are read again for them, mostly from the page cache."""

    def __init__(self, folder: Path, complete: Complete) -> None:
        super().__init__(folder, sync_files=True)
        self._folder, self._complete = folder, complete

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        claim(self._folder)  # on rank 0, before any rank writes
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        results = super().write_data(plan, planner).value()
        names = {each.storage_data.relative_path for each in results}
        sums = {name: sum_of(self._folder / name) for name in names}
        mine = WriteResult(_SUMS, 0, (sums, _damage(plan, planner)))
        told: Any = torch.futures.Future()
        told.set_result([*results, mine])
        return told

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, [[r for r in rank if r.index != _SUMS] for rank in results])
        sums, found = {_INDEX: sum_of(self._folder / _INDEX)}, list[str]()
        for result in (each for rank in results for each in rank if each.index == _SUMS):
            sums |= result.storage_data[0]
            found += result.storage_data[1]
        self._complete(sums, described(found))


_INDEX = ".metadata"  # DCP's own name
_SUMS = MetadataIndex("spikeguard.sums")  # stands for no tensor


def _damage(plan: SavePlan, planner: SavePlanner) -> list[str]:
    """Of the tensors that this rank has written; looked at on the host, in the writing thread."""
    assert isinstance(planner, _Saving)
    found: list[str] = []
    with suppress(Exception):  # a look that fails leaves the checkpoint as good as it is
        for item in plan.items:
            if item.index.fqn in planner.trained:
                damage = damage_of(item.index.fqn, planner.lookup_object(item.index))
                found += [] if damage is None else [damage]
    return found


def save(
    folder: Path,
    rank: int,
    staged: Staged,
    group: dist.ProcessGroup | None,
    complete: Complete,
) -> Future[Metadata]:
    """Begin to write; all ranks, with what each has staged. Fails on all if it does on one.

    `complete` is called on rank 0, in the thread that writes.
    """
    warnings.filterwarnings("ignore", message=ALONE)
    future = async_save(
        {},
        storage_writer=_Writer(folder, complete),
        planner=_Saving(staged, rank),
        process_group=group,
    )
    assert isinstance(future, Future)
    return future


def load(folder: Path, rank: int) -> Tree:
    """What `rank` had saved, on the host; raise OSError or ValueError where it cannot be read."""
    tree, parts = joined(load_own(folder, rank))
    _read(folder, parts)
    return tree


def load_own(folder: Path, rank: int) -> Tree:
    """What `rank` had for itself, with marks for what it held together with others."""
    warnings.filterwarnings("ignore", message=ALONE)
    metadata = FileSystemReader(folder).read_metadata()
    name = _own_name(rank)
    blob = bytearray(_stored(metadata, name).size[0])
    _read(folder, {name: Part.whole(torch.frombuffer(blob, dtype=torch.uint8))})
    own: Tree = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=False)
    return own


def _read(folder: Path, parts: Mapping[str, Part]) -> None:
    reader = FileSystemReader(folder)
    try:
        _loader()({}, storage_reader=reader, planner=_Loading(parts), no_dist=True)
    except CheckpointException as failed:  # a BaseException: it would end the job
        raise ValueError(f"{folder.name} cannot be read: {cause_of(failed)}"[:500]) from failed


def cause_of(error: BaseException) -> str:
    """Of torch's exception the first rank's failure, without the stacks that it carries."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    return next((f"rank {rank}: {cause!r}" for rank, (cause, _) in failures.items()), repr(error))


def _loader() -> Callable[..., None]:
    """Reads without meeting other ranks: `load`, but in torch 2.6, where it always meets them."""
    if "no_dist" in signature(dcp_load).parameters:
        return dcp_load
    from torch.distributed.checkpoint.state_dict_loader import load_state_dict  # newer: to go

    return load_state_dict


def _stored(metadata: Metadata, name: str) -> TensorStorageMetadata:
    found = metadata.state_dict_metadata.get(name)
    if not isinstance(found, TensorStorageMetadata):
        raise ValueError(f"it holds no {name}")
    return found


def _write(name: str, part: Part) -> WriteItem:
    properties = TensorProperties(dtype=part.tensor.dtype)
    data = TensorWriteData(_chunk(part), properties, torch.Size(part.size))
    index = MetadataIndex(name, torch.Size(part.offsets))
    return WriteItem(index, WriteItemType.SHARD, tensor_data=data)


def _chunk(part: Part) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(part.offsets), part.tensor.shape)


def _own_name(rank: int) -> str:
    return f"rank-{rank:05d}"


# ---- a checkpoint that another number of ranks saved ------------------------------------------


RESHARDED = (
    "%s: weights, moments and schedule are the same. The loader goes on at the position that it "
    "was at; which data that is with %d ranks is the loader's to say. Ranks that did not save "
    "begin with random numbers of their own"
)
APART = {"random", "data", "learnt"}  # may differ between ranks; the agent's own is rank 0's


def load_resharded(folder: Path, rank: int, now: int, saved: int, box_of: BoxOf) -> Tree:
    """The state of `rank` of `now`, on the host, of what `saved` ranks have saved.

    Raises OSError or ValueError where it cannot be read.
    """
    by = f"{saved} ranks" if saved > 1 else "one process"
    said = f"{folder.name} was saved by {by}, this job has {now}"
    alone = f"it goes on with {saved} ranks alone"
    mine = first = load_own(folder, 0)
    if any((first.get("layouts") or {}).values()):
        odd = "its optimizer keeps state that does not lie as the parameters do"
        raise ValueError(f"{said}, and {odd}: {alone}")
    for other in range(rank, saved, now):
        own = load_own(folder, other) if other else first
        mine = own if other == rank else mine
        for part in first.keys() - APART:
            place = difference(first[part], own.get(part), part)
            if place is not None:
                odd = f"{place} is not the same on ranks 0 and {other}"
                raise ValueError(f"{said}, and {odd}, so it cannot be given to others: {alone}")
    tree = {**first, "random": random_state(), "data": {**first["data"], "firsts": {}}}
    if rank < saved:
        tree |= {"random": mine["random"], "data": mine["data"]}
    whole, parts = joined(tree, box_of)
    _read(folder, parts)
    if not rank:
        log.warning(RESHARDED, said, now)
    return whole


# ---- damage that no training heals ---------------------------------------------------------------


SECOND_MOMENT: Final = "exp_avg_sq"
MOST: Final = 500  # characters of a description
_MOMENTS: Final = "optimizer.state."
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def damage_of(name: str, tensor: Tensor) -> str | None:
    """NaN, infinity, or a second moment below 0, as a sentence's subject and verb; None if whole.

    `tensor` is on the host. One pass where nothing is found.
    """
    if tensor.dtype not in _FLOATS or not tensor.numel():
        return None
    least, most = (float(value) for value in tensor.aminmax())  # NaN if one value is
    if not (math.isfinite(least) and math.isfinite(most)):
        bad = not_finite(name, tensor)
        return f"{bad:,} of {tensor.numel():,} values of {name} are not finite" if bad else None
    if least < 0.0 and name.rpartition(".")[2] == SECOND_MOMENT:
        return f"{name}, a mean of squares, has values below 0"
    return None


def trained(names: Iterable[str]) -> frozenset[str]:
    """Of the tensors of a checkpoint the moments and the weights that have moments.

    What no optimizer changes may never have been finite, as rows that nothing reads.
    """
    moments = {name for name in names if _MOMENTS in name}
    weights = {name.rpartition(".")[0].replace(_MOMENTS, "model.", 1) for name in moments}
    return frozenset(moments | weights)


def not_finite(name: str, tensor: Tensor) -> int:
    """How many values are NaN or infinite; 0 for an attention mask: minus infinity beside zeros."""
    finite = torch.isfinite(tensor)
    bad = tensor.numel() - int(finite.sum())
    if not bad or "mask" in name.lower():
        return 0
    masked = bool((tensor[~finite] == -math.inf).all()) and not bool(tensor[finite].any())
    return 0 if masked else bad


def described(found: Iterable[str]) -> str | None:
    """What was found in the tensors of one checkpoint, in one phrase; None if nothing was."""
    each = sorted(found)
    if not each:
        return None
    more = f" (damaged tensors: {len(each):,})" if len(each) > 1 else ""
    return f"{each[0][: MOST - len(more)]}{more}"
