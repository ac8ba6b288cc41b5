"""A policy tried on a run's stored history before it is put in force; nothing is written.

Invariants: bounded in steps and in the time that it computes, and one at a time in a process, since
it computes for a second or more where messages of jobs are taken. Whoever waits holds no thread.
"""

from __future__ import annotations

import time
from typing import Final

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from spikeguard_protocol import RunId
from spikeguard_server.access.grants import checked_policy
from spikeguard_server.detectors import choose
from spikeguard_server.domain.policy.settings import (
    Policy,
    PolicyScope,
    over,
    policy_from_mapping,
)
from spikeguard_server.errors import NotFound
from spikeguard_server.http.bodies.policy_preview import (
    ForeseenBody,
    PreviewBody,
    PreviewWanted,
    foreseen_body,
)
from spikeguard_server.http.bodies.policy_settings import PolicySettings, policy_settings
from spikeguard_server.http.dependencies import (
    PREVIEW_BUSY,
    CallerDep,
    RunDep,
    Services,
    ServicesDep,
)
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.replay.advice import Assumed
from spikeguard_server.replay.preview import Branch, HistoryReplay, Stretch, branches_of
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.history import existing_run
from spikeguard_server.store.reads.stored_history import (
    StoredSegment,
    checkpoints_apart,
    read_stored_segments,
    tokens_per_step,
)

router = APIRouter(tags=["policy"])
NOT_SET: Final = ("version", "halted")  # by nobody who writes a policy
COMPUTE_S: Final = 5.0  # of a processor, for each of the two policies
_NO_RUN = NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are")


@router.get(
    "/v1/policy/settings", summary="Every setting of a policy", response_model=PolicySettings,
    response_class=JsonReply,
)  # fmt: skip
def get_settings() -> JsonReply:
    """With unit, default and range, those of detection and of installed detectors among them."""
    return JsonReply(policy_settings())


@router.post(
    "/v1/runs/{project}/{name}/policy/preview", summary="Try a policy on a run's history",
    response_model=PreviewBody, response_class=JsonReply, responses=refusals(_NO_RUN, PREVIEW_BUSY),
)  # fmt: skip
async def preview_policy(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: PreviewWanted
) -> JsonReply:
    """Replays up to 20,000 stored steps by the policy in force and by the one that is sent. Nothing
    is written, and commands that would have been proposed are answered by nobody. One is computed
    at a time, and none of a token that waits for another."""
    async with services.previews.one_of(caller.grant):
        return JsonReply(await run_in_threadpool(_previewed, services, run, wanted))


def _previewed(services: Services, run: RunId, wanted: PreviewWanted) -> PreviewBody:
    with services.snapshot() as connection:
        key = existing_run(connection, run)
        project = policy_of(connection, run.project)
        in_force = policy_of(connection, run.project, key)
        proposed = _proposed(project, wanted)
        stored = read_stored_segments(connection, key, wanted.steps)
        every = checkpoints_apart(connection, key) or Assumed().checkpoint_every
        assumed = Assumed(every, tokens_per_step=tokens_per_step(connection, key))
    branches = branches_of([_stretch(one) for one in stored])
    now = _foreseen(branches, in_force, assumed)
    then = _foreseen(branches, proposed, assumed)
    steps = [(one.samples[0].step, one.samples[-1].step) for one in stored if one.samples]
    last = max((end for _, end in steps), default=None)
    ends = [one.samples[-1].step for one in branches if one.samples]
    return PreviewBody(
        run=str(run), first_step=min((begin for begin, _ in steps), default=None),
        last_step=last, samples=sum(len(one.samples) for one in stored),
        whole=not ends or (now.to_step, then.to_step) == (ends[-1], ends[-1]),
        checkpoint_every=assumed.checkpoint_every, now=now, then=then,
    )  # fmt: skip


def _stretch(one: StoredSegment) -> Stretch:
    parent = None if one.parent is None else (one.parent.segment, one.parent.step)
    return Stretch(one.id, parent, one.samples)


def _proposed(project: Policy, wanted: PreviewWanted) -> Policy:
    plain = {key: value for key, value in wanted.policy.items() if key not in NOT_SET}
    of_run = wanted.scope is PolicyScope.RUN
    policy = over(project, plain) if of_run else policy_from_mapping(plain)
    return checked_policy(policy)


def _foreseen(branches: list[Branch], policy: Policy, assumed: Assumed) -> ForeseenBody:
    """By one policy, for as long as it may compute; other threads go first between two steps."""
    replay = HistoryReplay(branches, policy, assumed, choose(policy.detection))
    until, reached = time.thread_time() + COMPUTE_S, None
    for step in replay.rows():
        reached = step
        time.sleep(0)
        if time.thread_time() > until:
            break
    return foreseen_body(policy.name, replay.foreseen, reached)
