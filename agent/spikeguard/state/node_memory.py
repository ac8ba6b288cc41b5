"""Host memory for states that CUDA can copy into, and that the ranks of a node keep one copy in.

One file without a name, in memory, with a region for each buffer: a header, an index of what ranks
hold together, then the tensors. Only what is written to takes memory, and all of it is free once
the last process that has it open is gone, however that ends. Tensors lie in pieces of at most
64 MiB, or of one tensor, which CUDA registers one by one; nothing is rounded up to a power of two.
The file never shrinks, so a reader's mapping stays valid. A region names the state that it holds
after all of its copies are queued, and no state while they are.

Under DistributedDataParallel every rank has the same weights and moments, so each rank of a node
keeps some of the tensors, and reads its neighbours' when it goes back: no rank waits for another.
Who shares is found at `attach()` by reading each other's memory, not by names of hosts. A part is
read only after all ranks have voted that theirs is complete, and no rank writes to its own before
all have voted that they are back.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import secrets
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spikeguard.ranks.rank_group import World, all_gather
from spikeguard.state.replicated_parts import Part

PIECE = 2**26
ALIGN = 64  # bytes, of each tensor
REGION = 2**42  # bytes of the file for each buffer; only what is used takes memory
LONGEST_NAME = 512
FILE = "/memfd:spikeguard"  # what a link to such a file says
_PAGE = mmap.ALLOCATIONGRANULARITY
_HEADER = struct.Struct("<QQQQ")  # bytes in use, where tensors begin, bytes of name and of index


def lay_out(sizes: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Where each tensor begins, one after the other, and the first byte and end of each piece.

    No tensor lies in two pieces.
    """
    offsets: list[int] = []
    pieces: list[tuple[int, int]] = []
    began = at = 0
    for size in sizes:
        here = _up(at, ALIGN)
        if here > began and here + size - began > PIECE:
            pieces.append((began, _up(at, _PAGE)))
            began = here = _up(at, _PAGE)
        offsets.append(here)
        at = here + size
    return offsets, [*pieces, (began, _up(at, _PAGE))]


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


