"""What `attach()` has put together, for the guard and those who work for it.

Law: only references. Whoever works with a part looks it up here when it needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spikeguard.agreement import Agreement
from spikeguard.collector import Collector
from spikeguard.data import DataFeed
from spikeguard.faults import Faults
from spikeguard.journal import Journal
from spikeguard.learning_rate import ScaledRates
from spikeguard.loop_usage import LoopUsage
from spikeguard.mailbox import Mailbox
from spikeguard.offline import Shelf
from spikeguard.outbox import Outbox
from spikeguard.progress import Progress
from spikeguard.recovery import Recovery
from spikeguard.sender import Sender
from spikeguard.settings import Settings
from spikeguard.world import World
from spikeguard_protocol import Ability


@dataclass(slots=True)
class Parts:
    """One attempt's parts."""

    world: World
    settings: Settings
    progress: Progress
    feed: DataFeed
    rates: ScaledRates
    collector: Collector
    recovery: Recovery
    journal: Journal
    mailbox: Mailbox
    faults: Faults
    agreement: Agreement | None
    outbox: Outbox | None  # rank 0
    sender: Sender | Shelf | None  # without a server, what is said is kept
    tokens_per_step: int | None
    facts: dict[str, str]  # optimizer, betas, ... for the record
    version: str
    abilities: tuple[Ability, ...]  # what can be done in this job, as far as is known
    rewind: Ability  # whether there are snapshots in memory, whatever the loop does with its data
    usage: LoopUsage
