"""What the API says about a run, told as it comes to be known. Pure: answers in, lines out.

Law: nothing is told twice and nothing is told that the API did not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spikeguard_cli.wording import command_words, cost_words, number

TOLD_OF = ("approved", "rejected", "delivered", "applied", "refused", "failed", "expired",
           "superseded", "withdrawn", "withdrawn_healed", "run_ended", "void", "undelivered",
           "halted", "unknown", "judged")  # fmt: skip


@dataclass
class Story:
    """What has been told of one run."""

    revisions: dict[int, int] = field(default_factory=dict)  # incident -> last revision told
    proposals: dict[str, int] = field(default_factory=dict)  # command -> last revision told
    states: dict[str, str] = field(default_factory=dict)  # command -> last state told
    closed: set[int] = field(default_factory=set)

    def tell(self, incident: dict[str, Any]) -> list[str]:
        """The lines that are new in `incident`, an `Incident` with its details."""
        lines = self._opening(incident) + self._kinds(incident)
        for command in sorted(incident["commands"], key=lambda command: int(command["number"])):
            lines += self._command(command)
        return lines + self._closing(incident)

    def _opening(self, incident: dict[str, Any]) -> list[str]:
        if incident["number"] in self.revisions:
            return []
        self.revisions[incident["number"]] = 0
        delay = incident["detected_step"] - incident["onset_step"]
        z = incident["evidence"]["worst_z"].get(incident["signal"])
        return [
            f"SPIKE {incident['id']}: {incident['signal']} left its baseline at step "
            f"{incident['onset_step']} (z {number(z, 3)}), seen {delay} "
            f"step{'' if delay == 1 else 's'} after onset"
        ]

    def _kinds(self, incident: dict[str, Any]) -> list[str]:
        told = self.revisions[incident["number"]]
        fresh = sorted(
            (r for r in incident["revisions"] if r["number"] > told), key=lambda r: int(r["number"])
        )
        if fresh:
            self.revisions[incident["number"]] = fresh[-1]["number"]
        return [
            f"  kind at step {r['step']}: {r['kind']} ({r['confidence']:.0%}) - {r['reason']}"
            for r in _turns(fresh)
        ]

    def _command(self, command: dict[str, Any]) -> list[str]:
        lines = []
        name, revision, state = command["id"], command["revision"], command["state"]
        if state == "proposed" and self.proposals.get(name) != revision:
            lines.append(f"PROPOSED {name}: {command_words(command)}")
            lines.append(f"  why:   {command['reason']}")
            lines.append(f"  costs: {cost_words(command['cost'])}")
            self.proposals[name] = revision
        if state in TOLD_OF and self.states.get(name) != state:
            lines.append(_state_words(command))
            self.states[name] = state
        return lines

    def _closing(self, incident: dict[str, Any]) -> list[str]:
        if incident["state"] != "closed" or incident["number"] in self.closed:
            return []
        self.closed.add(incident["number"])
        return [
            f"CLOSED {incident['id']} at step {incident['closed_step']}: {incident['outcome']}, "
            f"{incident['kind']} - {incident['reason']}"
        ]


def _turns(revisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a burst of revisions those where the kind changed, and the newest."""
    kept = [b for a, b in zip([None, *revisions], revisions, strict=False)
            if a is None or a["kind"] != b["kind"]]  # fmt: skip
    return kept if not revisions or kept[-1] is revisions[-1] else [*kept, revisions[-1]]


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
