"""From the options of a run to their response body."""

from __future__ import annotations

from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.orders import TAKES, out_of_reach, why_not
from spikeguard_core.policy.situation import RunSituation, Target
from spikeguard_protocol import Rollback, Verb
from spikeguard_server.http.bodies.incidents import cost_body
from spikeguard_server.http.bodies.orders import LimitsBody, OptionsBody, TargetOption, VerbOption
from spikeguard_server.ingest.orders import OF_INCIDENT, OF_RUN
from spikeguard_server.store.reads.costs import Options


def options_body(options: Options) -> OptionsBody:
    """What can be ordered, newest target first; nothing can where no attempt trains."""
    situation, waiting = options.situation, options.waiting
    return OptionsBody(
        step=options.run.last_step or 0,
        position=options.run.position,
        incident=options.incident,
        command=None if waiting is None else waiting.number,
        revision=None if waiting is None else waiting.revision,
        verbs=_verbs(options),
        targets=[] if situation is None else [
            _target(target, situation, options) for target in reversed(situation.targets)
        ],
        limits=LimitsBody.of(*(() if situation is None else (situation.limits,))),
        mitigations={} if situation is None else dict(situation.mitigations),
    )  # fmt: skip


def _verbs(options: Options) -> list[VerbOption]:
    known = OF_RUN if options.incident is None else OF_RUN | OF_INCIDENT
    found = []
    if options.situation is None or not options.situation.mitigations:
        known -= {Verb.APPLY}
    for verb in (verb for verb in TAKES if verb in known):
        if options.situation is None:
            told = ("The run has no attempt that trains", "Start the job again first")
        elif options.policy.halted:
            told = ("The kill switch of the project is on", "An admin lifts it")
        elif (refusal := why_not(verb, options.situation)) is not None:
            told = (refusal.message, refusal.remedy)
        else:
            told = ("", "")
        found.append(VerbOption(verb=verb, possible=not told[0], reason=told[0], remedy=told[1]))
    return found


def _target(target: Target, situation: RunSituation, options: Options) -> TargetOption:
    cost = cost_of(Rollback(target.name, target.step), situation, options.policy)
    return TargetOption.of(
        target,
        age_s=max(0.0, (options.now - options.saved_at[target.name]).total_seconds()),
        reachable=not out_of_reach(target, situation),
        cost=cost_body(cost, options.policy),
    )
