"""From the arguments of `attach()` to a guard: checks, looks at the job, puts the parts together.

Law: nothing is changed if it refuses, and it refuses on every rank alike. Collective: in a job of
several ranks all of them come here. The journal is read before anything trains, so what an earlier
attempt skipped or abandoned stays so.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import torch

from spikeguard.arguments import Arguments, check_arguments, refuse_deepspeed
from spikeguard.commands.journal import Journal
from spikeguard.commands.mitigations import Mitigations
from spikeguard.commands.orders import Inbox
from spikeguard.commands.recovery import Recovery
from spikeguard.data.feed import DataFeed
from spikeguard.doctor.doctor import Doctor
from spikeguard.doctor.job import low_precision
from spikeguard.errors import AttachError
from spikeguard.faults import Faults
from spikeguard.guard import Guard
from spikeguard.job_checks import check_checkpoints, check_saved, describe, refused_on_all_ranks
from spikeguard.job_facts import agent_version, facts_of
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
from spikeguard.loop.unrestored_state import restore_abilities
from spikeguard.measure.collector import Collector
from spikeguard.measure.readback import Row
from spikeguard.measure.signals.optional import OptionalSignals
from spikeguard.optim.clipping import rule_of
from spikeguard.optim.learning_rate import ScaledRates, has_rates
from spikeguard.optim.optimizers import kinds_of, optimizers_in, trained_by
from spikeguard.optim.update_skipper import (
    UpdateSkipper,
    can_drop,
    refuse_scalers,
    takes_flag,
)
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
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.state.lineage import Progress
from spikeguard.state.snapshots import Snapshots, StagingBuffers, open_stores
from spikeguard.state.training_state import TrainingState
from spikeguard.uplink.batch_reporter import BatchReporter, Describing
from spikeguard.uplink.opening import open_uplink
from spikeguard_protocol import Ability, RunId

_P = ParamSpec("_P")


class Checked(NamedTuple):
    """What the arguments come to on this rank alone."""

    modules: tuple[torch.nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    settings: Settings
    connection: Connection
    home: Path  # of journal and outbox
    micro_batches: int
    tokens_per_step: int | None


class Attempt(NamedTuple):
    """One run of the process: the job, what earlier attempts left, and the group of the ranks."""

    world: World
    job: Job
    id: str
    journal: Journal
    faults: Faults


def assemble(given: Arguments) -> Guard:
    """The guard of one attempt; raises `AttachError`."""
    try:
        checked = _checked(given)
    except AttachError as error:
        raise refused_on_all_ranks(error) from None
    world = join_world(checked.settings.agreement_timeout_s)
    try:
        attempt = _begun(given, checked, world)
    except AttachError:
        leave_world(world)
        raise
    return _guard(given, checked, attempt)


def _checked(given: Arguments) -> Checked:
    refuse_deepspeed(given)
    optimizers = optimizers_in(given.optimizer)
    check_arguments(given, optimizers)
    settings = with_environment(given.settings or Settings())
    connection = read_connection(given.run, given.project, given.server, given.token)
    tokens = given.tokens_per_step
    return Checked(
        given.modules,
        optimizers,
        settings,
        connection,
        _directory(given.directory, given.checkpoints, connection.run),
        whole(given.micro_batches),
        whole(tokens) if tokens is not None else None,
    )


def _begun(given: Arguments, checked: Checked, world: World) -> Attempt:
    """The job is described and the journal read, or all ranks refuse."""
    job = describe(checked.modules, checked.optimizers, given.ranks or Ranks(), world)
    check_checkpoints(job, given.checkpoints)
    raise_first(all_gather(world, refusal_of(check_saved, given.scheduler, given.state)))
    raise_first(all_gather(world, refusal_of(refuse_scalers, given.state, job.topology)))
    run = checked.connection.run
    journal, attempt = _open_journal(world, checked.home, run)
    faults = Faults(world.rank)
    for damage in journal.damage:
        faults.note("journal", damage)
    return Attempt(world, job, attempt, journal, faults)


def _guard(given: Arguments, checked: Checked, attempt: Attempt) -> Guard:
    """All parts of the attempt, made in the order in which they need each other."""
    world, job, _, journal, faults = attempt
    settings, home = checked.settings, checked.home

    inbox = Inbox()
    progress = Progress(attempt.id)
    rates = ScaledRates(job.optimizers)
    feed = given.checkpoints.feed if given.checkpoints is not None else None
    data: DataFeed = (feed or DataFeed)(journal.skips, checked.micro_batches)
    data.faults, data.other_allowed = faults, settings.rollback_on_other_data
    training = TrainingState(job, given.scheduler, given.state)
    snapshots, staging = _open_stores(given, settings, attempt, data)
    outbox, sender = open_uplink(
        world, checked.connection, home, attempt.id, inbox, settings, faults
    )
    recovery = Recovery(
        world,
        training,
        snapshots,
        given.checkpoints,
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
    decode = given.decode if settings.batch_text else None
    optional = OptionalSignals(settings.flight_recorder)
    tokens, rule = checked.tokens_per_step, rule_of(given.clip)
    collector = Collector(
        job,
        update_skipper,
        optional,
        settings,
        faults,
        tokens,
        rule,
        given.state,
        counts_unchanged=low_precision(job),
    )
    training.learnt = collector
    put = outbox.put if outbox is not None else None
    describing = Describing(given.name_batch, decode, faults)
    ring = optional.batches
    batches = BatchReporter(ring, home, world.rank, attempt.id, describing, put, faults)
    data.items = batches.items
    ring.name_by(batches.items)
    cadence = SnapshotCadence(settings, update_skipper.device)
    rewind = rewind_ability(settings, snapshots, job.unsaved, every=cadence.words())
    always = (
        *update_abilities(
            job.optimizers,
            update_skipper,
            settings,
            job.known,
            unable=everywhere.unable,
            rateless=everywhere.rateless,
        ),
        *_restore_abilities(given, job, faults),
    )
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
        agreement=_agreement(world, job, settings),
        outbox=outbox,
        sender=sender,
        tokens_per_step=tokens,
        facts=facts_of(job, update_skipper, settings, checked.micro_batches, everywhere.parameters),
        home=home,
        links=dict(given.links or {}),
        version=agent_version(),
        always=always,
        abilities=within_limits(
            (
                *always,
                *data_abilities(data, rewind, given.checkpoints is not None, begun=False),
            ),
            settings,
        ),
        rewind=rewind,
        usage=LoopUsage(checked.micro_batches),
        batches=batches,
        doctor=Doctor(job, given.state, settings, checked.tokens_per_step, world, faults),
        mitigations=Mitigations(world, progress, journal, faults, given.mitigations),
        cadence=cadence,
    )
    watched = _registered(job, given.optimizer)
    guard = Guard(parts, job, watched, given.forward if world.leads else None)
    if outbox is not None:
        outbox.start()
    if sender is not None:
        sender.start()
    if world.leads:
        log_table(parts.abilities)
    parts.doctor.tell()
    return guard


def _open_stores(
    given: Arguments, settings: Settings, attempt: Attempt, data: DataFeed
) -> tuple[Snapshots | None, StagingBuffers]:
    """Where states will lie. Collective."""
    world, job = attempt.world, attempt.job
    writes = given.checkpoints is not None and not given.checkpoints.writes_itself
    if writes:
        open_saving(world)
    on_cuda = torch.cuda.is_available() and any(p.is_cuda for p in trained_by(job.optimizers))
    ring, staging = open_stores(
        world, job.topology, settings, attempt.faults, on_cuda=on_cuda, checkpoints=writes
    )
    keeps = settings.snapshot_every != 0 and not data.restarts and not job.unsaved
    return ring if keeps else None, staging


def _agreed_skipper(settings: Settings, job: Job, world: World) -> tuple[UpdateSkipper, OnAllRanks]:
    """It leaves updates out where every rank can. Collective."""
    update_skipper = _update_skipper(settings, job)
    everywhere = _on_all_ranks(world, job, update_skipper)
    if not everywhere.armed:
        return UpdateSkipper(job.optimizers, False), everywhere
    return update_skipper, everywhere


def _restore_abilities(given: Arguments, job: Job, faults: Faults) -> tuple[Ability, ...]:
    optimizers = () if job.unsaved else job.optimizers
    with faults.shield("begin"):
        return restore_abilities(job.parts, optimizers, given.state)
    return ()


def _agreement(world: World, job: Job, settings: Settings) -> Agreement[Row] | None:
    """How ranks act at one step; a job of one has nobody to agree with."""
    if world.size == 1:
        return None
    return Agreement(world, job.topology, settings.replica_checksum_every > 0)


def _directory(
    directory: str | PathLike[str] | None, checkpoints: CheckpointDirectory | None, run: RunId
) -> Path:
    if directory is not None:
        return Path(directory)
    if checkpoints is not None:
        return checkpoints.path / "spikeguard"
    return Path(".spikeguard") / run.project / run.name


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


def _registered(job: Job, given: Any) -> tuple[Any, ...]:
    """By what `guard_of` finds the guard: all that is watched, and the container it came in."""
    holder = () if isinstance(given, list | tuple | dict) else (given,)
    return tuple({id(each): each for each in (*job.parts, *job.optimizers, *holder)}.values())


def _update_skipper(settings: Settings, job: Job) -> UpdateSkipper:
    """On a CPU there is no queue to wait for, so a decision is read there without being asked."""
    hosted = all(p.device.type == "cpu" for p in trained_by(job.optimizers))
    return UpdateSkipper(
        job.optimizers,
        settings.drop_non_finite and job.known,
        settings.skip_by_sync or (hosted and not takes_flag(job.optimizers)),
    )


class OnAllRanks(NamedTuple):
    """What the ranks come to together; optimizers as a sentence names them."""

    armed: bool  # every one can leave an update out
    unable: str  # optimizers that cannot
    rateless: str  # that have no rate to scale
    parameters: int  # of the whole model


def _on_all_ranks(world: World, job: Job, update_skipper: UpdateSkipper) -> OnAllRanks:
    """Stages may have optimizers of their own. Collective."""
    held, copies = parameters(job.parts), job.topology.copies
    unable = [each for each in job.optimizers if not (update_skipper.armed or can_drop(each))]
    rateless = [each for each in job.optimizers if not has_rates(each)]
    numbers = sum(local(p).numel() / copies(p) for p in held)
    own = update_skipper.armed, kinds_of(unable), kinds_of(rateless), numbers
    ranks = all_gather(world, own)
    armed, unables, rateless_ones, counts = zip(*ranks, strict=True)
    whole = sum(counts) if job.topology.parted else counts[0]
    return OnAllRanks(all(armed), _first_named(unables), _first_named(rateless_ones), round(whole))


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
            refused = AttachError(name, "there is no such argument", remedy)
            raise refused_on_all_ranks(refused)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"attach() {error}") from None
        return assemble(arguments(*args, **kwargs))

    attach.__doc__ = arguments.__doc__
    attach.__dict__["__signature__"] = signature.replace(return_annotation=Guard)
    return attach


attach = _called_with(Arguments)
