"""On many ranks, none of which runs: what each would hold adds up to the model, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from spikeguard.measure.norms import own_norm
from spikeguard.ranks.layout import Seen, Topology, seen_by, topology_of
from spikeguard.ranks.model_parts import local
from spikeguard.ranks.ranks import Ranks

from . import layouts
from .layouts import Laid, Whole

CASES = [
    *((layout, 8) for layout in (layouts.fsdp, layouts.hsdp, layouts.fsdp_tp, layouts.ep_fsdp)),
    *((layout, 8) for layout in (layouts.pp_replicated, layouts.pp_fsdp, layouts.pp_fsdp_tp)),
    (layouts.ep, 4),
    (layouts.pp_hsdp, 16),
    (layouts.pp_fsdp_tp, 40),  # more ranks than rows: some hold nothing of a matrix
]
NAMES = [f"{layout.__name__}-{size}" for layout, size in CASES]
WHOLE = {name: p.detach() for name, p in Whole().named_parameters()}


class Rank(NamedTuple):
    """What one of them holds, and which numbers of the whole model these are."""

    laid: Laid
    seen: Seen
    names: list[str]
    numbers: dict[str, str]


@pytest.fixture(scope="module", params=CASES, ids=NAMES)
def fake(request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    """Every rank of a layout, one after another: torch's fake group moves no data."""
    layout, size = request.param
    ranks = []
    try:
        for rank in range(size):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
            ranks.append(played(layout(size)))
            if rank < size - 1:
                dist.destroy_process_group()
        yield ranks
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def played(laid: Laid) -> Rank:
    """What the rank whose turn it is holds."""
    held = list(laid.model.named_parameters())
    seen = seen_by([laid.model], Ranks(**laid.stated))
    numbers = {n: str(layouts.own_part(laid, WHOLE[n], p, n).tolist()) for n, p in held}
    return Rank(laid, seen, [name for name, _ in held], numbers)


def described(ranks: list[Rank]) -> list[Topology]:
    seen, told = [rank.seen for rank in ranks], [rank.names for rank in ranks]
    return [
        topology_of([rank.laid.model], Ranks(**rank.laid.stated), number, seen, told)
        for number, rank in enumerate(ranks)
    ]


def test_every_part_lies_on_as_many_ranks_as_are_counted(fake: list[Rank]) -> None:
    """Numbers, norms, and on how many ranks the very same of them lie."""
    squares, elements, holders = 0.0, 0.0, Counter(n for r in fake for n in r.numbers.items())
    for rank, topology in zip(fake, described(fake), strict=True):
        held = dict(rank.laid.model.named_parameters())
        copies = {name: topology.copies(p) for name, p in held.items()}
        for name, p in held.items():
            assert local(p).numel() == 0 or copies[name] == holders[name, rank.numbers[name]], name
        norm = own_norm(list(held.values()), list(copies.values()))
        assert norm is not None
        squares += float(norm.double()) ** 2
        elements += sum(local(p).numel() / copies[name] for name, p in held.items())
    assert squares**0.5 == pytest.approx(layouts.norm_of(list(WHOLE.values())), rel=1e-6)
    assert elements == pytest.approx(sum(p.numel() for p in WHOLE.values()), rel=1e-12)


def test_ranks_that_hold_the_very_same_know_each_other(fake: list[Rank]) -> None:
    """Where a part is empty, ranks that hold as much may have another place."""
    held = [rank.numbers for rank in fake]
    parts = [local(p) for rank in fake for p in rank.laid.model.parameters()]
    for topology in described(fake):
        assert all(held[rank] == held[first] for rank, first in enumerate(topology.same_as))
        if all(part.numel() for part in parts):
            assert topology.same_as == tuple(held.index(own) for own in held)
