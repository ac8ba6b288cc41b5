"""How far a long reading has come, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar("T")
WIDTH = 30


def with_progress(
    items: Iterable[T], total: int, noun: str, stream: TextIO | None = None, every: int = 1
) -> Iterator[T]:
    """`items`, with a bar on `stream` (standard error) while they are gone through.

    `every` is how many of `noun` one item stands for, `total` how many there are.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield from items
        return
    last = -1
    try:
        for n, item in enumerate(items):
            done = min(n * every, total)
            if (part := done * 100 // max(total, 1)) != last:
                last = part
                out.write(f"\r{_bar(done, total)} {done:,} of {total:,} {noun}")
                out.flush()
            yield item
    finally:
        out.write("\r\x1b[K")
        out.flush()


def _bar(done: int, total: int) -> str:
    full = WIDTH * done // max(total, 1)
    return f"[{'#' * full}{'.' * (WIDTH - full)}]"
