"""The L2 norm of what named layers put out, and how far its largest element stands out.

Law: only at steps for which `on` is set, only in training, never while a checkpointed layer is
computed anew in the backward pass. Squares add up over a step's micro-batches, on the device. A
name that means no module is refused at `attach()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spikeguard.errors import AttachError
from spikeguard.ranks.model_parts import local


class Activations:
    """What the layers have put out since the last step."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` is told what went wrong in the model's forward pass, which goes on."""
        self.on = False
        self._failed = failed
        self._squares: dict[str, Tensor] = {}
        self._outlier: Tensor | None = None

    def watch(self, layers: Mapping[str, nn.Module]) -> list[RemovableHandle]:
        """Look at `layers` from now on, until the handles are removed."""
        return [
            layer.register_forward_hook(partial(self._saw, name)) for name, layer in layers.items()
        ]

    def _saw(self, name: str, layer: nn.Module, _arguments: Any, output: Any) -> None:
        try:
            self._note(name, layer, output)
        except Exception as error:
            self._failed(error)

    def _note(self, name: str, layer: nn.Module, output: Any) -> None:
        if not (self.on and layer.training) or _in_backward():
            return
        put_out = first_tensor(output)
        if put_out is not None:
            values = local(put_out.detach())
            norm = torch.linalg.vector_norm(values, dtype=torch.float32)
            known = self._squares.get(name)
            self._squares[name] = norm * norm if known is None else known + norm * norm
            self._note_outlier(values, norm)

    def _note_outlier(self, values: Tensor, norm: Tensor) -> None:
        if not values.numel():
            return
        largest = torch.linalg.vector_norm(values, math.inf, dtype=torch.float32)
        over_rms = largest * values.numel() ** 0.5 / norm.clamp_min(1e-30)
        known = self._outlier
        self._outlier = over_rms if known is None else torch.maximum(known.to(over_rms), over_rms)

    @torch.no_grad()
    def take(self) -> dict[str, Tensor]:
        """L2 by layer, () fp32 each; then start anew."""
        squares, self._squares = self._squares, {}
        return {name: square.sqrt() for name, square in squares.items()}

    def take_outlier(self) -> Tensor | None:
        """Largest element over the RMS of its layer's output, () fp32: of the layer where that is
        most; then start anew."""
        outlier, self._outlier = self._outlier, None
        return outlier


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor of floats in what a layer put out."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    items = output.values() if isinstance(output, Mapping) else output
    if not isinstance(output, Mapping | list | tuple):
        return None
    return next((found for item in items if (found := first_tensor(item)) is not None), None)


def _in_backward() -> bool:
    if torch.compiler.is_compiling():  # there, what is computed anew is not traced anew
        return False
    return torch._C._current_graph_task_id() != -1


# ---- which modules the names in the settings mean ----

MOST = 256  # modules of one setting


def layers_named(
    modules: Mapping[str, nn.Module], patterns: tuple[str, ...]
) -> dict[str, nn.Module]:
    """Those of `modules` that are meant, by name; raises `AttachError`.

    Patterns as for files, a part of a name for a part: `blocks.*`, `blocks.?.attention`.
    """
    named = {name: module for name, module in modules.items() if name}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        meant = {name: m for name, m in named.items() if _means(pattern, name)}
        if not meant:
            near = get_close_matches(pattern, named, 3) or list(named)[:3]
            raise AttachError(
                "settings",
                f"activation_layers has {pattern!r}, which names no module of the model",
                f"Give names as model.named_modules() has them, like {', '.join(near)}",
            )
        found |= meant
    if len(found) > MOST:
        problem = f"activation_layers names {len(found)} modules; at most {MOST} are watched"
        raise AttachError("settings", problem, "Name fewer: each costs a norm")
    return found


def _means(pattern: str, name: str) -> bool:
    wanted, parts = pattern.split("."), name.split(".")
    return len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted))
