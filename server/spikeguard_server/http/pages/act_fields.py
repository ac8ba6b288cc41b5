"""What a person has filled in on the page to act, as texts and as an order.

Invariants: pure. Texts come back into the form as they were typed, whatever is wrong with them;
batches are said from the first to the last, as people read them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final
from urllib.parse import urlencode

from spikeguard_core.policy.orders import TAKES, OrderRequest, order_request_of
from spikeguard_protocol import Action, BatchRange, ProtocolError, Verb
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_server.errors import Unprocessable

VERB_WORDS: Final = {
    Verb.ROLLBACK: "Roll back",
    Verb.SKIP_BATCHES: "Skip batches",
    Verb.SCALE_LR: "Lower the rate",
    Verb.APPLY: "Apply a mitigation",
    Verb.WATCH: "Watch",
    Verb.CHECKPOINT_NOW: "Save a checkpoint",
    Verb.STOP: "Stop",
}


@dataclass(frozen=True, slots=True)
class Fields:
    """The form, as it was filled in."""

    verb: str = ""
    to: str = ""  # name of a target
    skip_first: str = ""
    skip_last: str = ""
    factor: str = ""
    steps: str = ""
    mitigation: str = ""
    cap: str = ""

    def address(self, path: str, **more: str) -> str:
        """Where the page is shown with these fields."""
        given = {name: value for name, value in {**asdict(self), **more}.items() if value}
        return f"{path}?{urlencode(given)}"

    def wanted(self) -> OrderRequest:
        """The order; raise `Unprocessable` for what is no number or no verb."""
        if self.verb not in set(Verb):
            raise Unprocessable("Choose what is to be done", "Use the buttons", field="verb")
        verb = Verb(self.verb)
        takes = TAKES[verb]
        return OrderRequest(
            verb,
            (self.to.strip() or None) if "target" in takes else None,
            self._skip() if "skip" in takes else None,
            _number(self.factor, "factor") if "factor" in takes else None,
            _count(self.steps, "steps") if "steps" in takes else None,
            (self.mitigation.strip() or None) if "mitigation" in takes else None,
            _number(self.cap, "cap") if "cap" in takes else None,
        )

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


def fields_of(action: Action) -> Fields:
    """The form as a proposal would fill it in."""
    wanted = order_request_of(action)
    skip = wanted.skip
    return Fields(
        wanted.verb.value, wanted.target or "",
        "" if skip is None else str(skip.first), "" if skip is None else str(skip.end - 1),
        "" if wanted.factor is None else f"{wanted.factor:.6g}",
        "" if wanted.steps is None else str(wanted.steps),
        wanted.mitigation or "", "" if wanted.cap is None else f"{wanted.cap:.6g}",
    )  # fmt: skip


def of_verb(verb: Verb, proposed: Fields | None) -> Fields:
    """The form that a choice of `verb` begins with."""
    return proposed if proposed is not None and proposed.verb == verb else Fields(verb.value)


def with_target(fields: Fields, name: str, position: int, older: int) -> Fields:
    """The same with another target, `older` steps before the one that is chosen. Batches that it
    has read cannot be left out behind it; a rate with a cap is lowered up to the same step."""
    first, steps = fields.skip_first.strip(), fields.steps.strip()
    read = first.isdecimal() and int(first) < position
    if fields.cap and steps.isdecimal():
        fields = replace(fields, steps=str(max(1, int(steps) + older)))
    return replace(fields, to=name, skip_first=str(position) if read else fields.skip_first)


def _count(text: str, field: str) -> int | None:
    plain = text.strip().replace(",", "")
    if not plain:
        return None
    if not plain.isascii() or not plain.isdigit() or int(plain) > MAX_STEP:
        raise Unprocessable(f"{field} takes whole numbers", "Give digits alone", field=field)
    return int(plain)


def _number(text: str, field: str) -> float | None:
    plain = text.strip()
    if not plain:
        return None
    try:
        return float(plain)
    except ValueError:
        raise Unprocessable(
            f"{field} takes a number", "Write 0.5 for half the learning rate", field=field
        ) from None
