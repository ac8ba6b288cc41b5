"""modded-nanogpt's NorMuon and DistAdam on a CPU, from a checkout of KellerJordan/modded-nanogpt.

Its training script is one file that wants a GPU as soon as it is imported, so the two classes and
what they call are taken out of it and run as they stand, but for three things: the two Triton
kernels (a matrix with its transpose, and b·A + c·A·A) are torch's products here, `torch.compile` is
left out, and the collectives are those of one rank.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

CHECKOUT = "MODDED_NANOGPT"  # the variable that names the folder
SCRIPT = "train_gpt_medium.py"
TAKEN = frozenset(
    {
        "polar_express_coeffs",
        "polar_express",
        "cautious_wd_and_update_inplace",
        "apply_normuon_variance_reduction",
        "NorMuon",
        "DistAdam",
    }
)


def nor_muon(matrices: list[Tensor], rest: list[Tensor]) -> list[Any]:
    """For the matrices, as its `TrainingManager` makes it; the rest is AdamW's."""
    for parameter in matrices:
        rows, columns = parameter.shape  # a group holds parameters of one shape
        parameter.label = f"{rows} x {columns}"  # type: ignore[attr-defined]
    kind = _taken(Path(os.environ[CHECKOUT]) / SCRIPT)["NorMuon"]
    muon = kind(matrices, lr=0.015, momentum=0.95, beta2=0.95, weight_decay=1.2)
    return [muon, torch.optim.AdamW(rest, lr=1e-3, fused=True)]


def dist_adam(matrices: list[Tensor], rest: list[Tensor]) -> Any:
    """For everything. Its gradients are exchanged by hooks within the backward pass."""
    parameters = [*matrices, *rest]
    for parameter in parameters:
        parameter.label = "scalars"  # type: ignore[attr-defined]
    kind = _taken(Path(os.environ[CHECKOUT]) / SCRIPT)["DistAdam"]
    adam = kind(parameters, ["scalars"], lr=0.008, betas=(0.9, 0.99), weight_decay=0.005)
    adam.should_sync = True
    return adam


def _taken(script: Path) -> dict[str, Any]:
    """The names of `TAKEN`, run in a namespace of their own."""
    tree = ast.parse(script.read_text())
    body = [node for node in tree.body if _name(node) in TAKEN]
    names: dict[str, Any] = {
        "torch": _Eager(),
        "Tensor": Tensor,
        "nn": nn,
        "defaultdict": defaultdict,
        "dist": _one_rank(),
        "XXT": lambda given, out: torch.matmul(given, given.mT, out=out),
        "ba_plus_cAA": _ba_plus_caa,
    }
    exec(compile(ast.Module(body, []), str(script), "exec"), names)
    return names


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")


class _Eager:
    """`torch` without `compile`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def compile(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda given: given


def _ba_plus_caa(given: Tensor, alpha: float, beta: float, out: Tensor) -> None:
    out.copy_(beta * given + alpha * (given @ given))


def _one_rank() -> Any:
    """What a group of one rank answers."""

    def moved(into: Tensor, given: Tensor, **_: Any) -> Any:
        into.copy_(given.view_as(into))
        return _over(into)

    return SimpleNamespace(
        is_initialized=lambda: False,
        get_rank=lambda: 0,
        get_world_size=lambda: 1,
        ReduceOp=SimpleNamespace(AVG=None),
        all_reduce=lambda given, **_: _over(given),
        reduce_scatter_tensor=moved,
        all_gather_into_tensor=moved,
    )


def _over(value: Tensor) -> Any:
    done: Any = torch.futures.Future()
    done.set_result(value)
    return SimpleNamespace(get_future=lambda: done)
