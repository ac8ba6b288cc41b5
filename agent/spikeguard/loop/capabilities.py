"""The table with which `attach()` ends: what can be done in this job, if not why, and at what cost.

It goes into the log, and with the attempt's introduction to the server. What the loop shows later
changes rows. A row has a remedy where somebody has to do something about it, and only then is it a
warning: what was asked for, or is a framework's way, is none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

import torch

from spikeguard.commands.orders import verb_refusal
from spikeguard.data.feed import MIXED, DataFeed
from spikeguard.data.reading import READ_ONCE, READ_ONCE_REMEDY
from spikeguard.faults import LINES, log
from spikeguard.loop.optimizer_hooks import UNSEEN, LoopUsage
from spikeguard.loop.snapshot_cadence import MEASURED
from spikeguard.optim.update_skipper import UpdateSkipper, can_skip_by_sync, takes_flag
from spikeguard.settings import GIB, Settings
from spikeguard.state.snapshots import SHARE, Snapshots
from spikeguard_protocol import BY_RESTART, Ability, Answer, Verb

SKIP_UPDATE, CLIP, SCALE_LR = "skip_update", "clip", "scale_lr"
SKIP_BATCHES, ROLLBACK, REWIND = "skip_batches", "rollback", "rewind_from_memory"
COUNT_STEPS = "count_steps"  # only where it is a no
RESTORE_ALL = "restore_all"  # only where it is a no, or is not known
ONE_LOADER = (
    "Join the loaders to one before guard.batches(), and let go of the iterator of the last"
)
WIDTH = 100  # characters of a line in the log
NOT_ENTERED = "the loop has not entered guard.batches() yet"
NOT_FROM_BATCHES = "the loop does not take its items from guard.batches()"
TAKE_FROM_BATCHES = (
    "Iterate over guard.batches(loader). Until then a person has to restart the job from an older "
    "checkpoint instead of a rollback"
)
SAVE_YOURSELF = (
    "Give attach(checkpoints=UserCheckpoints(path, save, load)): the job's own functions save and "
    "load model and optimizer"
)
APART = (
    "the model is neither in a DistributedDataParallel that averages gradients over all ranks nor "
    "made of DTensors: what a rank measures may be its own"
)
ROOM_REMEDY = "Raise snapshot_bytes if the host has the memory, or set snapshot_every=0"
SAY_REPLICATED = (
    "If all ranks have the same weights and, when the optimizer steps, the same gradients, say "
    "ranks=Ranks(replicated=True)"
)


def yes(name: str, cost: str = "", reason: str = "") -> Ability:
    """It can be done."""
    return Ability(name, Answer.YES, reason, "", cost)


def no(name: str, reason: str, remedy: str = "") -> Ability:
    """It cannot; without a remedy nobody has to do anything about it."""
    return Ability(name, Answer.NO, reason, remedy)


def unknown(name: str, reason: str) -> Ability:
    """The loop will tell."""
    return Ability(name, Answer.UNKNOWN, reason)


def update_abilities(
    optimizers: Sequence[torch.optim.Optimizer],
    update_skipper: UpdateSkipper,
    settings: Settings,
    known: bool,
    *,
    unable: str,
    rateless: str,
) -> tuple[Ability, ...]:
    """What touches an update; `known`: whether the ranks measure the same or hold parts of it.

    `unable`, `rateless`: optimizers of any rank that cannot leave an update out, or have no rate to
    scale.
    """
    reads = "the host reads one number in each step"
    if update_skipper.device.type != "cpu":
        reads += ", and waits for what was queued before"
    if not settings.drop_non_finite:
        skip = no(SKIP_UPDATE, "Settings.drop_non_finite is False")
    elif not known:
        skip = no(SKIP_UPDATE, APART, SAY_REPLICATED)
    elif update_skipper.armed:
        skip = yes(SKIP_UPDATE, "" if takes_flag(optimizers) else reads)
    else:
        asked = "; or set skip_by_sync=True, for which the host waits for the device in each step"
        skip = no(
            SKIP_UPDATE,
            f"{unable} {'take' if ' + ' in unable else 'takes'} no found_inf: an update that is "
            "not finite is reported and not dropped",
            "Adam, AdamW and SGD (not sharded, without momentum) do with fused=True"
            + (asked if all(map(can_skip_by_sync, optimizers)) else ""),
        )
    scale = yes(SCALE_LR)
    if rateless:
        reason = f"a parameter group of {rateless} has no learning rate under 'lr'"
        scale = no(SCALE_LR, reason, "Give every group its learning rate there")
    return skip, yes(CLIP) if known else yes(CLIP, "each rank by its own norm", APART), scale


def rewind_ability(
    settings: Settings, snapshots: Snapshots | None, unsaved: str = "", *, every: str
) -> Ability:
    """Whether the ring of snapshots holds any; `snapshots`: None where none fits.

    `unsaved`: why the optimizer's state cannot be put back. `every`: how often one is taken.
    """
    if unsaved:
        return no(REWIND, unsaved, SAVE_YOURSELF)
    if settings.snapshot_every == 0:
        return no(REWIND, "Settings.snapshot_every is 0")
    limit = f"{SHARE:.0%} of the host's free memory (Settings.snapshot_bytes is 0)"
    if settings.snapshot_bytes:
        limit = f"Settings.snapshot_bytes ({settings.snapshot_bytes / GIB:.3g} GiB)"
    if snapshots is None:
        return no(REWIND, f"a rank's snapshot is larger than {limit}", ROOM_REMEDY)
    if not snapshots.known:
        return yes(REWIND, "", f"up to {settings.snapshots} snapshots, {every}")
    holds = min(settings.snapshots, snapshots.room)
    cost = f"{holds * snapshots.bytes / GIB:.2g} GiB of host memory on this rank"
    if holds > 1 or settings.snapshots == 1:
        return yes(REWIND, cost, f"{holds} snapshots, {every}")
    reason = f"1 snapshot, {every}: {limit} allows no more"
    return Ability(REWIND, Answer.YES, reason, ROOM_REMEDY, cost)


def no_replicas() -> Ability:
    """There are no snapshots, since one copy was kept for ranks that are not alike."""
    reason = "snapshots are kept once for all ranks of a node, and these ranks are no replicas"
    return no(REWIND, reason, "Say ranks=Ranks(replicated=False)")


def data_abilities(
    feed: DataFeed, rewind: Ability, checkpoints: bool, begun: bool
) -> tuple[Ability, ...]:
    """What needs the data to go back or to jump. `begun`: whether the loop has made a step.

    `rewind`: whether there are snapshots in memory. `checkpoints`: whether there are any on disk.
    """
    names = (SKIP_BATCHES, ROLLBACK, REWIND)
    if feed.restarts:
        owned = "a framework owns the loop's iterator and may have read ahead"
        back = yes(ROLLBACK, BY_RESTART) if checkpoints else _nowhere()
        skip = no(SKIP_BATCHES, f"{owned}: a rollback leaves batches out")
        return skip, back, no(REWIND, owned)
    if not feed.in_use and not begun:
        return tuple(unknown(name, NOT_ENTERED) for name in names)
    if not feed.in_use:
        return tuple(no(name, NOT_FROM_BATCHES, TAKE_FROM_BATCHES) for name in names)
    if feed.mixed:
        return tuple(no(name, MIXED, ONE_LOADER) for name in names)
    skip = yes(SKIP_BATCHES) if feed.items_per_step is None else no(SKIP_BATCHES, *_counting(feed))
    if feed.read_once:
        return (skip, *(no(name, READ_ONCE, READ_ONCE_REMEDY) for name in (ROLLBACK, REWIND)))
    return (skip, _with_habits(_rollback(rewind, checkpoints), feed), rewind)


def _counting(feed: DataFeed) -> tuple[str, str]:
    """Reason and remedy where the loop does not take as many items for a step as it said."""
    said, takes = feed.micro_batches, feed.items_per_step or 0.0
    reason = (
        f"the loop takes {takes:.3g} items of guard.batches() for each guard.step(), and "
        f"attach(micro_batches={said}) says {said}"
    )
    if takes >= 1 and takes == int(takes):
        return reason, f"Say attach(micro_batches={takes:g})"
    return reason, f"Call guard.step() once for each optimizer step, made of {said} items"


def _with_habits(rollback: Ability, feed: DataFeed) -> Ability:
    """What the loop does that a rollback suffers from."""
    if rollback.answer is not Answer.YES:
        return rollback
    if feed.items_per_step is not None:
        reason, remedy = _counting(feed)
        cost = f"{rollback.cost}; what it leaves out are other items than those that are named"
        return Ability(ROLLBACK, Answer.YES, reason, remedy, cost)
    if feed.ahead:
        held = f"{feed.ahead} item{'s' * (feed.ahead > 1)}"
        return Ability(
            ROLLBACK,
            Answer.YES,
            f"the loop fetches up to {held} ahead of guard.step()",
            cost=f"{rollback.cost}; carried out once the loop has trained what it holds",
        )
    return rollback


def usage_abilities(usage: LoopUsage, optimizer: str) -> Iterator[Ability]:
    """What the loop and the optimizer's hooks have shown; nothing where all is well."""
    if usage.unseen:
        reason = UNSEEN.format(name=optimizer)
        remedy = (
            "Give attach() the optimizer whose step() the loop calls, and capture no CUDA graph"
        )
        yield from (no(name, reason, f"{remedy} of it") for name in (SKIP_UPDATE, SCALE_LR))
    elif usage.steps_each is not None:
        reason = f"guard.step() is called {usage.steps_each:.3g} times for each optimizer step"
        remedy = "Call it once after each optimizer.step(), and say attach(micro_batches=...)"
        yield no(COUNT_STEPS, reason, remedy)
    if usage.rates is not None:
        step, before, now = usage.rates
        yield no(
            COUNT_STEPS,
            f"the loop sets a learning rate of {now:.6g} for step {step}, and had set {before:.6g} "
            "before the run was taken back: its own counter ran on",
            "Make schedule, stop condition and log of guard.steps; the schedule also goes back as "
            "attach(scheduler=...)",
        )


