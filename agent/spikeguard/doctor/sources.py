"""Whether the shuffle buffer of the loop's loader can mix its sources, where the loader tells.

Reads attributes alone: of torch's data pipes and `ChainDataset`, and of Hugging Face's
`IterableDataset`, as `DataLoader` wraps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spikeguard_protocol.findings import Finding

DEPTH: Final = 64  # of wrappers
MIXED: Final = 0.5  # of all examples: a buffer of so many mixes them
_WITHIN: Final = ("dataset", "_datapipe", "datapipe", "_ex_iterable", "ex_iterable")
_CHAINS: Final[Mapping[str, str]] = {  # that read one source to its end, and where they hold them
    "ConcaterIterDataPipe": "datapipes",
    "ChainDataset": "datasets",
    "VerticallyConcatenatedMultiSourcesExamplesIterable": "ex_iterables",
}


def sources_in_turn(loader: Any) -> Iterator[Finding]:
    """Sources that come one after another through a buffer too small to mix them."""
    part, buffer = loader, 0
    for _ in range(DEPTH):
        held = getattr(part, "__dict__", {})
        size = held.get("buffer_size")
        buffer = max(buffer, size) if isinstance(size, int) else buffer
        if chained := _CHAINS.get(type(part).__name__):
            yield from _judged(buffer, list(held.get(chained, ())))
            return
        part = next((held[name] for name in _WITHIN if held.get(name) is not None), None)


def _judged(buffer: int, sources: Sequence[Any]) -> Iterator[Finding]:
    if not buffer or len(sources) < 2:
        return
    examples = [_length(each) for each in sources]
    known = [count for count in examples if count is not None]
    total = sum(known) if len(known) == len(sources) else None
    if total is None or buffer < MIXED * total:
        of = "an unknown number of" if total is None else f"{total:,}"
        yield Finding(
            "sources_in_turn",
            f"{len(sources)} sources with {of} examples are read one after another through a "
            f"shuffle buffer of {buffer:,}.",
        )


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except Exception:  # streams have none, and say so in their own ways
        return None
