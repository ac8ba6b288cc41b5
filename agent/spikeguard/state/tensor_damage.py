"""Values in a saved tensor that no further training heals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

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
