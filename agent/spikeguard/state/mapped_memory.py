"""Host memory that other processes of the node can read, and CUDA can copy into.

One file without a name, in memory, with a region for each buffer: a header, an index of what ranks
hold together, then the tensors. Only what is written to takes memory, and all of it is free once
the last process that has it open is gone, however that ends. Tensors lie in pieces of at most
64 MiB, or of one tensor, which CUDA registers one by one; nothing is rounded up to a power of two.
Invariants: the file never shrinks, so a reader's mapping stays valid. A region names the state that
it holds after all of its copies are queued, and no state while they are.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

PIECE = 2**26
ALIGN = 64  # bytes, of each tensor
REGION = 2**42  # bytes of the file for each buffer; only what is used takes memory
_PAGE = mmap.ALLOCATIONGRANULARITY
_HEADER = struct.Struct("<QQQH")  # bytes in use, where tensors begin, bytes of index and of name
LONGEST_NAME = 512


class Layout(NamedTuple):
    """Where tensors lie, from the first one's place on."""

    offsets: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]  # first byte and end; no tensor lies in two of them
    size: int


def lay_out(sizes: Sequence[int], piece: int = PIECE) -> Layout:
    """One tensor after the other; a new piece where the next one would make it too large."""
    offsets: list[int] = []
    pieces: list[tuple[int, int]] = []
    began = at = 0
    for size in sizes:
        here = _up(at, ALIGN)
        if here > began and here + size - began > piece:
            pieces.append((began, _up(at, _PAGE)))
            began = here = _up(at, _PAGE)
        offsets.append(here)
        at = here + size
    pieces.append((began, _up(at, _PAGE)))
    return Layout(tuple(offsets), tuple(p for p in pieces if p[1] > p[0]), _up(at, _PAGE))


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
    """The file of this process."""

    def __init__(self, regions: int) -> None:
        self.handle = os.memfd_create("spikeguard", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.handle)
        os.ftruncate(self.handle, regions * REGION)

    @property
    def path(self) -> str:
        """By which another process of this user, on this machine, opens it."""
        return f"/proc/{os.getpid()}/fd/{self.handle}"

    def region(self, number: int, kinds: Sequence[Kind], names: Sequence[str]) -> Region:
        """That of a buffer, laid out for tensors like `kinds`; the first of them have `names`."""
        return Region(self.handle, number, kinds, names)


class Region:
    """A part of the file, mapped, and the tensors in it."""

    def __init__(
        self, handle: int, number: int, kinds: Sequence[Kind], names: Sequence[str] = ()
    ) -> None:
        self._layout = lay_out([kind.nbytes for kind in kinds])
        places = zip(names, kinds, self._layout.offsets, strict=False)
        index = {n: [offset, k.shape, str(k.dtype)[6:]] for n, k, offset in places}
        told = json.dumps(index).encode()
        self._begins = _up(_HEADER.size + LONGEST_NAME + len(told), _PAGE)
        self.size = self._begins + self._layout.size
        self._registered: list[weakref.finalize[Any, Any]] = []
        self._memory = mmap.mmap(handle, self.size, offset=number * REGION)
        self._index_size = len(told)
        self.hold("")
        _put(self._memory, _HEADER.size + LONGEST_NAME, told)
        pairs = zip(kinds, self._layout.offsets, strict=True)
        self.tensors = [_tensor(self._memory, self._begins + at, kind) for kind, at in pairs]

    def hold(self, name: str) -> None:
        """Say which state lies here; "": none that may be read."""
        told = name.encode()[:LONGEST_NAME]
        _put(self._memory, _HEADER.size, told)
        head = _HEADER.pack(self.size, self._begins, self._index_size, len(told))
        _put(self._memory, 0, head)

    def register(self, closing: Callable[[], bool] = lambda: False) -> bool:
        """Let CUDA copy into it without a host wait; whether it can. Takes 0.3 s for each GB.

        While CUDA registers, no thread can launch anything: its pages are there already then, and
        a piece is small, so that the loop is held up for 4 ms at a time and not for 0.5 s (H200).
        """
        cudart: Any = torch.cuda.cudart()
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)[self._begins :]
        for first, end in self._layout.pieces:
            if closing():  # nothing will be copied into it
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
        size, begins, index_size, name_size = _HEADER.unpack(head[: _HEADER.size])
        if head[_HEADER.size : _HEADER.size + name_size] != name.encode() or not name_size:
            return None
    memory = mmap.mmap(handle, size, offset=number * REGION)
    first = _HEADER.size + LONGEST_NAME
    index: Mapping[str, Any] = json.loads(memory[first : first + index_size])
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


def _put(memory: mmap.mmap, at: int, content: bytes) -> None:
    memory[at : at + len(content)] = content


def open_mapped(regions: int, told: Callable[[object], None]) -> MappedMemory | None:
    """None where the system has no such files."""
    try:
        return MappedMemory(regions)
    except (OSError, AttributeError) as error:  # not Linux, or a limit of file sizes
        told(error)
        return None
