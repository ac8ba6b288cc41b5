"""What `attach()` has put together, for the guard and those who work for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spikeguard.commands.journal import Journal
from spikeguard.commands.mitigations import Mitigations
from spikeguard.commands.orders import Inbox
from spikeguard.commands.recovery import Recovery
from spikeguard.data.feed import DataFeed
from spikeguard.doctor.doctor import Doctor
from spikeguard.faults import Faults
from spikeguard.loop.optimizer_hooks import LoopUsage
from spikeguard.loop.snapshot_cadence import SnapshotCadence
from spikeguard.measure.collector import Collector
from spikeguard.measure.readback import Row
from spikeguard.optim.lr_scale import LrScale
from spikeguard.optim.optimizers import ScaledRates
from spikeguard.ranks.agreement import Agreement
from spikeguard.ranks.rank_group import World
from spikeguard.settings import Settings
from spikeguard.state.lineage import Progress, Target
from spikeguard.uplink.batch_reporter import BatchReporter
from spikeguard.uplink.outbox import Outbox
from spikeguard.uplink.sender import Sender
from spikeguard_protocol import Ability, BatchRange, CommandResult, Order, SegmentPoint
from spikeguard_protocol.findings import Finding


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
    sender: Sender | None  # the same, where there is a server; else what is said is kept
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


# ---- what anybody may look at: `guard.state()` ------------------------------------------------


@dataclass(frozen=True, slots=True)
class GuardState:
    """A copy: it does not change with the guard, and changing it changes nothing."""

    attempt: str
    step: int  # optimizer steps completed
    segment: int  # counts up in each rollback of this attempt
    parent: SegmentPoint | None  # where the segment goes on from; None: from the beginning
    position: int  # of the next batch in the data order
    abilities: tuple[Ability, ...]  # what can be done in this job, as far as is known
    facts: Mapping[str, str]  # what was found of the job, as its server is told
    findings: tuple[Finding, ...]  # of the doctor, so far; rank 0
    orders: tuple[Order, ...]  # that the server asks for at present, answered ones too
    results: Mapping[str, CommandResult]  # by command; those of earlier attempts too
    skipped: tuple[BatchRange, ...]  # of the data order, by orders
    lr_scale: LrScale | None  # that an order has put on the learning rate
    snapshots: tuple[Target, ...] | None  # in memory, oldest first; None: there can be none
    snapshot_bytes: int  # of this rank's memory, that the newest of them takes
    checkpoints: tuple[Target, ...]  # in the order of a resume; none if nobody can list them
    saving: bool  # a checkpoint is being written beside the loop
    protected: frozenset[str]  # snapshots and checkpoints that the server asks to keep
    attentive: bool  # the server asks for the slow signals at every step
    everything_sent: bool  # and acknowledged; rank 0
    newest_fault: str | None  # of the agent's own


def state_of(parts: Parts) -> GuardState:
    """As of now; call it in the loop's thread, between two steps."""
    recovery, inbox, progress = parts.recovery, parts.inbox, parts.progress
    snapshots = recovery.snapshots
    checkpoints: list[Target] = []
    with parts.faults.shield("checkpoint"):  # their folder may be on a mount that is gone
        checkpoints = recovery.candidates()
    return GuardState(
        attempt=progress.attempt,
        step=progress.steps,
        segment=progress.segment,
        parent=progress.parent,
        position=parts.feed.position,
        abilities=parts.abilities,
        facts=dict(parts.facts),
        findings=tuple(parts.doctor.findings),
        orders=tuple(delivery.order for delivery in inbox.deliveries),
        results=dict(parts.journal.results),
        skipped=tuple(parts.journal.skips.ranges),
        lr_scale=parts.rates.scale,
        snapshots=tuple(snapshots.targets) if snapshots is not None else None,
        snapshot_bytes=snapshots.bytes if snapshots is not None else 0,
        checkpoints=tuple(checkpoints),
        saving=recovery.saving,
        protected=inbox.protected,
        attentive=inbox.attentive,
        everything_sent=parts.outbox is None or parts.outbox.empty,
        newest_fault=parts.faults.newest,
    )
