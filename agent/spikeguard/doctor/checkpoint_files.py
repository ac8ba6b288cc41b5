"""The tensors of a checkpoint, one at a time: `.pt`, safetensors, torch's DCP.

Nothing is executed: pickles are read by torch's `weights_only`, DCP's index by classes that are
named here. In memory is one tensor, of DCP one part of one. Raises `CommandFailed`.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from spikeguard_cli.command import CommandFailed

PICKLED: Final = (".pt", ".pth", ".bin", ".ckpt")
_INDEX: Final = ".metadata"  # of DCP
_HEADER: Final = 100 * 2**20  # bytes of a safetensors header, as that library limits it
_DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_OF_DCP: Final = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
)
_OF_TORCH: Final = ("Size", "device")
_PLAIN: Final = {
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),  # of Python 3.13
}


def tensors_of(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor; of a part of one the name has where it begins: `weight[512, 0]`."""
    if not path.exists():
        raise CommandFailed(f"{path} is not there")
    try:
        if path.is_dir():
            yield from _of_folder(path)
        elif path.suffix == ".safetensors":
            yield from _of_safetensors(path)
        else:
            yield from _of_pickle(path)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise CommandFailed(f"{path} cannot be read: {str(error)[:300]}") from None


def _of_folder(path: Path) -> Iterator[tuple[str, Tensor]]:
    if (path / _INDEX).is_file():
        yield from _of_dcp(path)
        return
    files = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", *PICKLED))
    if not files:
        raise CommandFailed(
            f"{path} holds no {_INDEX}, no .safetensors and no {', '.join(PICKLED)}"
        )
    for file in files:
        for name, tensor in tensors_of(file):
            yield (f"{file.stem}/{name}" if file.suffix in PICKLED else name), tensor


def _of_pickle(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Mapped where torch can, so that only what is looked at comes into memory."""
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # of before torch 1.6
        tree = torch.load(path, map_location="cpu", weights_only=True)
    yield from _leaves("", tree)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in items:
            yield from _leaves(f"{name}.{key}" if name else str(key), each)


def _of_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """8 bytes of the header's length, the header as JSON, the tensors' bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _HEADER:
            raise ValueError(f"its header would be of {length} bytes")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name == "__metadata__" or entry["dtype"] not in _DTYPES:
                continue
            first, last = entry["data_offsets"]
            file.seek(8 + length + first)
            content = bytearray(file.read(last - first))
            dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
            flat = (
                torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            )
            yield name, flat.reshape(shape)


class _Index(pickle.Unpickler):
    """Makes what DCP's index is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        of_torch = name in _OF_TORCH or isinstance(getattr(torch, name, None), torch.dtype)
        known = module in _OF_DCP or (module == "torch" and of_torch) or (module, name) in _PLAIN
        if not known:
            raise pickle.UnpicklingError(f"{_INDEX} names {module}.{name}, which is no part of one")
        return super().find_class(module, name)


def _of_dcp(path: Path) -> Iterator[tuple[str, Tensor]]:
    with (path / _INDEX).open("rb") as file:
        index = _Index(file).load()
    for key, place in index.storage_data.items():
        if key.offset is None:  # no tensor
            continue
        if getattr(place, "transform_descriptors", None):
            raise ValueError("its parts are compressed")
        if Path(place.relative_path).name != place.relative_path:
            raise ValueError(f"a part lies outside of it: {place.relative_path!r:.80}")
        with (path / place.relative_path).open("rb") as file:
            file.seek(place.offset)
            part = torch.load(
                io.BytesIO(file.read(place.length)), map_location="cpu", weights_only=True
            )
        if isinstance(part, Tensor):
            yield key.fqn + (f"{list(key.offset)}" if any(key.offset) else ""), part