def _rollback(rewind: Ability, checkpoints: bool) -> Ability:
    if rewind.answer is not Answer.YES and not checkpoints:
        unsaved = rewind.remedy == SAVE_YOURSELF
        return no(ROLLBACK, rewind.reason, SAVE_YOURSELF) if unsaved else _nowhere()
    memory = ["snapshots in memory"] if rewind.answer is Answer.YES else []
    where = " and ".join(memory + ["checkpoints"] * checkpoints)
    return yes(ROLLBACK, "the steps since then are trained again", f"to {where}")


def _nowhere() -> Ability:
    remedy = "Give attach(checkpoints=CheckpointDirectory(...)), or room for snapshots"
    return no(ROLLBACK, "there are neither snapshots in memory nor checkpoints", remedy)


def within_limits(abilities: Iterable[Ability], settings: Settings) -> tuple[Ability, ...]:
    """`abilities`, where the job's own settings forbid an order of that kind as a no."""
    refused = {name: verb_refusal(settings, verb) for name, verb in _ORDERED_BY.items()}
    return tuple(
        no(each.name, reason) if (reason := refused.get(each.name)) else each for each in abilities
    )


_ORDERED_BY = {
    SCALE_LR: Verb.SCALE_LR,
    SKIP_BATCHES: Verb.SKIP_BATCHES,
    ROLLBACK: Verb.ROLLBACK,
    REWIND: Verb.ROLLBACK,
}


