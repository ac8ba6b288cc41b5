"""The page to act, as it is filled in and shown: what is chosen, and what it would do.

Pure: the domain says what can be ordered. Texts come back into the form as they were typed,
whatever is wrong with them; batches are said from the first to the last, as people read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from pydantic import BaseModel, StringConstraints

from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.orders import TAKES, OrderRequest, order_request_of
from spikeguard_protocol import Action, BatchRange, Health, ProtocolError, Verb
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_protocol.phrases import action_phrase
from spikeguard_server.errors import Unprocessable, WrongState
from spikeguard_server.http.bodies.incidents import cost_body
from spikeguard_server.http.bodies.orders import OptionsBody, TargetOption
from spikeguard_server.ingest.orders import planned
from spikeguard_server.store.reads.costs import Options

SHOWN: Final = 12  # targets, until somebody asks for all
MOST_SHOWN: Final = 200
VERB_WORDS: Final = {
    Verb.ROLLBACK: "Roll back",
    Verb.SKIP_BATCHES: "Skip batches",
    Verb.SCALE_LR: "Lower the rate",
    Verb.APPLY: "Apply a mitigation",
    Verb.WATCH: "Watch",
    Verb.CHECKPOINT_NOW: "Save a checkpoint",
    Verb.STOP: "Stop",
}
Text = Annotated[str, StringConstraints(max_length=200)]


class Fields(BaseModel):
    """The form, as it was filled in."""

    verb: Text = ""
    to: Text = ""  # name of a target
    skip_first: Text = ""
    skip_last: Text = ""
    factor: Text = ""
    steps: Text = ""
    mitigation: Text = ""
    cap: Text = ""

    def filled(self) -> dict[str, str]:
        """What was filled in, by field."""
        return {name: text for name in Fields.model_fields if (text := getattr(self, name))}

    def address(self, path: str, **more: str) -> str:
        """Where the page is shown with these fields."""
        return f"{path}?{urlencode({**self.filled(), **more})}"

    def wanted(self) -> OrderRequest:
        """The order; raise `Unprocessable` for what is no number or no verb."""
        if self.verb not in set(Verb):
            raise Unprocessable("Choose what is to be done", "Use the buttons", field="verb")
        read: dict[str, Any] = {
            "target": self.to.strip() or None,
            "mitigation": self.mitigation.strip() or None,
        }
        takes = TAKES[Verb(self.verb)]
        read |= {name: _number(getattr(self, name), name) for name in {"factor", "cap"} & takes}
        if "steps" in takes:
            read["steps"] = _count(self.steps, "steps")
        if "skip" in takes:
            read["skip"] = self._skip()
        return OrderRequest(Verb(self.verb), **{name: read[name] for name in takes})

    def _skip(self) -> BatchRange | None:
        first, last = _count(self.skip_first, "skip"), _count(self.skip_last, "skip")
        if first is None and last is None:
            return None
        if first is None or last is None:
            raise Unprocessable("Batches have a first and a last one", "Give both", field="skip")
        try:
            return BatchRange(first, last + 1)
        except ProtocolError:
            raise Unprocessable(
                f"Batches {first:,} to {last:,} are none", "Give the first, then the last",
                field="skip",
            ) from None  # fmt: skip

    def with_target(self, target: TargetOption, older: int) -> Fields:
        """The same with another target, `older` steps before the one that is chosen. Batches that
        it has read cannot be left out behind it; a rate with a cap is lowered up to the same
        step."""
        changed, first = {"to": target.name}, self.skip_first.strip()
        if self.cap and self.steps.strip().isdecimal():
            changed["steps"] = str(max(1, int(self.steps) + older))
        if first.isdecimal() and int(first) < target.position:
            changed["skip_first"] = str(target.position)
        return self.model_copy(update=changed)


def fields_of(action: Action) -> Fields:
    """The form as a proposal would fill it in."""
    wanted = order_request_of(action)
    skip = wanted.skip
    return Fields(
        verb=wanted.verb.value,
        to=wanted.target or "",
        skip_first="" if skip is None else str(skip.first),
        skip_last="" if skip is None else str(skip.end - 1),
        factor="" if wanted.factor is None else f"{wanted.factor:.6g}",
        steps="" if wanted.steps is None else str(wanted.steps),
        mitigation=wanted.mitigation or "",
        cap="" if wanted.cap is None else f"{wanted.cap:.6g}",
    )


def first_fields(options: OptionsBody, proposed: Fields | None) -> Fields:
    """What the form begins with: the proposal, else the first thing that can be done."""
    if proposed is not None and proposed.verb != Verb.WATCH:
        return proposed
    return Fields(verb=next((each.verb for each in options.verbs if each.possible), Verb.ROLLBACK))


def plan_shown(fields: Fields, options: Options) -> Mapping[str, Any]:
    """What `fields` would have done, and its price; raise what would be refused."""
    if options.situation is None:
        raise WrongState(f"{options.run.id} has no attempt that trains", "Start the job again")
    plan = planned(fields.wanted(), options.situation)
    words, verb = action_phrase(plan.action), Verb(fields.verb)
    return {
        "words": f"{words[:1].upper()}{words[1:]}",
        "warnings": plan.warnings,
        "cost": cost_body(cost_of(plan.action, options.situation, options.policy), options.policy),
        "changes": verb in CURES,  # the loss could tell of it
        "stops": verb is Verb.STOP,
        "button": VERB_WORDS[verb],
    }


def verbs_shown(
    path: str, fields: Fields, proposed: Fields | None, options: OptionsBody
) -> list[dict[str, Any]]:
    """The verbs; one that cannot be done says why and leads nowhere."""
    return [
        {
            **each.model_dump(),
            "words": VERB_WORDS[each.verb],
            "chosen": each.verb == fields.verb,
            "url": (
                proposed
                if proposed is not None and proposed.verb == each.verb
                else Fields(verb=each.verb)
            ).address(path),
        }
        for each in options.verbs
    ]


def targets_shown(
    path: str, fields: Fields, proposed: Fields | None, targets: list[TargetOption],
    onset: int | None, *, all: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """The proposed target, then those from before the onset, then the rest; of each the newest
    healthy ones first."""
    first = "" if proposed is None else proposed.to
    chosen = next((target.step for target in targets if target.name == fields.to), None)
    last, more = MAX_STEP if onset is None else onset - 1, {"all": "true"} if all else {}
    ranked = sorted(
        targets, key=lambda t: (t.name != first, t.step > last, t.health is not Health.HEALTHY)
    )
    most = MOST_SHOWN if all else SHOWN
    return [
        {
            **target.model_dump(),
            "chosen": target.name == fields.to,
            "proposed": target.name == first,
            "url": fields.with_target(
                target, 0 if chosen is None else chosen - target.step
            ).address(path, **more),
        }
        for place, target in enumerate(ranked)
        if place < most or target.name == fields.to
    ]  # fmt: skip


def _count(text: str, field: str) -> int | None:
    plain = text.strip().replace(",", "")
    if not plain:
        return None
    if not plain.isascii() or not plain.isdigit() or int(plain) > MAX_STEP:
        raise Unprocessable(f"{field} takes whole numbers", "Give digits alone", field=field)
    return int(plain)


def _number(text: str, field: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise Unprocessable(
            f"{field} takes a number", "Write 0.5 for half the learning rate", field=field
        ) from None
