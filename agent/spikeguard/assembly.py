"""From the arguments of `attach()` to a guard: checks, looks at the job, puts the parts together.

Collective. The journal is read before anything trains, so what an earlier attempt skipped or
abandoned stays so.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import torch

from spikeguard.arguments import Arguments, check_arguments, refuse_deepspeed
from spikeguard.commands.journal import Journal
from spikeguard.commands.mitigations import Mitigations
from spikeguard.commands.orders import Inbox
from spikeguard.commands.recovery import Recovery
from spikeguard.data.feed import DataFeed
from spikeguard.doctor.doctor import Doctor, low_precision
from spikeguard.errors import AttachError
from spikeguard.faults import Faults
from spikeguard.guard import Guard
from spikeguard.job_checks import (
    check_checkpoints,
    check_saved,
    describe,
    facts_of,
    restore_abilities,
)
from spikeguard.loop.capabilities import (
    data_abilities,
    log_table,
    rewind_ability,
    update_abilities,
    within_limits,
)
from spikeguard.loop.context import Parts
from spikeguard.loop.optimizer_hooks import LoopUsage
from spikeguard.loop.snapshot_cadence import SnapshotCadence
from spikeguard.measure.collector import Collector
from spikeguard.optim.clipping import rule_of
from spikeguard.optim.optimizers import ScaledRates, has_rates, kinds_of, optimizers_in, trained_by
from spikeguard.optim.update_skipper import UpdateSkipper, can_drop, refuse_scalers, takes_flag
from spikeguard.ranks.agreement import Agreement
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import local, parameters
from spikeguard.ranks.rank_group import (
    World,
    all_gather,
    broadcast,
    join_world,
    leave_world,
    open_saving,
    raise_first,
    refusal_of,
)
from spikeguard.ranks.ranks import Ranks
from spikeguard.settings import Connection, Settings, read_connection, whole, with_environment
from spikeguard.state.lineage import Progress
from spikeguard.state.snapshots import open_stores
from spikeguard.state.training_state import TrainingState
from spikeguard.uplink.batch_reporter import BatchReporter
from spikeguard.uplink.sender import open_uplink
from spikeguard_protocol import RunId

_P = ParamSpec("_P")


class Checked(NamedTuple):
    """What the arguments come to on this rank alone."""

    optimizers: tuple[torch.optim.Optimizer, ...]
    settings: Settings
    connection: Connection
    home: Path  # of journal and outbox
    micro_batches: int
    tokens_per_step: int | None


def assemble(given: Arguments) -> Guard:
    """The guard of one attempt; raises `AttachError`, on all ranks what the lowest refuses."""
    checked, refused = None, None
    try:
        checked = _checked(given)
    except AttachError as error:
        refused = error.argument, error.problem, error.remedy
    world = join_world(checked.settings.agreement_timeout_s if checked is not None else 0.0)
    try:
        raise_first(all_gather(world, refused))
        assert checked is not None
        job = describe(given.modules, checked.optimizers, given.ranks or Ranks(), world)
        check_checkpoints(job, given.checkpoints)
        raise_first(all_gather(world, refusal_of(check_saved, given.scheduler, given.state)))
        raise_first(all_gather(world, refusal_of(refuse_scalers, given.state, job.topology)))
        journal, attempt = _open_journal(world, checked.home, checked.connection.run)
    except AttachError:
        leave_world(world)
        raise
    return _guard(given, checked, world, job, journal, attempt)


def _checked(given: Arguments) -> Checked:
    refuse_deepspeed(given)
    optimizers = optimizers_in(given.optimizer)
    check_arguments(given, optimizers)
    settings = with_environment(given.settings or Settings())
    connection = read_connection(given.run, given.project, given.server, given.token)
    home, tokens = given.directory, given.tokens_per_step
    if home is None and given.checkpoints is not None:
        home = given.checkpoints.path / "spikeguard"
    elif home is None:
        home = Path(".spikeguard") / connection.run.project / connection.run.name
    return Checked(
        optimizers,
        settings,
        connection,
        Path(home),
        whole(given.micro_batches),
        whole(tokens) if tokens is not None else None,
    )


def _guard(
    given: Arguments, checked: Checked, world: World, job: Job, journal: Journal, attempt: str
) -> Guard:
    """All parts of the attempt, made in the order in which they need each other."""
    settings, home, micro = checked.settings, checked.home, checked.micro_batches
    faults, topology, checkpoints = Faults(world.rank), job.topology, given.checkpoints
    for damage in journal.damage:
        faults.note("journal", damage)

    inbox = Inbox()
    progress = Progress(attempt)
    rates = ScaledRates(job.optimizers)
    feed = checkpoints.feed if checkpoints is not None else None
    data: DataFeed = (feed or DataFeed)(journal.skips, micro)
    data.faults, data.other_allowed = faults, settings.rollback_on_other_data
    training = TrainingState(job, given.scheduler, given.state)
    writes = checkpoints is not None and not checkpoints.writes_itself
    if writes:
        open_saving(world)
    on_cuda = torch.cuda.is_available() and any(p.is_cuda for p in trained_by(job.optimizers))
    ring, staging = open_stores(
        world, topology, settings, faults, on_cuda=on_cuda, checkpoints=writes
    )
    keeps = settings.snapshot_every != 0 and not data.restarts and not job.unsaved
    snapshots = ring if keeps else None
    outbox, sender = None, None
    if world.leads:
        outbox, sender = open_uplink(checked.connection, home, attempt, inbox, settings, faults)
    recovery = Recovery(
        world,
        training,
        snapshots,
        checkpoints,
        staging,
        data,
        rates,
        progress,
        journal,
        inbox,
        faults,
    )
    if world.leads and given.checkpoints is not None:
        with faults.shield("sweep"):
            given.checkpoints.sweep()
    update_skipper, everywhere = _agreed_skipper(settings, job, world)
    rates.everywhere = not everywhere.rateless
    collector = Collector(
        job,
        update_skipper,
        settings,
        faults,
        checked.tokens_per_step,
        rule_of(given.clip),
        given.state,
        counts_unchanged=low_precision(job),
    )
    training.learnt, ring_of_batches = collector, collector.optional.batches
    batches = BatchReporter(
        ring_of_batches,
        home,
        world.rank,
        attempt,
        outbox.put if outbox is not None else None,
        faults,
        given.name_batch,
        given.decode if settings.batch_text else None,
    )
    data.items = batches.items
    ring_of_batches.name_by(batches.items)
    cadence = SnapshotCadence(settings, update_skipper.device)
    rewind = rewind_ability(settings, snapshots, job.unsaved, every=cadence.words())
    always = update_abilities(
        job.optimizers,
        update_skipper,
        settings,
        job.topology.known,
        unable=everywhere.unable,
        rateless=everywhere.rateless,
    )
    with faults.shield("begin"):
        saved = () if job.unsaved else job.optimizers
        always += restore_abilities(job.parts, saved, given.scheduler, given.state)
    of_data = data_abilities(data, rewind, checkpoints is not None, begun=False)
    parts = Parts(
        world=world,
        settings=settings,
        progress=progress,
        feed=data,
        rates=rates,
        collector=collector,
        recovery=recovery,
        journal=journal,
        inbox=inbox,
        faults=faults,
        agreement=None
        if world.size == 1
        else Agreement(world, topology, settings.replica_checksum_every > 0),
        outbox=outbox,
        sender=sender,
        tokens_per_step=checked.tokens_per_step,
        facts=facts_of(job, update_skipper.armed, settings, micro, everywhere.parameters),
        home=home,
        links=dict(given.links or {}),
        version=_version(),
        always=always,
        abilities=within_limits((*always, *of_data), settings),
        rewind=rewind,
        usage=LoopUsage(micro),
        batches=batches,
        doctor=Doctor(job, given.state, settings, checked.tokens_per_step, world, faults),
        mitigations=Mitigations(world, progress, journal, faults, given.mitigations),
        cadence=cadence,
    )
    holder = () if isinstance(given.optimizer, list | tuple | dict) else (given.optimizer,)
    watched = {id(each): each for each in (*job.parts, *job.optimizers, *holder)}
    guard = Guard(parts, job, tuple(watched.values()), given.forward if world.leads else None)
    if outbox is not None:
        outbox.start()
    if sender is not None:
        sender.start()
    if world.leads:
        log_table(parts.abilities)
    parts.doctor.tell()
    return guard


def _open_journal(world: World, home: Path, run: RunId) -> tuple[Journal, str]:
    """Rank 0 reads; all get the same attempt, skips and abandonments, or the same error."""
    journal = Journal(None, run)
    news: dict[str, Any] = {}
    if world.leads:
        try:
            journal = Journal(home / "journal.jsonl", run)
            news = {"attempt": secrets.token_hex(8), "journal": journal.shared()}
        except AttachError as error:
            named = str(home) in error.problem
            problem = error.problem if named else f"{home}: {error.problem}"
            news = {"error": [error.argument, problem, error.remedy]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{home} cannot hold the journal: {error}"
            news = {"error": ["directory", problem, "Give a folder that this user can write"]}
    told = broadcast(world, news)
    if "error" in told:
        raise AttachError(*told["error"])
    if not world.leads:
        journal.adopt(told["journal"])
    return journal, told["attempt"]


class OnAllRanks(NamedTuple):
    """What the ranks come to together; optimizers as a sentence names them."""

    unable: str  # optimizers that cannot leave an update out
    rateless: str  # that have no rate to scale
    parameters: int  # of the whole model


def _agreed_skipper(settings: Settings, job: Job, world: World) -> tuple[UpdateSkipper, OnAllRanks]:
    """It leaves updates out where every rank can; stages may have optimizers of their own.

    On a CPU there is no queue to wait for, so a decision is read there without being asked.
    Collective.
    """
    hosted = all(p.device.type == "cpu" for p in trained_by(job.optimizers))
    update_skipper = UpdateSkipper(
        job.optimizers,
        settings.drop_non_finite and job.topology.known,
        settings.skip_by_sync or (hosted and not takes_flag(job.optimizers)),
    )
    armed = update_skipper.armed
    unable = [each for each in job.optimizers if not (armed or can_drop(each))]
    rateless = [each for each in job.optimizers if not has_rates(each)]
    copies = job.topology.copies
    numbers = sum(local(p).numel() / copies(p) for p in parameters(job.parts))
    ranks = all_gather(world, (armed, kinds_of(unable), kinds_of(rateless), numbers))
    all_armed, unables, rateless_ones, counts = zip(*ranks, strict=True)
    total = sum(counts) if job.topology.parted else counts[0]
    if not all(all_armed):
        update_skipper = UpdateSkipper(job.optimizers, False)
    found = OnAllRanks(_first_named(unables), _first_named(rateless_ones), round(total))
    return update_skipper, found


def _version() -> str:
    try:
        return version("spikeguard")
    except PackageNotFoundError:
        return "unknown"


def _first_named(kinds: Sequence[str]) -> str:
    """Of the lowest rank that has any, with the rank where that is not 0."""
    rank = next((rank for rank, named in enumerate(kinds) if named), 0)
    return f"{kinds[rank]} on rank {rank}" if rank else kinds[0]


def _called_with(arguments: Callable[_P, Arguments]) -> Callable[_P, Guard]:
    """A function with the parameters and the docstring of `arguments`."""
    signature = inspect.signature(arguments)

    def attach(*args: _P.args, **kwargs: _P.kwargs) -> Guard:
        for name in kwargs.keys() - signature.parameters.keys():
            near = get_close_matches(name, signature.parameters, 1)
            other = f"It takes {', '.join(signature.parameters)}"
            remedy = f"Did you mean {near[0]}=...?" if near else other
            raise AttachError(name, "there is no such argument", remedy)
        return assemble(arguments(*args, **kwargs))

    attach.__doc__ = arguments.__doc__
    attach.__dict__["__signature__"] = signature.replace(return_annotation=Guard)
    return attach


attach = _called_with(Arguments)
