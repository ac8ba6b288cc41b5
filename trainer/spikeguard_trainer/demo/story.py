"""What the API says about a run, told as it comes to be known. Pure: answers in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from spikeguard_cli.wording import command_words, cost_words, number as figure, state_words
from spikeguard_protocol import Outcome
from spikeguard_protocol.vocabulary import OUTCOME_WORDS

GOOD = ("healed", "recovered", "outlier", "withdrawn")  # outcomes that leave no harm
SEEN_STEPS = 100  # after a fault: what has not been seen by then will not be


class Story:
    """What has been told of one run."""

    def __init__(self) -> None:
        self._told = set[tuple[Any, ...]]()

    def tell(self, incident: dict[str, Any]) -> list[str]:
        """The lines that are new in `incident`, an `Incident` with its details."""
        news = [(key, lines) for key, lines in _lines(incident) if key not in self._told]
        self._told.update(key for key, _ in news)
        return [line for _, lines in news for line in lines]


def _lines(incident: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], list[str]]]:
    """All that there is to tell, each under a key of its own."""
    first, number = incident["first_signal"], incident["number"]
    delay = incident["detected_step"] - incident["onset_step"]
    z = figure(incident["evidence"]["worst_z"].get(first["signal"]), 3)
    said = f"SPIKE {incident['id']}, {incident['title']}: {first['signal']} left its baseline first"
    said += f", at step {first['step']} (z {z}); seen {delay} step{'' if delay == 1 else 's'}"
    yield ("opened", number), [f"{said} after onset at step {incident['onset_step']}"]
    kind = None
    for each in sorted(incident["revisions"], key=itemgetter("number")):
        if each["kind"] != kind:
            kind, sure = each["kind"], f"{each['confidence']:.0%}"
            said = f"  kind at step {each['step']}: {kind} ({sure}) - {each['reason']}"
            yield ("kind", number, each["number"]), [said]
    for command in sorted(incident["commands"], key=itemgetter("number")):
        name, state = command["id"], command["state"]
        if state != "proposed":
            yield (name, state), [_state_words(command)]
            continue
        yield (
            (name, command["revision"]),
            [
                f"PROPOSED {name}: {command_words(command)}",
                f"  why:   {command['reason']}",
                f"  costs: {cost_words(command['cost'])}",
            ],
        )
    if incident["state"] == "closed":
        closed = f"CLOSED {incident['id']} at step {incident['closed_step']}"
        said = f"{incident['outcome']}, {incident['kind']} - {incident['reason']}"
        yield ("closed", number), [f"{closed}: {said}"]


def _state_words(command: dict[str, Any]) -> str:
    state = command["state"].upper()
    name = f"{command['id']} ({command_words(command)})"
    if command["state"] in ("approved", "rejected"):
        return f"{state} {name} by {command['decided_by']}"
    if command["state"] == "applied":
        return f"{state} {name} at step {command['applied_step']}: {command['result']}"
    told = ("judgement", "result", "end_reason", "decision_reason")
    detail = next((command[name] for name in told if command.get(name)), None)
    return f"{state} {name}" + (f": {detail}" if detail else "")


def undecided(incidents: Sequence[dict[str, Any]], step: int, fault_step: int) -> bool:
    """Whether the run has to go on for the story's sake: the fault was not seen yet, or an
    incident is open and nobody has said no to what was proposed."""
    if not incidents:
        return step < fault_step + SEEN_STEPS
    return any(i["state"] != "closed" and _refusal(i) is None for i in incidents)


def _refusal(incident: dict[str, Any]) -> dict[str, Any] | None:
    """The newest command that a person rejected, or that ran out with nobody deciding."""
    commands = [c for c in incident["commands"] if c["verb"] != "watch"]
    ended = [c for c in commands if c["state"] in ("rejected", "expired")]
    waiting = any(c["state"] == "proposed" for c in commands)
    return None if waiting or not ended else ended[-1]


def ending(incidents: Sequence[dict[str, Any]], status: int | None) -> tuple[list[str], bool]:
    """How it all ended, in words, and whether that is an end to be content with: no harm is left,
    or a person wanted it so."""
    lines = [f"training ended with status {status}"]
    if not incidents:
        lines.append(
            "no incident was opened: the fault did not move the run out of its usual range, or "
            "the server took nothing in (server.log and run/trainer.log in the demo's folder)"
        )
    lines += [f"{incident['id']}: {_ending_words(incident)}" for incident in incidents]
    content = [
        i["outcome"] in GOOD or any(c["state"] == "rejected" for c in i["commands"])
        for i in incidents
    ]
    return lines, status == 0 and bool(incidents) and all(content)


def _ending_words(incident: dict[str, Any]) -> str:
    """The outcome, and what became of the last command that was to change the run."""
    outcome = incident["outcome"]
    said = OUTCOME_WORDS[Outcome(outcome)] if outcome else "still open"
    acting = [c for c in incident["commands"] if c["verb"] != "watch"]
    if not acting:
        return said
    last = acting[-1]
    by = f", decided by {last['decided_by']}" if last["decided_by"] else ""
    return f"{said}; {command_words(last)}: {state_words(last['state'])}{by}"