class Kind(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @classmethod
    def of(cls, tensor: Tensor) -> Kind:
        """That of a plain tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)


class MappedMemory:
    """The file of this process; raises OSError, or AttributeError where it is not Linux."""

    def __init__(self, regions: int) -> None:
        self.handle = os.memfd_create("spikeguard", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)
        os.ftruncate(self.handle, regions * REGION)

    @property
    def path(self) -> str:
        """By which another process of this user, on this machine, opens it."""
        return f"/proc/{os.getpid()}/fd/{self.handle}"


class Region:
    """Part `number` of the file, mapped, and the tensors in it."""

    def __init__(
        self, handle: int, number: int, names: Sequence[str] = (), kinds: Sequence[Kind] = ()
    ) -> None:
        offsets, self._pieces = lay_out([kind.nbytes for kind in kinds])
        places = zip(names, kinds, offsets, strict=True)
        index = {n: [offset, k.shape, str(k.dtype)[6:]] for n, k, offset in places}
        self._index = json.dumps(index).encode()
        self._begins = _up(_HEADER.size + LONGEST_NAME + len(self._index), _PAGE)
        self._registered: list[weakref.finalize[Any, Any]] = []
        size = self._begins + self._pieces[-1][1]
        self._memory = mmap.mmap(handle, size, offset=number * REGION)
        self.hold("")
        pairs = zip(kinds, offsets, strict=True)
        self.tensors = [_tensor(self._memory, self._begins + at, kind) for kind, at in pairs]

    def hold(self, name: str) -> None:
        """Say which state lies here; "": none that may be read."""
        state = name.encode()[:LONGEST_NAME]
        sizes = len(self._memory), self._begins, len(state), len(self._index)
        head = _HEADER.pack(*sizes) + state + self._index
        self._memory[: len(head)] = head

    def register(self, closing: Callable[[], bool] = lambda: False) -> bool:
        """Let CUDA copy into it without a host wait; whether it can. Takes 0.3 s for each GB.

        While CUDA registers, no thread can launch anything: its pages are there already then, and
        a piece is small, so that the loop is held up for 4 ms at a time and not for 0.5 s (H200).
        """
        cudart: Any = torch.cuda.cudart()
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)[self._begins :]
        for first, end in self._pieces:
            if closing() or first == end:  # nothing will be copied into it
                break
            piece = whole[first:end].zero_()
            if int(cudart.cudaHostRegister(piece.data_ptr(), end - first, 0)) != 0:
                return False
            self._registered.append(weakref.finalize(self, _unregister, piece.data_ptr()))
        return True

    def free(self) -> None:
        """Give its memory back; what was there is gone."""
        self.tensors = []
        for unregister in self._registered:
            unregister()
        with suppress(OSError, ValueError):
            self._memory.madvise(mmap.MADV_REMOVE)


def _unregister(pointer: int) -> None:
    with suppress(Exception):  # CUDA may have ended
        torch.cuda.cudart().cudaHostUnregister(pointer)


def read_region(handle: int, number: int, name: str) -> dict[str, Tensor] | None:
    """What another process keeps there of the state `name`; None where it keeps another."""
    with mmap.mmap(handle, _PAGE, offset=number * REGION) as head:
        size, begins, named, indexed = _HEADER.unpack_from(head)
        index_at = _HEADER.size + named
        if head[_HEADER.size : index_at] != name.encode() or not named:
            return None
    memory = mmap.mmap(handle, size, offset=number * REGION)
    index: Mapping[str, Any] = json.loads(memory[index_at : index_at + indexed])
    return {
        each: _tensor(memory, begins + at, Kind(tuple(shape), getattr(torch, dtype)))
        for each, (at, shape, dtype) in index.items()
    }


def _tensor(memory: mmap.mmap, at: int, kind: Kind) -> Tensor:
    """One with a storage of its own size, so that a copy of it copies nothing else."""
    count = torch.Size(kind.shape).numel()
    if not count:
        return torch.empty(kind.shape, dtype=kind.dtype)
    flat = torch.frombuffer(memory, dtype=kind.dtype, count=count, offset=at)
    return flat.view(kind.shape)


# ---- the ranks of a node -------------------------------------------------------------------------


class Place(NamedTuple):
    """What a rank tells the others of where it runs."""

    owner: str  # of the host memory
    available: int  # bytes of it
    local_ranks: int  # as the launcher says
    path: str = ""  # of its mapped memory; "": it has none
    probe: str = ""  # what lies there


def tell_places(world: World, memory: HostMemory, mapped: MappedMemory | None) -> list[Place]:
    """Where every rank runs, in their order. Collective."""
    probe, path = secrets.token_hex(8), ""
    if mapped is not None:
        path = mapped.path
        Region(mapped.handle, 0).hold(probe)
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    local = max(1, int(said)) if re.fullmatch("[0-9]{1,9}", said) else 1
    return all_gather(world, Place(memory.owner, memory.available, local, path, probe))


class NodeMemory:
    """That of the neighbours."""

    def __init__(self, rank: int, others: Mapping[int, int], regions: int) -> None:
        """`others`: handles of the neighbours' files, by rank."""
        self._rank, self._others, self._regions = rank, dict(others), regions
        for handle in others.values():
            weakref.finalize(self, os.close, handle)

    def kept(self, parts: Mapping[str, Part]) -> dict[str, Part]:
        """Those of `parts` that this rank keeps: about as many bytes as its neighbours.

        The largest first, each for the rank that has least so far.
        """
        sizes = {name: Kind.of(part.tensor).nbytes for name, part in parts.items()}
        loads = dict.fromkeys(sorted((self._rank, *self._others)), 0)
        own: set[str] = set()
        for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
            rank = min(loads, key=lambda each: (loads[each], each))
            loads[rank] += sizes[name]
            if rank == self._rank:
                own.add(name)
        return {name: part for name, part in parts.items() if name in own}

    def found(self, name: str) -> dict[str, Tensor]:
        """What the neighbours keep of the state `name`."""
        tensors: dict[str, Tensor] = {}
        for handle in self._others.values():
            for number in range(self._regions):
                tensors |= read_region(handle, number, name) or {}
        return tensors


def join_node(
    world: World,
    places: Sequence[Place],
    mapped: MappedMemory | None,
    same_as: Sequence[int],
    regions: int,
) -> NodeMemory | None:
    """Find the ranks that hold the same and read each other's memory. Collective.

    None where this rank has no such neighbour.
    """
    handles = _readable(world.rank, places, same_as) if mapped is not None else {}
    group = neighbours(all_gather(world, set(handles)), world.rank)
    for rank in handles.keys() - group:
        os.close(handles.pop(rank))
    return NodeMemory(world.rank, handles, regions) if handles else None


def neighbours(read: Sequence[set[int]], rank: int) -> set[int]:
    """The other ranks with which `rank` shares; `read`: of each rank whose memory it reads.

    None where they do not all see the very same ranks, as where containers part some of them.
    """

    def group(one: int) -> set[int]:
        return {one, *(other for other in read[one] if one in read[other])}

    own = group(rank)
    return own - {rank} if all(group(other) == own for other in own) else set()


def _readable(rank: int, places: Sequence[Place], same_as: Sequence[int]) -> dict[int, int]:
    """Handles of the memory of other ranks that hold the same, where it can be read."""
    handles = {}
    for other, place in enumerate(places):
        if other == rank or not place.path or same_as[other] != same_as[rank]:
            continue
        with suppress(OSError, ValueError):
            if not os.readlink(place.path).startswith(FILE):
                continue  # in a namespace of its own this number is another process's
            handle = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
            if read_region(handle, 0, place.probe) is not None:
                handles[other] = handle
            else:
                os.close(handle)
    return handles


UNLIMITED = 1 << 60  # version 1 says a number near 2**63 where there is no limit
# Files of a limit and of what is used, and what of that are caches of files, by version of cgroups.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class HostMemory(NamedTuple):
    """Bytes, and whose they are: processes with the same `owner` share them."""

    limit: int
    available: int  # that nobody uses, or that can be reclaimed from file caches
    owner: str


def host_memory(root: Path = Path("/")) -> HostMemory:
    """What this process and those beside it may use: the least of its cgroups and of the machine.

    A container's limit is that of its cgroup or of one above it, of version 2 or 1; the machine's
    own figures count where no cgroup says less. Only files are read; what cannot be read limits
    nothing. `root`: where proc and sys are mounted.
    """
    told, boot = _numbers(root / "proc/meminfo"), _text(root / "proc/sys/kernel/random/boot_id")
    total = 1024 * told.get("MemTotal:", UNLIMITED >> 10)
    machine = HostMemory(total, 1024 * told.get("MemAvailable:", total >> 10), boot)
    groups = list(_groups(root))
    limited = [each for each in groups if each.limit < machine.limit]
    owner = min(reversed(limited), key=lambda each: each.limit).owner if limited else ""
    return HostMemory(
        min(each.limit for each in (machine, *groups)),
        max(0, min(each.available for each in (machine, *groups))),
        f"{machine.owner}:{owner}" if owner else machine.owner,
    )


def _groups(root: Path) -> Iterator[HostMemory]:
    """Those that this process is in and that have a limit, from the innermost one out."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top, names = root / "sys/fs/cgroup", VERSION_2
        if controllers:
            top, names = top / "memory", VERSION_1
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = top / path.strip("/")
        if ".." in path or not folder.is_dir():  # outside of what this container shows
            folder = top
        for each in (folder, *folder.parents):
            if each.is_relative_to(top) and (found := _limited(each, *names)) is not None:
                yield found


def _limited(folder: Path, limit_in: str, used_in: str, caches_in: str) -> HostMemory | None:
    """What the cgroup of `folder` allows; None where it sets no limit."""
    with suppress(OSError, ValueError):
        limit = int(_text(folder / limit_in))  # "max" is no number
        if limit < UNLIMITED:
            caches = _numbers(folder / "memory.stat").get(caches_in, 0)
            used = int(_text(folder / used_in)) - caches
            return HostMemory(limit, limit - used, str(folder.stat().st_ino))
    return None


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
