"""What snapshots take at usual sizes, from arithmetic: `python -m benchmarks.rewind --table`.

The tensors of a model and of AdamW in fp32, 12 bytes a parameter, dealt to ranks and laid out by
the agent's own functions (`node_memory.keepers`, `mapped_memory.lay_out`); a test compares that
with memory that was really taken, at a size that fits everywhere. No model is made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from spikeguard import Settings
from spikeguard.loop.snapshot_cadence import INTERVALS
from spikeguard.state.mapped_memory import lay_out
from spikeguard.state.node_memory import Place, keepers
from spikeguard.state.snapshot_budget import rank_limit
from spikeguard.state.snapshots import Snapshots

Shape = tuple[int, ...]
GB = 10**9
NODE_BYTES = 900 * GB  # free of the 1 TB that nodes of 8 GPUs have at least
LINK = 25 * GB  # bytes a second from a GPU to its host, as PCIe 4.0 x16 gives
EACH = 8  # GPUs of a node


@dataclass(frozen=True)
class Case:
    """A model on its usual number of GPUs."""

    name: str
    shapes: tuple[Shape, ...]
    ranks: int
    sharded: bool  # FSDP2 over all ranks; else DistributedDataParallel

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes))


def gpt2(layers: int, width: int, words: int = 50_304, context: int = 1024) -> Iterator[Shape]:
    """As nanoGPT makes it; the head is the embedding's weight."""
    yield from ((words, width), (context, width), (width,), (width,))
    for _ in range(layers):
        for rows, columns in ((3, 1), (1, 1), (4, 1), (1, 4)):
            yield from ((rows * width, columns * width), (rows * width,))
        yield from [(width,)] * 4


def llama3(layers: int, width: int, hidden: int, keys: int = 1024) -> Iterator[Shape]:
    """With its own head."""
    yield from ((128_256, width), (128_256, width), (width,))
    for _ in range(layers):
        yield from ((width, width), (keys, width), (keys, width), (width, width))
        yield from ((hidden, width), (hidden, width), (width, hidden), (width,), (width,))


CASES = (
    Case("GPT-2, 124 M", tuple(gpt2(12, 768)), 8, sharded=False),
    Case("GPT-2, 1.5 B", tuple(gpt2(48, 1600)), 8, sharded=False),
    Case("Llama 3, 8 B", tuple(llama3(32, 4096, 14_336)), 8, sharded=True),
    Case("Llama 3, 70 B", tuple(llama3(80, 8192, 28_672)), 64, sharded=True),
)


def state_sizes(shapes: tuple[Shape, ...]) -> list[tuple[str, int]]:
    """Name and bytes of every tensor of the weights and of AdamW's state."""
    each = [(str(number), 4 * prod(shape)) for number, shape in enumerate(shapes)]
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    sizes = [(f"{kind}.{name}", size) for kind in kinds for name, size in each]
    return [*sizes, *((f"step.{name}", 4) for name, _ in each)]


def rank_bytes(shapes: tuple[Shape, ...], ranks: int, sharded: bool) -> int:
    """What one snapshot takes on the rank that keeps most, as it is laid out.

    Sharded: its rows of each tensor; else whole tensors, one copy for the ranks of a node.
    """
    if sharded:
        own = tuple((-(-shape[0] // ranks), *shape[1:]) for shape in shapes)
        return lay_out([size for _, size in state_sizes(own)]).size
    beside = range(min(ranks, EACH))
    sizes = state_sizes(shapes)
    who = keepers(sizes, beside)
    return max(lay_out([s for name, s in sizes if who[name] == rank]).size for rank in beside)


def snapshots_held(size: int, settings: Settings, ranks: int) -> int:
    """How many of so many bytes the ring holds beside a checkpoint's copy."""
    places = [Place("node", NODE_BYTES, EACH)] * min(ranks, EACH)
    limit = rank_limit(settings, places)
    ring = Snapshots(settings.snapshots, limit, others=1, pinned=0)
    return ring.room_for(size) if size <= limit else 0


def table() -> str:
    """In Markdown."""
    settings = Settings()
    head = (
        "| model, GPUs | state | a rank keeps | a node keeps | snapshots | steps back | "
        "copy of one |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    every = INTERVALS[0]
    for case in CASES:
        size = rank_bytes(case.shapes, case.ranks, case.sharded)
        held = snapshots_held(size, settings, case.ranks)
        whole = 12 * case.parameters
        how = "FSDP2" if case.sharded else "DDP"
        reach = f"{(held - 1) * every} to {held * every}"
        lines.append(
            f"| {case.name}, {case.ranks} ({how}) | {whole / GB:.2f} GB | {size / GB:.2f} GB "
            f"| {size * EACH / GB:.1f} GB | {held} | {reach} | {1e3 * size / LINK:.0f} ms |"
        )
    return "\n".join(lines)
