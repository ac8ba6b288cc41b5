"""Real text as bytes, and the order in which a run reads it.

The batch at position p, one optimizer step's over all ranks and micro-batches, is a pure function
of (corpus, seed, p).
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]
HELD_OUT = 20  # one file in so many (or the last such part of a single file) is for validation
_TRAINING, _VALIDATION = 0, 1  # streams of random numbers that never meet
_NOT_SOURCES = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib"}


class DataError(Exception):
    """The text cannot be trained on; says which and what to do."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text to train on and text that is never trained on."""

    training: Bytes
    validation: Bytes


def standard_library() -> list[Path]:
    """The Python sources of this machine's standard library, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [root / path for path in sorted(_sources(root))]


def _sources(root: Path) -> Iterator[Path]:
    """Python files below `root`, relative to it; folders of no interest are not entered."""
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name not in _NOT_SOURCES]
        place = Path(folder).relative_to(root)
        yield from (place / name for name in names if name.endswith(".py"))


def read_corpus(path: Path | None = None) -> Corpus:
    """Read a file, every file of a folder, or by default the standard library's sources."""
    if path is not None and not path.exists():
        raise DataError(f"--data {path}: there is no such file or folder")
    if path is not None and path.is_file():
        return _split_one(path)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path else standard_library()
    kept_out = files[HELD_OUT - 1 :: HELD_OUT]
    training = [p for number, p in enumerate(files, start=1) if number % HELD_OUT]
    if not kept_out:
        raise DataError(
            f"--data {path}: a folder needs at least {HELD_OUT} files to hold some out; "
            f"it has {len(files)}. Name a single file instead"
        )
    return Corpus(_read(training), _read(kept_out))


def _read(files: list[Path]) -> Bytes:
    return np.frombuffer(b"\n".join(file.read_bytes() for file in files), dtype=np.uint8)


def _split_one(file: Path) -> Corpus:
    text = np.frombuffer(file.read_bytes(), dtype=np.uint8)
    cut = len(text) - len(text) // HELD_OUT
    return Corpus(text[:cut], text[cut:])


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: this rank's rows of part `micro` of the batch at `position`."""

    tokens: Tensor  # (rows, context) int64
    targets: Tensor  # (rows, context) int64, the bytes one further on
    position: int
    completes_step: bool  # the last micro-batch of its position
    names: tuple[str, ...] = ()  # where each row begins in the text

    def to(self, device: torch.device) -> Self:
        """The same on `device`; the copy from pinned memory does not wait."""
        if device.type == "cpu":
            return self
        tokens, targets = (
            t.pin_memory().to(device, non_blocking=True) for t in (self.tokens, self.targets)
        )
        return type(self)(tokens, targets, self.position, self.completes_step, self.names)


Corrupt = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def leave_alone(position: int, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The corruption that a healthy run applies to its batches: none."""
    del position
    return tokens, targets


def starts_at(
    text: Bytes, position: int, *, rows: int, context: int, seed: int, stream: int = _TRAINING
) -> NDArray[np.int64]:
    """Where in `text` each row of the batch at `position` begins."""
    order = np.random.Philox(key=[seed, stream], counter=[0, 0, 0, position])
    # Raw output: numpy keeps that stable for ever, unlike what its Generator draws from it.
    return (order.random_raw(rows) % np.uint64(len(text) - context)).astype(np.int64)


def text_of(ids: Sequence[int]) -> str:
    """Tokens as the text that they are bytes of."""
    return bytes(ids).decode("utf-8", "replace")


def rows_at(
    text: Bytes, position: int, *, rows: int, context: int, seed: int, stream: int = _TRAINING
) -> tuple[Tensor, Tensor]:
    """All rows of the batch at `position`: tokens and targets, each (rows, context) int64."""
    starts = starts_at(text, position, rows=rows, context=context, seed=seed, stream=stream)
    window = text[starts[:, None] + np.arange(context + 1)]
    both = torch.from_numpy(window.astype(np.int64))
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


class BatchLoader:
    """Yields this rank's micro-batches from `position` on, for ever; random access by position."""

    def __init__(
        self,
        text: Bytes,
        *,
        rows: int,
        context: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        micro_batches: int = 1,
        device: torch.device | str = "cpu",
        corrupt: Corrupt = leave_alone,
    ) -> None:
        parts = world_size * micro_batches
        if rows % parts:
            raise DataError(
                f"--batch {rows}: does not divide into {world_size} ranks x {micro_batches} "
                f"micro-batches; take a multiple of {parts}"
            )
        if len(text) <= context + 1:
            raise DataError(f"--data: {len(text)} bytes are too few for a context of {context}")
        self.position = 0  # the next one to read
        self._micro = 0
        self._text, self._rows, self._context, self._seed = text, rows, context, seed
        self._rank, self._world_size, self._micro_batches = rank, world_size, micro_batches
        self._device, self._corrupt = torch.device(device), corrupt

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.micro_batch(self.position, self._micro)
        self._micro = (self._micro + 1) % self._micro_batches
        self.position += batch.completes_step
        return batch

    def micro_batch(self, position: int, micro: int) -> Batch:
        """This rank's rows of one part of the batch at `position`, on the device."""
        size = self._rows // (self._world_size * self._micro_batches)
        first = (micro * self._world_size + self._rank) * size
        tokens, targets = self._corrupt(
            position,
            *rows_at(self._text, position, rows=self._rows, context=self._context, seed=self._seed),
        )
        mine = slice(first, first + size)
        completes = micro + 1 == self._micro_batches
        names = tuple(f"byte {start}" for start in self._starts(position)[mine])
        return Batch(tokens[mine], targets[mine], position, completes, names).to(self._device)

    def _starts(self, position: int) -> NDArray[np.int64]:
        return starts_at(
            self._text, position, rows=self._rows, context=self._context, seed=self._seed
        )

    def skip_to(self, position: int) -> None:
        """Leave out everything before `position` without reading it."""
        self.position, self._micro = position, 0

    def state_dict(self) -> dict[str, int]:
        """Where the data order stands: the next position to read from its beginning."""
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.skip_to(int(state["position"]))


def validation_batches(
    text: Bytes, *, count: int, rows: int, context: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` fixed batches of held-out text, the same for every seed and world size."""
    if len(text) <= context + 1:
        raise DataError(
            f"--data: {len(text)} held-out bytes are too few for a context of {context}; "
            f"give at least {HELD_OUT * (context + 2)} bytes"
        )
    for number in range(count):
        yield rows_at(text, number, rows=rows, context=context, seed=0, stream=_VALIDATION)
