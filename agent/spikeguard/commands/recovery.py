"""Saving states of the run and going back to them.

A state is saved and restored at a step boundary only, whole: training state, data position,
counters, learning-rate scale. Abandoned states are never loaded. What changes files is rank 0's;
where all ranks have to have succeeded they say so to each other before anything counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spikeguard.commands.journal import Journal
from spikeguard.commands.orders import Inbox
from spikeguard.data.feed import DataFeed
from spikeguard.faults import Faults, log
from spikeguard.optim.lr_scale import LrScale
from spikeguard.optim.optimizers import ScaledRates
from spikeguard.ranks.rank_group import World, all_agree
from spikeguard.state.checkpoints import CheckpointDirectory, Saves, UserCheckpoints
from spikeguard.state.folders import claim
from spikeguard.state.lineage import Progress, Target, Tree, is_abandoned, target_name
from spikeguard.state.replicated_parts import Part, divided, tree_bytes
from spikeguard.state.snapshots import Snapshots, Staged, StagingBuffers
from spikeguard.state.training_state import TrainingState
from spikeguard_protocol import Medium, Record, SegmentId, TargetDeleted, from_json, to_json

Report = Callable[[Record], object]


class Recovery:
    """Every place the run can go back to."""

    def __init__(
        self,
        world: World,
        state: TrainingState,
        snapshots: Snapshots | None,
        checkpoints: CheckpointDirectory | None,
        staging: StagingBuffers,
        feed: DataFeed,
        rates: ScaledRates,
        progress: Progress,
        journal: Journal,
        inbox: Inbox,
        faults: Faults,
    ) -> None:
        self._world, self.state, self._feed, self._rates = world, state, feed, rates
        self._progress, self._journal = progress, journal
        self.report: Report = bool  # the guard's, once there is one
        self._faults, self.staging, self._inbox = faults, staging, inbox
        self.snapshots, self.checkpoints = snapshots, checkpoints
        self.writing = True  # whether `settle` has to look: a checkpoint may be on its way
        self._prepared = False
        self._fresh: Staged | None = None  # of this step boundary
        self._held: Staged | None = None  # of the target that the run is about to go back to
        self._apart = False  # whether replicas were found to differ, and not yet to be equal again
        self._equal_at = 0  # the newest step at which they were compared and equal
        self._unlike = False  # ranks that were said to be replicas are none
        self._saves = Saves(world, checkpoints, faults) if checkpoints is not None else None
        self._by_dcp = checkpoints is not None and not checkpoints.writes_itself

    @property
    def takes_snapshots(self) -> bool:
        """Whether a rollback could use one: the loop's data can go back, too."""
        return self.snapshots is not None and self._feed.in_use

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written beside the loop."""
        return self._saves is not None and self._saves.busy

    def live(self) -> Tree:
        """References to everything, as of this step boundary."""
        data, scale = self._feed.capture(), to_json(self._rates.scale)
        return {**self.state.capture(), "data": data, "lr_scale": scale}

    def snapshot(self) -> None:
        """Copy the state into the ring, or this rank's part of it."""
        if self.snapshots is None or self._apart:
            return
        own, parts = self._divided()
        size = _bytes(own, parts)
        self._feed.unusual |= size != self.snapshots.bytes  # what they take is to be told
        if not self.snapshots.fits(size):
            if self._world.size == 1:
                self._give_up_snapshots()
            return
        target = self._target("memory", Medium.MEMORY)
        for name in self.snapshots.make_room():
            self.report(TargetDeleted(name))
        self._fresh = self.staging.take(target, own, parts)
        self.snapshots.add(self._fresh)
        self.staging.trim(self.snapshots.room + self._by_dcp)
        self.report(target.record())

    def _divided(self) -> tuple[Tree, Mapping[str, Part]]:
        """The state as of now: what is this rank's own, and what it keeps for others too."""
        own, parts = divided(self.live(), self.state.shared, self.state.stored.name_at)
        node = self.staging.node
        return own, node.kept(parts) if node is not None else parts

    def compared(self, step: int, equal: bool) -> None:
        """Replicas were compared as of `step`; all ranks learn it at the same boundary.

        Where ranks of a node keep one copy, one of ranks that differ is a copy of none: those that
        were taken since they were last seen to be equal go, and no other is taken until they are.
        """
        if equal:
            self._equal_at, self._apart = step, False
        elif self.staging.node is not None and self.snapshots is not None:
            self._apart = True
            late = [t.name for t in self.snapshots.targets if t.step > self._equal_at]
            for name in self.snapshots.forget(late):
                self.report(TargetDeleted(name))

    def unlike(self) -> bool:
        """Ranks that were said to be replicas are none: what is kept once for all is no rank's own.

        Whether that is news. All ranks learn it at the same boundary.
        """
        if self._unlike:
            return False
        self._unlike = True
        if self.staging.node is not None:
            self._drop_snapshots()
        return True

    def agree_on_size(self, largest: int) -> None:
        """All ranks at the same boundary: what a snapshot takes on the largest."""
        if self.snapshots is not None:
            self._feed.unusual |= not self.snapshots.known
            if not self.snapshots.agree(largest):
                self._give_up_snapshots()

    def _give_up_snapshots(self) -> None:
        self._faults.note("snapshots", "one snapshot is larger than the memory it may take")
        self._drop_snapshots()

    def _drop_snapshots(self) -> None:
        held, self.snapshots = self.snapshots, None
        self._feed.unusual = True  # a way back less: to be told
        for name in held.forget(t.name for t in held.targets) if held is not None else ():
            self.report(TargetDeleted(name))
        self.staging.trim(int(self._by_dcp))

    def begin_checkpoint(self, taken: Staged | None = None) -> bool:
        """Have the state written beside the loop; False where a rank cannot. Collective.

        `taken`: a snapshot of this very boundary, whose copy is written.
        """
        if self._saves is None or not self._by_dcp:
            return False
        self.settle()
        target = self._target("checkpoint", Medium.DISK)

        def stage() -> Staged:
            return taken.hold() if taken else self.staging.take(target, *self._divided())

        begun = self._saves.begin(target, stage)
        self.writing |= begun
        return begun

    def checkpoint(self) -> str | None:
        """Write the state and wait for it; its name, or None if a rank failed. Collective."""
        patience = self._world.timeout.total_seconds()
        if self.checkpoints is not None and self.checkpoints.writes_itself:
            target = self._written_by(self.checkpoints)
            if target is None:
                return None
            # the others wait for rank 0 meanwhile, so it waits for less than their patience
            whole = not self._world.leads or self.settle(patience / 2) is not None
            return target.name if all_agree(self._world, whole) else None
        self.settle(patience)
        if not self.begin_checkpoint():
            return None
        name = self.settle(patience)
        return name if all_agree(self._world, name is not None) else None

    def _written_by(self, checkpoints: CheckpointDirectory) -> Target | None:
        """Through the job's or the framework's own functions, in the loop. Collective.

        Rank 0 then reads the files for their checksums beside the loop, and completes it.
        """
        target, written = self._target("checkpoint", Medium.DISK), not self._world.leads
        if self._world.leads:
            self.settle()
            with self._faults.shield("checkpoint"):
                if not checkpoints.on_demand:
                    raise RuntimeError("the framework writes its checkpoints itself")
                if self._saves is not None and self._saves.under_way:
                    raise RuntimeError("the one before is still read for its checksums")
                claim(checkpoints.folder(target.name))
                written = True
        if not all_agree(self._world, written):
            return None
        written = False
        with self._faults.shield("checkpoint"):
            checkpoints.write_state(target.name, self._world.rank, self.live())
            written = True
        if not all_agree(self._world, written):
            return None
        if self._world.leads and self._saves is not None:
            self._saves.follow(target, lambda: checkpoints.complete(target, self._world.size))
            self.writing = True
        return target

    def checkpoint_due(self) -> None:
        """One that its time has come for: beside the loop, unless the directory says otherwise."""
        if self._world.ties.broken:
            self._faults.note("checkpoint", "none is written: the ranks lost step with each other")
        elif self._by_dcp and self.checkpoints is not None and self.checkpoints.background:
            fresh = self._fresh
            here = fresh is not None and fresh.target.lineage == self._progress.lineage
            self.begin_checkpoint(fresh if here else None)
        else:
            self.checkpoint()

    def settle(self, wait_s: float = 0.0) -> str | None:
        """Take note of a checkpoint that was written since; its name if it is whole."""
        self._prepare()
        whole = self._saves.finished(wait_s) if self._saves is not None else None
        self.writing = self._saves is not None and self._saves.under_way
        if whole is None:
            return None
        self._keep(whole)
        return whole.name

    def _prepare(self) -> None:
        """Once, when the first step has made the optimizers' states: buffers for the snapshots."""
        if self._prepared or not self.takes_snapshots or not self._progress.steps:
            return
        assert self.snapshots is not None
        self._prepared = True
        if self.staging.registers:
            own, parts = self._divided()
            room = self.snapshots.room_for(_bytes(own, parts))
            self.staging.prepare(own, parts, room + self._by_dcp)

    def _keep(self, target: Target) -> None:
        """Rank 0: tell of a whole checkpoint, unless the run left it behind, and make room."""
        if not self._world.leads or self.checkpoints is None:
            return
        if not self.abandoned(target):
            self.report(target.record())
        if target.damage is not None:
            log.warning(
                "%s is written and damaged: %s. It is not proposed as a target", target.name,
                target.damage,
            )  # fmt: skip
        lost = [t.name for t in self.checkpoints.targets() if self.abandoned(t)]
        protected, step = self._inbox.protected, self._progress.steps
        for name in self.checkpoints.superfluous(lost, protected, step):
            if self.checkpoints.remove(name):
                self.report(TargetDeleted(name))

    def _target(self, kind: str, medium: Medium) -> Target:
        progress = self._progress
        segment = SegmentId(progress.attempt, progress.segment)
        name = target_name(kind, progress.steps, segment)
        return Target(name, self._feed.position, progress.lineage, medium)

    def abandoned(self, target: Target) -> bool:
        """Whether a rollback left `target` behind."""
        return is_abandoned(target.lineage, self._journal.abandonments)

    def find(self, name: str) -> Target | None:
        """The target of that name in memory or on disk, if it is still there."""
        held = self.snapshots.find(name) if self.snapshots is not None else None
        if held is not None:
            return held.target
        return self.checkpoints.find(name) if self.checkpoints is not None else None

    def load(self, target: Target) -> Tree:
        """The state on the host, once it is known to be what was saved.

        Raises OSError or ValueError if it cannot be read or has changed, in a part that this rank
        looked at: the ranks share the checking, so all have to agree before it is used.
        """
        if target.medium is Medium.MEMORY:
            found = self.snapshots.find(target.name) if self.snapshots is not None else None
            if found is None:
                raise ValueError(f"target {target.name} is gone")
            return found.whole()
        if self._unlike and self._by_dcp:
            raise ValueError("it holds one rank's copy of what differs between the ranks")
        assert self.checkpoints is not None
        world = self._world
        self.checkpoints.check(target.name, world.rank, world.size)
        return self.checkpoints.load(target.name, world.rank, world.size, self.state.stored.box_of)

    def hold(self, target: Target) -> None:
        """Keep the memory of a snapshot until `restore`: the run goes back to it in some steps."""
        found = self.snapshots.find(target.name) if self.snapshots is not None else None
        self._held = found.hold() if found is not None else None

    def restore(self, target: Target, tree: Tree, segment: int) -> None:
        """Become `target`, about to train `segment`; half done if it raises.

        The data were told before (`DataFeed.go_back`).
        """
        if target.medium is Medium.DISK and isinstance(self.checkpoints, UserCheckpoints):
            self.checkpoints.put_back(target.name)
        self.state.restore(tree)
        self._feed.arrive()
        scale = from_json(LrScale | None, tree["lr_scale"])
        self._rates.scale = self._journal.accepted(scale)
        self._progress.continue_from(target.lineage, segment)
        self._equal_at = min(self._equal_at, target.step)
        if self._held is not None:
            self._held.release()
            self._held = None

    def take_up_scale(self, target: Target | None) -> None:
        """After a restart at `target` (None: the beginning): the rate that was ordered since."""
        scaling = self._journal.scaling_since(target.lineage[-1] if target is not None else None)
        if scaling is not None:
            self._rates.scale = scaling.scale
            self._journal.kept.add(scaling.command)

    def forget_abandoned(self) -> None:
        """Free the snapshots that a rollback left behind."""
        if self.snapshots is None:
            return
        lost = [t.name for t in self.snapshots.targets if self.abandoned(t)]
        for name in self.snapshots.forget(lost):
            self.report(TargetDeleted(name))

    def candidates(self) -> list[Target]:
        """Checkpoints to resume from: newest first, those that are damaged last."""
        found = self.checkpoints.targets() if self.checkpoints is not None else []
        there = [target for target in reversed(found) if not self.abandoned(target)]
        return sorted(there, key=lambda target: target.damage is not None)


def _bytes(own: Tree, parts: Mapping[str, Part]) -> int:
    return tree_bytes(own) + sum(tree_bytes(part.tensor) for part in parts.values())
