"""`spikeguard doctor CHECKPOINT`: what files show, tensor by tensor; needs no server."""

from __future__ import annotations

import io
import pickle
from argparse import Namespace
from collections.abc import Iterator, Mapping
from enum import Enum, EnumMeta
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from spikeguard.ranks.rank_group import few
from spikeguard.state.dcp_files import SECOND_MOMENT, not_finite
from spikeguard_cli.command import CommandFailed, say
from spikeguard_cli.options import print_json
from spikeguard_protocol.findings import Finding, Level, by_weight

PICKLED: Final = (".pt", ".pth", ".bin", ".ckpt")
_INDEX: Final = ".metadata"  # of DCP
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
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise CommandFailed(f"{path}: to read it, pip install safetensors") from None
    try:
        with safe_open(path, "pt") as tensors:
            yield from ((name, tensors.get_tensor(name)) for name in tensors.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(error) from None


class _Index(pickle.Unpickler):
    """Makes what DCP's index is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # by which Python 3.11.2 names a member
            return _member
        of_torch = name in _OF_TORCH or isinstance(getattr(torch, name, None), torch.dtype)
        known = module in _OF_DCP or (module == "torch" and of_torch) or (module, name) in _PLAIN
        if not known:
            raise pickle.UnpicklingError(f"{_INDEX} names {module}.{name}, which is no part of one")
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> Enum:
    if not isinstance(kind, EnumMeta) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"{_INDEX} names {name!r:.80} of {kind!r:.80}")
    found: Enum = kind.__members__[name]
    return found


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


# ---- what is found in them --------------------------------------------------------------------


def doctor(options: Namespace) -> int:
    """Print what was found; 1 where something of it is a warning."""
    bad: list[str] = []
    negative: list[str] = []
    count = 0
    for name, tensor in tensors_of(Path(options.checkpoint)):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        count += 1
        values = tensor.float() if tensor.element_size() < 4 else tensor
        if not bool(torch.isfinite(values).all()):
            if number := not_finite(name, values):
                bad.append(f"{name} ({number:,} of {values.numel():,})")
        elif _last(name) == SECOND_MOMENT and float(values.min()) < 0.0:
            negative.append(name)
    told = (("non_finite_values", bad), ("negative_second_moment", negative))
    found = by_weight(Finding(name, f"{few(names)}.") for name, names in told if names)
    if options.json:
        print_json(
            [
                {"name": each.name, "evidence": each.evidence, "level": each.rule.level.value}
                | {"remedy": each.rule.remedy, "consequence": each.rule.consequence}
                | {"source": each.rule.source}
                for each in found
            ]
        )
    else:
        for each in found:
            say(f"{each.rule.level} {each.name}: {each.rule.title}. {each.sentences}")
        if not found:
            say(f"{options.checkpoint}, {count} tensors: nothing found")
    return int(any(each.rule.level is Level.WARNING for each in found))


def _last(name: str) -> str:
    """Of `state.0.exp_avg[512, 0]` `exp_avg`."""
    return name.rpartition(".")[2].partition("[")[0]
