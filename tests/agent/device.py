"""A CUDA device that computes nothing and tells who waits for it: no GPU is needed.

Tensors are torch's fake ones (shapes, types and devices, no values), so the code for CUDA runs as
it would. What would make the host wait is noted: a value or a size that only the device knows, and
a copy that is not asynchronous or has no pinned memory to go to (CUDA Runtime API, "API
synchronization behavior"). Autograd does not run on such a device; gradients are set by hand.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda", 0)
_aten = torch.ops.aten
_UNKNOWN_VALUES = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
_UNKNOWN_SIZES = {_aten.nonzero.default, _aten.masked_select.default, _aten._unique2.default}
_COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten._copy_from.default}


class Waits(TorchDispatchMode):
    """Notes every operation for which the host would wait, with the line that asked for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        self.stale: list[str] = []  # copies to the host that may be read before they are there
        self.operations = 0
        self._pinned: WeakSet[Any] = WeakSet()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        on_device = [a for a in _flat(args) if a.device.type == "cuda"]
        self.operations += bool(on_device)
        if on_device and func in _UNKNOWN_VALUES | _UNKNOWN_SIZES:
            self._note(func)
        result = func(*args, **kwargs)
        if func in _COPIES:
            self._look_at_copy(func, args, kwargs, result)
        elif kwargs.get("pin_memory"):
            self._pinned.add(result.untyped_storage())
        return result

    def _look_at_copy(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        source, into = (args[1], args[0]) if func is _aten.copy_.default else (args[0], result)
        kinds = {source.device.type, into.device.type}
        if kinds != {"cuda", "cpu"}:
            return
        asked = kwargs.get("non_blocking", len(args) > 2 and args[2])
        if asked and func is _aten._to_copy.default and into.device.type == "cpu":
            self.stale.append(_place(func))  # torch pins what it makes for such a copy
            return
        host = source if source.device.type == "cpu" else into
        if not asked or host.untyped_storage() not in self._pinned:
            self._note(func)

    def _note(self, func: Any) -> None:
        self.found.append(_place(func))


def _place(func: Any) -> str:
    """The operation and the agent's line that asked for it."""
    frames = [f for f in traceback.extract_stack() if "/agent/spikeguard/" in f.filename]
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the loop"
    return f"{func} at {at}"


class _Bindings(TorchFunctionMode):
    """In place of the few bindings of Python that ask for a real device, the same operations."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__getitem__:
            return _at(*args)
        if func is Tensor.__setitem__:
            return _at(args[0], args[1]).copy_(args[2])
        if func is Tensor.__invert__:
            return torch.bitwise_not(*args)
        return func(*args, **(kwargs or {}))


def _at(tensor: Tensor, index: Any) -> Tensor:
    dimension = 0
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice):
            tensor = _aten.slice(tensor, dimension, part.start, part.stop, part.step or 1)
            dimension += 1
        else:
            assert isinstance(part, int), f"the device would have to say what {part} is"
            tensor = tensor.select(dimension, part)
    return tensor


def _flat(args: Sequence[Any]) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)


class Event:
    """A CUDA event that has not passed yet when it is asked; a wait for it is noted."""

    waits: Waits

    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.waits._note("cudaEventSynchronize")


@contextmanager
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Within it `cuda:0` exists and computes nothing."""
    monkeypatch.setattr(  # before the first step the doctor reads values, which are none here
        "spikeguard.doctor.doctor._read", lambda scalars: [1.0] * len(scalars)
    )
    waits = Waits()
    Event.waits = waits
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device=None: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), waits, _Bindings():
        yield waits


def model(place: torch.device | str = CUDA) -> nn.Sequential:
    """A bf16 and a fp32 layer on a device with gradients; no autograd can run there."""
    made = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer, kind in zip(made, (torch.bfloat16, torch.float32), strict=True):
        for name, old in list(layer.named_parameters()):
            new = nn.Parameter(torch.empty(old.shape, dtype=kind, device=place))
            layer._parameters[name] = new
            new.grad = torch.empty(old.shape, dtype=kind, device=place)
    return made
