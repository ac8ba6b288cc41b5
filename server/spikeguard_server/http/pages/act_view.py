"""The page to act as it is shown: what can be chosen, what is chosen, and what it would do.

Invariants: pure; the domain says what can be ordered, here it is put before somebody's eyes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.orders import Plan
from spikeguard_protocol import Health, Verb
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_protocol.phrases import action_phrase
from spikeguard_server.errors import WrongState
from spikeguard_server.http.bodies.incidents import cost_body
from spikeguard_server.http.bodies.orders import OptionsBody, TargetOption
from spikeguard_server.http.pages.act_fields import VERB_WORDS, Fields, of_verb, with_target
from spikeguard_server.ingest.orders import OF_INCIDENT, planned
from spikeguard_server.store.reads.costs import Options

SHOWN: Final = 12  # targets, until somebody asks for all
MOST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class PlanView:
    """Exactly what an order would do, and its price."""

    words: str
    warnings: Sequence[str]
    cost: Mapping[str, Any]
    changes: bool  # whether the loss could tell of it
    stops: bool
    button: str


@dataclass(frozen=True, slots=True)
class ActForm:
    """What is shown to whom: the path of the page, and what has been filled in there."""

    path: str
    fields: Fields
    proposed: Fields | None  # as the proposal would fill it in
    all: bool = False  # whether every target is listed

    def chosen(self, options: OptionsBody) -> TargetOption | None:
        """The target that is chosen, if it is one."""
        return next((t for t in options.targets if t.name == self.fields.to), None)


def plan_view(fields: Fields, options: Options) -> PlanView:
    """What `fields` would have done; raise what would be refused."""
    if options.situation is None:
        raise WrongState(f"{options.run.id} has no attempt that trains", "Start the job again")
    plan = planned(fields.wanted(), options.situation)
    return _shown(plan, Verb(fields.verb), options)


def _shown(plan: Plan, verb: Verb, options: Options) -> PlanView:
    assert options.situation is not None
    words = action_phrase(plan.action)
    cost = cost_of(plan.action, options.situation, options.policy)
    return PlanView(
        f"{words[:1].upper()}{words[1:]}", plan.warnings,
        cost_body(cost, options.policy).model_dump(), verb in CURES, verb is Verb.STOP,
        VERB_WORDS[verb],
    )  # fmt: skip


def first_fields(options: OptionsBody, proposed: Fields | None) -> Fields:
    """What the form begins with: the proposal, else the first thing that can be done."""
    if proposed is not None and proposed.verb != Verb.WATCH:
        return proposed
    possible = next((each.verb for each in options.verbs if each.possible), Verb.ROLLBACK)
    return Fields(possible.value)


def verbs_shown(form: ActForm, options: OptionsBody) -> list[dict[str, Any]]:
    """The verbs; one that cannot be done says why and leads nowhere."""
    return [
        {
            "words": VERB_WORDS[each.verb], "possible": each.possible, "reason": each.reason,
            "remedy": each.remedy, "chosen": each.verb == form.fields.verb,
            "url": of_verb(each.verb, form.proposed).address(form.path),
        }
        for each in options.verbs
    ]  # fmt: skip


def targets_shown(
    form: ActForm, options: OptionsBody, onset: int | None = None
) -> list[dict[str, Any]]:
    """The proposed target, then those from before the onset, then the rest; of each the newest
    healthy ones first."""
    most = MOST_SHOWN if form.all else SHOWN
    proposed = "" if form.proposed is None else form.proposed.to
    chosen = form.chosen(options)
    last = MAX_STEP if onset is None else onset - 1
    ranked = sorted(
        options.targets,
        key=lambda t: (t.name != proposed, t.step > last, t.health is not Health.HEALTHY),
    )
    found = [t for i, t in enumerate(ranked) if i < most or t.name == form.fields.to]
    return [
        {
            **target.model_dump(),
            "chosen": target.name == form.fields.to,
            "proposed": target.name == proposed,
            "url": with_target(
                form.fields,
                target.name,
                target.position,
                0 if chosen is None else chosen.step - target.step,
            ).address(form.path, **({"all": "true"} if form.all else {})),
        }
        for target in found
    ]


def proposal_shown(options: Options) -> dict[str, Any] | None:
    """The proposal that an order would take the place of."""
    row = options.waiting
    if row is None:
        return None
    words = action_phrase(row.action)
    return {"number": row.number, "revision": row.revision, "words": words, "by": row.proposed_by}


def of_incident(verb: str, options: Options) -> bool:
    """Whether an order of `verb` is one of the open incident, or of the run itself."""
    return options.incident is not None and verb in OF_INCIDENT