def merged(before: Iterable[Ability], now: Iterable[Ability]) -> tuple[Ability, ...]:
    """`before` with the rows of `now` in the place of those of the same name."""
    return tuple({ability.name: ability for ability in (*before, *now)}.values())


def sentence_of(ability: Ability) -> str:
    """Reason, cost and remedy in one line."""
    cost = f"cost: {ability.cost}" if ability.cost else ""
    return ". ".join(part.rstrip(".") for part in (ability.reason, cost, ability.remedy) if part)


def log_table(abilities: Sequence[Ability]) -> None:
    """What, whether, and why or at what cost; a warning where somebody has to do something."""
    names = [ability.name.replace("_", " ") for ability in abilities]
    first = max(map(len, names), default=0) + 2
    second = max((len(ability.answer) for ability in abilities), default=0) + 2
    lines: list[str] = []
    for name, ability in zip(names, abilities, strict=True):
        head = f"  {name:<{first}}{ability.answer:<{second}}"
        text, room = sentence_of(ability), max(WIDTH, len(head) + 40)
        lines += wrap(text, room, initial_indent=head, subsequent_indent=" " * len(head)) or [head]
    said = "\n".join(line.rstrip() for line in lines)
    log.log(_level(abilities), "what can be done in this job:\n%s", said, extra=LINES)


def log_changes(abilities: Iterable[Ability], before: Iterable[Ability]) -> None:
    """What the loop has shown: a line for all rows that say the same.

    How often snapshots are taken follows the loop's pace: the first measurement is news.
    """
    said: dict[tuple[int, str], list[str]] = {}
    paced = any(each.name == REWIND and MEASURED in each.reason for each in before)
    for each in abilities:
        if paced and each.name == REWIND and each.answer is Answer.YES:
            continue
        sentence = f"{each.answer}. {sentence_of(each)}".rstrip(". ")
        said.setdefault((_level([each]), sentence), []).append(each.name.replace("_", " "))
    for (level, sentence), names in said.items():
        log.log(level, "%s: %s", ", ".join(names), sentence)


def _level(abilities: Iterable[Ability]) -> int:
    return logging.WARNING if any(each.remedy for each in abilities) else logging.INFO
