"""What `attach()` has put together, for the guard and those who work for it.

Law: only references. Whoever works with a part looks it up here when it needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spikeguard.commands.inbox import Inbox
from spikeguard.commands.journal import Journal
from spikeguard.commands.mitigations import Mitigations
from spikeguard.commands.recovery import Recovery
from spikeguard.data.feed import DataFeed
from spikeguard.doctor.doctor import Doctor
from spikeguard.faults import Faults
from spikeguard.loop.snapshot_cadence import SnapshotCadence
from spikeguard.loop.usage import LoopUsage
from spikeguard.measure.collector import Collector
from spikeguard.measure.readback import Row
from spikeguard.optim.learning_rate import ScaledRates
from spikeguard.ranks.agreement import Agreement
from spikeguard.ranks.rank_group import World
from spikeguard.settings import Settings
from spikeguard.state.lineage import Progress
from spikeguard.uplink.batch_reporter import BatchReporter
from spikeguard.uplink.opening import OfflineSender
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.sender import Sender
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
    inbox: Inbox
    faults: Faults
    agreement: Agreement[Row] | None
    outbox: Outbox | None  # rank 0
    sender: Sender | OfflineSender | None  # without a server, what is said is kept
    tokens_per_step: int | None
    facts: dict[str, str]  # optimizer, betas, ... for the record
    home: Path  # of the journal
    links: dict[str, str]  # where the job's own trackers show the run
    version: str
    always: tuple[Ability, ...]  # rows that attach() made and the loop can only override
    abilities: tuple[Ability, ...]  # what can be done in this job, as far as is known
    rewind: Ability  # whether there are snapshots in memory, whatever the loop does with its data
    usage: LoopUsage
    batches: BatchReporter
    doctor: Doctor
    mitigations: Mitigations
    cadence: SnapshotCadence
