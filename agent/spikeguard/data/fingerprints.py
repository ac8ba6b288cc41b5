"""Whether an item that is read again is the one that was read first.

Each item handed to the loop leaves a number made of its tensors, arrays, text and numbers. On the
host it is a CRC-32. On a device it is a weighted sum of the bits, made there and read through the
read-back ring a step or more later, so nothing waits. `SAMPLE` bytes of each tensor are looked at,
in 64 stretches: another batch differs in nearly all of them, a single changed number may be missed.
Cost, an item: about 4 us for a tensor of up to 16 KiB on the host (2.5 GHz), 10 us for one of
several and 20 us for a sample; on a device six launches a tensor.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikeguard.data.reading import Reading, has_state, keeps_workers
from spikeguard.faults import log
from spikeguard.measure.readback import DEPTH as ROWS, WIDTH, Scalars, arrived, read, send
from spikeguard.state.lineage import Tree
from spikeguard.state.random_numbers import (
    put_back,
    random_state,
    restore_random_state,
    states_of,
)

SAMPLE = 16_384  # bytes of a tensor
STRETCHES = 64
WHOLE = 2**20  # bytes of a tensor that is not contiguous, which may be copied to be looked at
BITS = 2**24 - 1  # what the ring's fp32 holds exactly
_OF_NUMPY = (torch.int64, torch.int32, torch.float32)
LEAVES, DEPTH = 256, 6  # looked at in one item, and containers within containers
KEPT = 32_768  # items, about 4 MB
FIRSTS = 1_000  # passes of which the first item is known

Key = tuple[int, int]  # pass, and items of it that were read before


class Fingerprints:
    """Those of the newest items. One thread shows items, another may settle."""

    def __init__(self) -> None:
        self.differs: Key | None = None  # the first that was not what it had been
        self._known: dict[Key, float] = {}
        self.firsts: dict[int, float] = {}  # of the first items, by pass
        self._made: deque[tuple[Key, Tensor]] = deque()  # on a device
        self._flying: deque[tuple[list[Key | None], Scalars]] = deque()  # None: forgotten

    def see(self, key: Key, item: Any) -> None:
        """The loop gets `item`; compared where one of that `key` was seen before."""
        mark = fingerprint(item)
        if isinstance(mark, Tensor):
            self._made.append((key, mark))
        elif mark is not None:
            self._compare(key, mark)

    def is_other(self, key: Key, item: Any) -> bool:
        """Whether `item` is known not to be the one first seen; waits for the device."""
        self.settle(wait=True)
        known, mark = self.known(key), fingerprint(item)
        return None not in (known, mark) and known != float(mark)  # type: ignore[arg-type]

    def known(self, key: Key) -> float | None:
        """What an item left, as far as it has arrived."""
        return self.firsts.get(key[0]) if key[1] == 0 else self._known.get(key)

    def learn(self, firsts: Mapping[int, float]) -> None:
        """What an earlier attempt knew."""
        self.firsts |= firsts

    def forget(self, number: int, read: int = 0) -> None:
        """What lies behind `read` items of pass `number` counts for nothing: others come there."""
        behind = number, read
        self.firsts = {key: mark for key, mark in self.firsts.items() if (key, 0) < behind}
        self._known = {key: mark for key, mark in self._known.items() if key < behind}
        self._made = deque(each for each in self._made if each[0] < behind)
        for keys, _ in self._flying:
            keys[:] = [None if key is not None and key >= behind else key for key in keys]
        if self.differs is not None and self.differs >= behind:
            self.differs = None

    def settle(self, wait: bool = False) -> None:
        """Send what was made on a device since, and take what has arrived."""
        if not self._made and not self._flying:
            return
        while self._made:
            sent = [self._made.popleft() for _ in range(min(len(self._made), WIDTH))]
            scalars = send({str(n): mark for n, (_, mark) in enumerate(sent)})
            self._flying.append(([key for key, _ in sent], scalars))
        while self._flying and (
            wait or len(self._flying) > ROWS // 2 or arrived(self._flying[0][1])
        ):
            keys, scalars = self._flying.popleft()
            for key, mark in zip(keys, read(scalars).values(), strict=True):
                if key is not None:
                    self._compare(key, mark)

    def _compare(self, key: Key, mark: float) -> None:
        known = self.known(key)
        if known is not None and known != mark and self.differs is None:
            self.differs = key
        self._keep(key, mark)

    def _keep(self, key: Key, mark: float) -> None:
        if key[1] == 0:
            self.firsts[key[0]] = mark
            if len(self.firsts) > FIRSTS:
                del self.firsts[next(iter(self.firsts))]
            return
        self._known[key] = mark
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]


def fingerprint(item: Any) -> float | Tensor | None:
    """Of a batch: a whole number, () fp32 where it lies on a device; None: nothing to go by."""
    plain = type(item) is Tensor and item.is_cpu and item.dtype in _OF_NUMPY
    if plain and item.is_contiguous() and 0 < item.nbytes <= SAMPLE:  # the same number, sooner
        whole = item.detach().numpy()
        return float(zlib.crc32(whole, zlib.crc32(repr(whole.shape).encode())))
    return _of_leaves(item)


@torch.no_grad()
def _of_leaves(item: Any) -> float | Tensor | None:
    crc, seen, total = 0, False, None
    for leaf in _leaves(item, DEPTH):
        for part in _parts(leaf):
            seen = True
            if isinstance(part, Tensor):
                total = _summed(part) if total is None else total * 31 + _summed(part)
            else:
                crc = zlib.crc32(part, crc)
    if total is not None:
        return ((total + crc) & BITS).float()
    return float(crc) if seen else None


def _leaves(item: Any, depth: int) -> Iterator[Any]:
    if isinstance(item, Tensor | str | bytes | int | float) or _is_array(item):
        yield item
    elif depth:
        inside: Any = ()
        if isinstance(item, Mapping):
            inside = item.values()
        elif isinstance(item, list | tuple):
            inside = item
        elif hasattr(item, "__dict__") and not callable(item):
            inside = vars(item).values()
        for number, each in enumerate(inside):
            if number >= LEAVES:
                return
            yield from _leaves(each, depth - 1)


def _parts(leaf: Any) -> Iterator[Any]:
    """What of a leaf is added up: bytes on the host, or a tensor of bytes on a device."""
    if not isinstance(leaf, Tensor):
        yield _of_array(leaf) if _is_array(leaf) else repr(leaf).encode()[:SAMPLE]
        return
    own = leaf.detach()
    own = getattr(own, "to_local", lambda: own)()
    if own.layout is not torch.strided or own.is_meta or own.is_nested or not own.numel():
        return
    yield repr(tuple(own.shape)).encode()
    for part in _sampled(own):
        yield part.numpy() if part.is_cpu else part


def _sampled(tensor: Tensor) -> Iterator[Tensor]:
    """Bytes of `tensor`, at most `SAMPLE`; two of its rows where all of it would be copied."""
    size = tensor.element_size()
    if not tensor.is_contiguous() and tensor.numel() * size > WHOLE:
        for row in (tensor[0], tensor[-1]):
            yield from _sampled(row)
        return
    flat = tensor.reshape(-1)
    width, apart = SAMPLE // size // STRETCHES, flat.numel() // STRETCHES
    if apart > width:
        shape, strides = (STRETCHES, width), (apart, 1)
        flat = flat.as_strided(shape, strides, flat.storage_offset()).reshape(-1)
    yield flat.view(torch.uint8)


def _of_array(array: Any) -> bytes:
    """Of numpy: its bytes, or those of elements from all over it."""
    if array.dtype.hasobject:
        return repr(array.shape).encode()
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat  # never a copy of it all
    sampled: bytes = flat[:: max(1, array.nbytes // SAMPLE)].tobytes()
    return sampled


def _summed(part: Tensor) -> Tensor:
    """() int64: each byte counts by its place, so that rows cannot change places."""
    weights = torch.arange(1, 2 * part.numel(), 2, dtype=torch.int64, device=part.device)
    return (part * weights).sum()


def _is_array(item: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.ndarray)


# ---- a loader opened where it stood, compared with what was seen first ---------------------------


@dataclass(frozen=True, slots=True)
class WayBack:
    """A reading that was opened at a target, and where the loop stood."""

    reading: Reading
    here: Tree | None  # the loop's place, where opening another reading leaves it; None: it stands
    held: list[tuple[Any, dict[str, Any]]]  # attributes of loader, sampler and dataset
    problem: str | None  # why the data are not those that lay there

    def put_back(self) -> Tree | None:
        """The run does not go back; returns what is to be taken up, None if the loop reads on.

        A state may not be all there is (a shuffle buffer), so the iterator that the loop has is
        kept wherever the attributes alone bring the loader back to the state that it had.
        """
        for owner, attributes in self.held:
            vars(owner).clear()
            vars(owner).update(attributes)
        loader = self.reading.loader
        if self.here is None or keeps_workers(loader) or not has_state(loader):
            return self.here
        same = fingerprint(loader.state_dict()) == fingerprint(self.here["loader"])
        return None if same else self.here


def look_back(old: Reading, tree: Tree, random_numbers: Tree, seen: Fingerprints) -> WayBack:
    """Open the loader of `old` at `tree` and compare its first item with what was `seen`.

    All random numbers are put back. A loader with a state, or whose workers persist, has left the
    loop's place then: `here` says how to find it again.
    """
    loader: Any = old.loader
    numbers, states = random_state(), states_of(old.generators)
    parts = (loader, *(getattr(loader, n, None) for n in ("dataset", "sampler", "batch_sampler")))
    held = [(each, dict(vars(each))) for each in parts if hasattr(each, "__dict__")]
    reading, problem = old, None
    here: Tree | None = None
    if has_state(loader) or keeps_workers(loader):
        here = {**old.capture(old.read), "random": None}
    try:
        reading = Reading(loader, tree["pass"], {**tree, "random": random_numbers})
        key = reading.number, reading.read
        if seen.is_other(key, reading.peek()):
            problem = f"item {key[1]} of pass {key[0]} is another one now"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        put_back(old.generators, states)
        restore_random_state(numbers)
    return WayBack(reading, here, held, problem)


def had_before(loader: Any, point: Tree) -> bool:
    """Whether `loader` begins as one that the run had before that of `point`; says so. A loop that
    makes a loader for each shard, and counts the shards itself, begins anew with the first."""
    begins, firsts = point.get("begins", False), dict(point.get("firsts", {}))
    given = point["given"] = point.get("given", 0) + 1
    if point["kind"] != "count" or given >= point["loaders"] + begins:
        return False
    numbers = random_state()
    try:
        mark = fingerprint(Reading(loader, point["pass"], point).peek())
    finally:
        restore_random_state(numbers)
    expected = firsts.pop(point["pass"], None)
    if mark is None or float(mark) == expected or float(mark) not in firsts.values():
        return False
    if given == 1:
        log.warning(
            "guard.batches() is given a loader that was trained before the restart, and has "
            "nothing to give of it. Write `for number in guard.epochs(E)`, which begins behind it"
        )
    return True
