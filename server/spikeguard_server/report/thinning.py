"""Fewer points that look the same: every extreme and every non-finite value stays.

Law: the indices kept are rising and hold the first and the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept_indices(values: Sequence[float | None], points: int) -> list[int]:
    """Indices of at most about `points` values: each bucket's extremes, and the non-finite ones.

    Of a long stretch of non-finite values its ends and one in each bucket are kept.
    """
    if len(values) <= points:
        return list(range(len(values)))
    size = math.ceil(len(values) / max(1, points // 3))
    kept = {0, len(values) - 1}
    for start in range(0, len(values), size):
        kept |= _of_bucket(values, range(start, min(start + size, len(values))))
    return sorted(kept)


def _of_bucket(values: Sequence[float | None], bucket: range) -> set[int]:
    numbers = [(v, i) for i in bucket if (v := values[i]) is not None]
    finite = [pair for pair in numbers if math.isfinite(pair[0])]
    kept = {min(finite)[1], max(finite)[1]} if finite else set()
    odd = [i for v, i in numbers if not math.isfinite(v)]
    return kept | set(odd[:1])
