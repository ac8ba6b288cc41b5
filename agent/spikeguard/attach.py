"""The door: checks what it is given, puts the parts together, changes nothing if it refuses.

Law: a wrong call raises `AttachError` that names the argument and the remedy, on every rank alike.
Collective: in a job of several ranks all of them call it. It reads the journal before anything
trains, so what an earlier attempt skipped or abandoned stays so.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spikeguard.arguments import check_arguments, check_forward
from spikeguard.commands import order_limits
from spikeguard.commands.inbox import DetailBudget, Inbox
from spikeguard.commands.journal import Journal
from spikeguard.commands.order_keys import OrderKeys, read_keys
from spikeguard.commands.recovery import Recovery
from spikeguard.data.batch_names import NameBatch
from spikeguard.data.feed import DataFeed
from spikeguard.data.skip_log import SkipLog
from spikeguard.data.skipped import FOLDER
from spikeguard.errors import AttachError
from spikeguard.faults import Faults, log
from spikeguard.guard import Guard
from spikeguard.job import Job, describe, refused_on_all_ranks
from spikeguard.loop.agreement import Agreement
from spikeguard.loop.capabilities import (
    data_abilities,
    log_table,
    rewind_ability,
    update_abilities,
    within_limits,
)
from spikeguard.loop.context import Parts
from spikeguard.loop.usage import LoopUsage
from spikeguard.loop.vote import PINS
from spikeguard.measure.collector import Collector
from spikeguard.measure.signals.optional import OptionalSignals, watched_layers
from spikeguard.optim.learning_rate import ScaledRates, has_rates
from spikeguard.optim.optimizers import kinds_of, optimizers_in, trained_by
from spikeguard.optim.scalers import agree_on_overflows
from spikeguard.optim.update_skipper import (
    Extremes,
    UpdateSkipper,
    can_drop,
    read_cost_s,
    takes_flag,
)
from spikeguard.restore_trial import check_restored
from spikeguard.settings import Settings, read_connection, whole, with_environment
from spikeguard.state.checkpoints import CheckpointDirectory
from spikeguard.state.host_copies import HostCopies
from spikeguard.state.progress import Progress
from spikeguard.state.replicated_parts import divided
from spikeguard.state.snapshot_budget import open_staging, room_for
from spikeguard.state.snapshots import Snapshots
from spikeguard.state.training_state import TrainingState
from spikeguard.topology.layout import Ranks, Stated
from spikeguard.topology.model_parts import Modules, named_modules, parameters
from spikeguard.topology.rank_group import (
    World,
    all_agree,
    join_world,
    leave_world,
    open_saving,
    share_each,
    share_text,
)
from spikeguard.topology.refusals import raise_first, refusal_of
from spikeguard.topology.shards import local
from spikeguard.uplink.opening import open_uplink
from spikeguard.uplink.orphans import live_attempts
from spikeguard.uplink.tracker import Forward
from spikeguard_protocol import Record, RunId


def attach(
    model: torch.nn.Module | Sequence[torch.nn.Module],
    optimizer: Any,
    *,
    run: str | None = None,
    project: str | None = None,
    scheduler: Any = None,
    state: Sequence[Any] = (),
    checkpoints: CheckpointDirectory | None = None,
    server: str | None = None,
    token: str | None = None,
    directory: str | PathLike[str] | None = None,
    tokens_per_step: int | None = None,
    micro_batches: int = 1,
    settings: Settings | None = None,
    feed: type[DataFeed] = DataFeed,
    forward: Forward | None = None,
    name_batch: NameBatch | None = None,
    replicated: bool | None = None,
    pipeline: Ranks | None = None,
    has_loss: bool | None = None,
    shard_groups: Mapping[str, Ranks] | None = None,
    tied: Sequence[Sequence[str]] | None = None,
) -> Guard:
    """Watch `model` and `optimizer`; returns the guard that the loop calls.

    `model`: one module, or a list of those that make it up. `optimizer`: one that trains all of it,
    or a list, a dict or a container of several, each of which trains its own parameters.
    `run`, `project`, `server`, `token` also come from SPIKEGUARD_RUN, _PROJECT, _SERVER, _TOKEN (or
    _TOKEN_FILE); without a server the guard works offline. `state`: whatever else has a
    `state_dict` and must go back in a rollback (an EMA, a GradScaler). `directory`: journal and
    outbox, shared by all attempts of the run; by default `spikeguard` beside the checkpoints.
    `micro_batches`: items of the loader per optimizer step. `tokens_per_step`: over all ranks.
    `forward`: the user's own tracker, told of every step too (rank 0).
    `feed`: `FrameworkFeed` where a framework owns the iterator (`spikeguard.integrations`).
    `name_batch`: told an item of the loader, returns what lies in it, a str or several; called for
    items that are left out and for no other, so that the record says which documents they were.
    `replicated`: whether every rank has the same weights and, at each optimizer's step, the same
    gradients; by default as DistributedDataParallel around the model says. Without it, and without
    DTensors, several ranks are only reported of: what one of them alone drops would part them.
    `pipeline`: the process group, or mesh of one dimension, of the pipeline's stages. `has_loss`:
    whether this rank computes the loss, as those of the last stage do; elsewhere `guard.loss` notes
    nothing. `shard_groups`: by pattern of parameter names (`*.experts.*`) the group whose ranks
    hold different parts of them, where no mesh of a DTensor says so. `tied`: names by which several
    stages call one parameter of which each holds a copy, as an embedding tied to the last layer; by
    default what has an embedding's values.
    """
    modules = tuple(model) if isinstance(model, list | tuple) else (model,)
    try:
        optimizers = optimizers_in(optimizer)
        check_arguments(
            modules,
            optimizers,
            {
                "run": run,
                "project": project,
                "scheduler": scheduler,
                "state": state,
                "checkpoints": checkpoints,
                "server": server,
                "token": token,
                "directory": directory,
                "tokens_per_step": tokens_per_step,
                "micro_batches": micro_batches,
                "settings": settings,
                "feed": feed,
                "forward": forward,
                "name_batch": name_batch,
                "replicated": replicated,
                "pipeline": pipeline,
                "has_loss": has_loss,
                "shard_groups": shard_groups,
                "tied": tied,
            },
        )
        micro_batches = whole(micro_batches)
        tokens_per_step = whole(tokens_per_step) if tokens_per_step is not None else None
        chosen = with_environment(settings or Settings())
        connection = read_connection(run, project, server, token)
        watched = watched_layers(named_modules(modules), chosen)
        home = _directory(directory, checkpoints, connection.run)
    except AttachError as error:
        raise refused_on_all_ranks(error) from None
    world = join_world(chosen.agreement_timeout_s)
    try:
        stated = Stated(replicated, pipeline, has_loss, shard_groups or {}, tied)
        job = describe(modules, optimizers, stated, world)
        _check_saved(job, checkpoints)
        refused = refusal_of(check_restored, modules, optimizers, scheduler, state)
        raise_first(share_each(world, refused))
        journal, attempt = _open_journal(world, home, connection.run, forward, chosen)
        faults = Faults(world.rank)
        for damage in journal.damage:
            faults.note("journal", damage)
        scalers = agree_on_overflows(state, job.optimizers, job.topology, world, faults)
    except AttachError:
        leave_world(world)
        raise
    if checkpoints is not None and not checkpoints.writes_itself:
        open_saving(world)
    inbox = Inbox(detail=DetailBudget(chosen.full_detail_s_a_day))
    outbox, sender = open_uplink(world, connection, home, attempt, inbox, chosen, faults)

    def report(record: Record) -> None:
        guard._report(record)

    progress = Progress(attempt)
    data = feed(journal.ledger, micro_batches, chosen.replay_limit_s)
    data.left_out = SkipLog(home / FOLDER, world.rank, name_batch, progress, journal.ledger, faults)
    rates = ScaledRates(job.optimizers)
    if world.leads and world.size > 1 and chosen.snapshots_pinned > PINS:
        log.warning(
            "of several ranks %d snapshots are pinned at most, not %d",
            PINS,
            chosen.snapshots_pinned,
        )
    topology = job.topology
    copies = HostCopies(job.optimizers, chosen.copy_beside)
    writes = checkpoints is not None and not checkpoints.writes_itself
    staging, budget = open_staging(world, topology, chosen, copies, faults, writes)
    snapshots = Snapshots(
        chosen.snapshots, chosen.snapshots_pinned, budget.limit, world.size, budget.others
    )
    training = TrainingState(job.parts, job.optimizers, scheduler, state, topology, not job.unsaved)
    recovery = Recovery(
        world,
        training,
        data,
        rates,
        progress,
        snapshots if _keeps_snapshots(job, chosen, feed) else None,
        checkpoints,
        journal,
        report,
        faults,
        copies,
        staging,
    )
    recovery.protected = inbox.protected
    if world.leads:
        with faults.shield("sweep"):
            recovery.sweep(live_attempts(home / "outbox"))
    update_skipper = _update_skipper(chosen, job)
    everywhere = _on_all_ranks(world, job, update_skipper)
    rates.everywhere = not everywhere.rateless
    if not everywhere.armed:
        update_skipper = UpdateSkipper(job.optimizers, False)
    elif world.leads and chosen.drop_z and world.size > 1:
        log.warning(
            "drop_z judges the gradient norm alone: a rank's loss is its own, and what one rank "
            "alone dropped would part the ranks"
        )
    optional = OptionalSignals(chosen, faults)
    optional.watch(watched)
    collector = Collector(
        job.parts,
        job.optimizers,
        update_skipper,
        optional,
        chosen,
        topology,
        faults,
        tokens_per_step,
    )
    training.learnt = collector
    room = None
    with faults.shield("snapshots"):
        if recovery.snapshots is not None:
            state_now = divided(training.capture(), training.shared, training.stored.name_at)
            room = room_for(*state_now, job.optimizers, chosen, budget, world.leads)
    if not all_agree(world, room is not None and room.holds > 0):
        recovery.snapshots = room = None
    rewind = rewind_ability(chosen, room, job.unsaved)
    read_s = 0.0
    with faults.shield("before_step"):
        read_s = read_cost_s(update_skipper.device) if update_skipper.by_sync else 0.0
    parts = Parts(
        world,
        chosen,
        progress,
        data,
        rates,
        collector,
        recovery,
        journal,
        inbox,
        faults,
        Agreement(world, chosen.agreement_lag, topology.parted, topology.known, topology.same_as)
        if world.size > 1
        else None,
        outbox,
        sender,
        tokens_per_step,
        {
            **_facts(job, update_skipper, micro_batches, everywhere.parameters),
            **order_limits.told(chosen),
            **_order_keys(chosen).told(),
        },
        _version(),
        within_limits(
            (
                *update_abilities(
                    job.optimizers,
                    update_skipper,
                    chosen,
                    job.known,
                    read_s,
                    unable=everywhere.unable,
                    rateless=everywhere.rateless,
                ),
                *data_abilities(data, rewind, checkpoints is not None, begun=False),
            ),
            chosen,
        ),
        rewind,
        LoopUsage(micro_batches, world.size, _vocabulary(modules)),
    )
    watched_objects = _registered(job, optimizer)
    guard = Guard(parts, job, watched_objects, forward if world.leads else None, scalers)
    if outbox is not None and sender is not None:
        outbox.start()
        sender.start()
    if world.leads:
        log_table(parts.abilities)
    return guard


def _check_saved(job: Job, checkpoints: CheckpointDirectory | None) -> None:
    """Raise `AttachError` where checkpoints would be written that nobody can restore."""
    if job.unsaved and checkpoints is not None and not checkpoints.writes_itself:
        raise AttachError(
            "checkpoints",
            f"none could be restored, since {job.unsaved}",
            "Give UserCheckpoints(path, save, load) with the job's own functions, or leave it out",
        )


def _keeps_snapshots(job: Job, settings: Settings, feed: type[DataFeed]) -> bool:
    return bool(settings.snapshot_every) and not feed.restarts and not job.unsaved


def _directory(
    directory: str | PathLike[str] | None, checkpoints: CheckpointDirectory | None, run: RunId
) -> Path:
    if directory is not None:
        return Path(directory)
    if checkpoints is not None:
        return checkpoints.path.parent / "spikeguard"
    return Path(".spikeguard") / run.project / run.name


def _open_journal(
    world: World, home: Path, run: RunId, forward: Forward | None, settings: Settings
) -> tuple[Journal, str]:
    """Rank 0 reads; all get the same attempt, skips and abandonments, or the same error."""
    journal = Journal(None, run, settings)
    news: dict[str, Any] = {}
    if world.leads:
        try:
            check_forward(forward)
            journal = Journal(home / "journal.jsonl", run, settings)
            news = {"attempt": secrets.token_hex(8), "journal": journal.shared()}
        except AttachError as error:
            news = {"error": [error.argument, error.problem, error.remedy]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{home} cannot hold the journal: {error}"
            news = {"error": ["directory", problem, "Give a folder that this user can write"]}
    told = json.loads(share_text(world, json.dumps(news)))
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
    extremes = Extremes(settings.drop_z, settings.drop_z_limit, settings.drop_z_warm_up)
    hosted = all(p.device.type == "cpu" for p in trained_by(job.optimizers))
    return UpdateSkipper(
        job.optimizers,
        settings.drop_non_finite and job.known,
        extremes if settings.drop_z else None,
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
    own = [update_skipper.armed, kinds_of(unable), kinds_of(rateless), numbers]
    ranks = [json.loads(text) for text in share_each(world, json.dumps(own))]
    armed, unables, rateless_ones, counts = zip(*ranks, strict=True)
    whole = sum(counts) if job.topology.parted else counts[0]
    return OnAllRanks(all(armed), _first_named(unables), _first_named(rateless_ones), round(whole))


def _first_named(kinds: Sequence[str]) -> str:
    """Of the lowest rank that has any, with the rank where that is not 0."""
    rank = next((rank for rank, named in enumerate(kinds) if named), 0)
    return f"{kinds[rank]} on rank {rank}" if rank else kinds[0]


def _order_keys(settings: Settings) -> OrderKeys:
    """What orders are checked with; said once where that cannot be read."""
    keys = read_keys(settings)
    if keys.problem:
        log.warning("no order will be carried out: %s (%s)", keys.problem, settings.order_keys_file)
    return keys


def _facts(job: Job, update_skipper: UpdateSkipper, micro: int, numbers: int) -> dict[str, str]:
    """What a reader of the record wants to know of the job, as text."""
    group = job.optimizers[0].param_groups[0]
    words = ("lr", "betas", "eps", "weight_decay")
    named: dict[str, str] = {word: str(group[word]) for word in words if word in group}
    held = parameters(job.parts)
    return {
        **named,
        "optimizer": kinds_of(job.optimizers),
        "parameters": str(numbers),
        "dtype": str(held[0].dtype).removeprefix("torch."),
        "device": held[0].device.type,
        "micro_batches": str(micro),
        "update_skipper": "drop" if update_skipper.armed else "report",
        "torch": torch.__version__,
        "host": os.uname().nodename,
    }


def _vocabulary(parts: Modules) -> int:
    """Tokens of the largest embedding; 0 where there is none."""
    tables = (m for part in parts for m in part.modules() if isinstance(m, torch.nn.Embedding))
    return max((table.num_embeddings for table in tables), default=0)


def _version() -> str:
    try:
        return version("spikeguard")
    except PackageNotFoundError:
        return "unknown"
