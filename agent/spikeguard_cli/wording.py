"""How API answers read in a terminal: tables and sentences. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from spikeguard_protocol.escaping import printable
from spikeguard_protocol.phrases import duration_phrase, order_phrase, paragraphs
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS, OUTCOME_WORDS


def number(value: float | str | None, digits: int = 4) -> str:
    """A measured value; the words for non-finite ones arrive as strings."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.{digits}g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Columns two spaces apart, to the left but those that are `numbers`. A cell wider than
    `WIDEST` stands out of its column: nothing else is filled up to it."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [min(WIDEST, max(len(row[i]) for row in (head, *rows))) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def run_row(run: dict[str, Any]) -> list[str]:
    """One line of `spikeguard runs`."""
    incident = run.get("open_incident")
    return [
        run["id"],
        run["state"],
        str(run["last_step"] if run["last_step"] is not None else "-"),
        number(run["last_loss"]),
        duration_phrase(run["age_s"]),
        f"#{incident}" if incident else "-",
        "yes" if run["waiting_approval"] else "look at the job" if run["look_at_job"] else "-",
    ]


RUN_HEAD = ("RUN", "STATE", "STEP", "LOSS", "AGE", "INCIDENT", "WAITS FOR YOU")


def incident_row(incident: dict[str, Any]) -> list[str]:
    """One line of `spikeguard incidents`."""
    return [
        incident["id"],
        (incident.get("outcome") or incident["state"]).replace("_", " "),
        f"{incident['title']} ({incident['confidence']:.0%})",
        str(incident["onset_step"]),
        number(incident["peak_loss"]),
    ]


def incident_table(incidents: Sequence[dict[str, Any]], jobs: Mapping[str, str]) -> str:
    """A line for each, and below those that need somebody what happened and what to do. `jobs`:
    what to look at, by the id of the incident, where a run's process may have died."""
    head, *rows = table(INCIDENT_HEAD, [incident_row(i) for i in incidents], (3, 4)).splitlines()
    lines = [head]
    for incident, row in zip(incidents, rows, strict=True):
        lines.append(row)
        for said in _needs(incident, jobs.get(incident["id"])):
            lines += _wrapped(said, "    ", "      ")
    return "\n".join(lines)


def _needs(incident: dict[str, Any], job: str | None) -> Iterator[str]:
    proposal = incident.get("proposal")
    if incident["state"] != "closed" and incident.get("summary"):
        yield f"{incident['summary']}."
    if proposal is not None and proposal["verb"] != "watch":
        yield f"Decide {proposal['id']}: {command_words(proposal)}"
    if job:
        yield job


NOTES = 3  # of a run, on its card
COMMENTS = 3  # of an incident, the newest, on its card
LABELS = 9  # columns of the labels of a card


def incident_card(incident: dict[str, Any]) -> list[str]:
    """An incident for whoever was just woken: what, cause, what to do, at what cost, how."""
    lines = [
        *_said("", f"{incident['id']}: {incident['title']} ({incident['confidence']:.0%})"),
        *_said("", f"{incident['summary']}."),
        *_said("", incident["cause"]),
        *_said("before", "; ".join(tally["words"] for tally in incident.get("precedents", []))),
        *(line for said in _response_words(incident) for line in _said("people", said)),
    ]
    proposal = incident["proposal"]
    if proposal is not None:
        return [*lines, *_proposal_card(incident["id"], proposal)]
    over = incident["state"] == "closed"
    if done := [one for one in incident["commands"] if one["verb"] != "watch" or not over]:
        newest = done[-1]
        lines += _said("done", f"{command_words(newest)}: {state_words(newest['state'])}")
        lines += _said("effect", newest["effect"] or "")
    if over:
        known = {outcome.value: words for outcome, words in OUTCOME_WORDS.items()}
        lines += _said("ended", known.get(incident["outcome"], str(incident["outcome"])))
    if incident["has_postmortem"]:
        lines += _said("read", f"spikeguard postmortem '{incident['id']}'")
    return lines


def _response_words(incident: dict[str, Any]) -> list[str]:
    """Who looks at it and whose it is, then the newest comments."""
    by, whose = incident.get("acknowledged_by"), incident.get("assignee")
    had = [f"acknowledged by {by}"] if by else []
    had += [f"assigned to {whose}"] if whose else []
    said = [r for r in incident.get("responses", []) if r["action"] == "commented"]
    told = [f"{r['person']}: {r['text']}" for r in said[-COMMENTS:]]
    return [*([", ".join(had)] if had else []), *told]


def _proposal_card(incident: str, proposal: dict[str, Any]) -> list[str]:
    lines = [
        *_said("propose", command_words(proposal)),
        *_said("costs", cost_words(proposal["cost"])),
        *(line for check in proposal["checks"] for line in _said("check", check)),
        *_said("answer", f"within {duration_phrase(proposal['expires_in_s'])}"),
    ]
    return [
        *lines,
        printable(f"{'decide':<{LABELS}}spikeguard approve '{incident}'"),  # a line to copy
        printable(f"{'':<{LABELS}}spikeguard reject '{incident}' --reason WHY"),
    ]


def note_lines(note: dict[str, Any]) -> list[str]:
    """A change that nobody ordered here: what, by whom, and what became of the loss."""
    who = note["author"] if note["began"] is None else f"attempt {note['began']}"
    why = f" ({note['reason']})" if note["reason"] else ""
    asks = {None: "", "none": " Expected: no effect."}.get(note["expect"])
    if asks is None:
        size = "" if note["expect_size"] is None else f" by {note['expect_size']:g} nats"
        asks = f" Expected: {note['expect']}{size}."
    said = f"{note['number']}, step {note['step']:,}, {who}: {note['text']}{why}.{asks}"
    return _said("note", f"{said} {_sentence(note['outcome'])}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def run_card(run: dict[str, Any]) -> list[str]:
    """A run: state, step, loss; then what needs somebody."""
    step = "no step yet" if run["last_step"] is None else f"step {run['last_step']:,}"
    age = "" if run["age_s"] is None else f", heard {duration_phrase(run['age_s'])} ago"
    lines = _said("", f"{run['id']}: {run['state']}{age}, {step}, loss {number(run['last_loss'])}")
    if run["open_incident"]:
        asks = ", waits for your decision" if run["waiting_approval"] else ""
        lines += _said("", f"open: '{run['id']}#{run['open_incident']}'{asks}")
    lines += _said("", run["look_at_job"] or "")
    if run["live_attempts"] > 1:
        lines += _said("", f"{run['live_attempts']} attempts train at once: none gets an order.")
    return lines + [line for note in run.get("notes", [])[:NOTES] for line in note_lines(note)]


def quiet_lines(run: dict[str, Any]) -> list[str]:
    """That a run sends nothing, so that what is shown of it is old; empty where it does."""
    if not run["look_at_job"]:
        return []
    heard = f"{run['id']}: {run['state']}, heard {duration_phrase(run['age_s'])} ago"
    return [*_said("", heard), *_said("", run["look_at_job"]), ""]


def _said(label: str, text: str) -> list[str]:
    """Wrapped behind its label, or a sentence of its own; no line where nothing is said."""
    if not text:
        return []
    first = f"{label:<{LABELS}}" if label else ""
    rest = " " * LABELS if label else ""
    return _wrapped(text, first, rest)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return wrap(printable(text), WIDTH, initial_indent=first, subsequent_indent=rest)


AUDIT_HEAD = ("AT", "WHO", "WHAT", "SUBJECT", "STATE", "REASON")
INCIDENT_HEAD = ("INCIDENT", "STATE", "WHAT", "ONSET", "PEAK LOSS")
WIDTH = 80  # columns of what is wrapped
WIDEST = 120  # columns that a table fills up
SHORT_REASON = 60  # columns up to which a reason of the audit stands in its row


def audit_row(entry: dict[str, Any]) -> list[str]:
    """An entry of the record as a row under `AUDIT_HEAD`; what explains it at length is not in."""
    states = [str(state) for state in (entry["before"], entry["after"]) if state is not None]
    reason = audit_reason(entry)
    who = f"{entry['actor']}{' (name typed)' if entry['known_by'] == 'typed' else ''}"
    return [
        entry["at"], who, entry["action"], entry["subject"], " -> ".join(states),
        reason if len(reason) <= SHORT_REASON else "",
    ]  # fmt: skip


def audit_reason(entry: dict[str, Any]) -> str:
    """Why it was done, its paragraphs on one line."""
    return " ".join(paragraphs(entry["reason"] or "-"))


def audit_table(entries: Sequence[dict[str, Any]]) -> str:
    """The record as a table, under each entry a long reason and the settings that it changed."""
    head, *rows = table(AUDIT_HEAD, [audit_row(entry) for entry in entries]).splitlines()
    lines = [head]
    for entry, row in zip(entries, rows, strict=True):
        lines += [row.rstrip(), *_at_length(entry)]
        lines += [f"    {change_words(change)}" for change in entry["changes"]]
    return "\n".join(lines)


def _at_length(entry: dict[str, Any]) -> list[str]:
    reason, indent = audit_reason(entry), "    "
    if len(reason) <= SHORT_REASON:
        return []
    return wrap(printable(reason), WIDTH, initial_indent=indent, subsequent_indent=indent)


def change_words(change: dict[str, Any]) -> str:
    """`price_per_hour: 97.0 -> 98.0`; of what is secret only that it changed."""
    field, before, after = change["field"], change["before"], change["after"]
    if before == after:
        return printable(f"{field}: another one, not shown")
    return printable(f"{field}: {_setting(before)} -> {_setting(after)}")


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def state_words(state: str | None) -> str | None:
    """A command's state as every page says it; one of a newer server as it is."""
    known = {known.value: words for known, words in COMMAND_STATE_WORDS.items()}
    return state if state is None else known.get(state, state)


def command_words(command: dict[str, Any]) -> str:
    """`roll back to step 300, skip batches 310 to 329 (20)`, from a verb and its arguments."""
    return printable(order_phrase(str(command["verb"]), command["arguments"]))


def cost_words(cost: dict[str, Any]) -> str:
    """`costs 40 steps, 2.1 min, 12.00 USD`."""
    parts = [f"{cost['steps']} steps"]
    if cost["seconds"] is not None:
        parts.append(duration_phrase(cost["seconds"]))
    if cost.get("money") is not None:
        parts.append(f"{cost['money']:,.2f} {cost.get('currency') or 'in money'}")
    return ", ".join(parts) + waiting_words(cost)


def waiting_words(cost: dict[str, Any]) -> str:
    """What every further minute without a decision adds, and how it is reckoned."""
    words = ""
    if steps := cost.get("waiting_steps"):
        money = cost.get("waiting_money")
        more = "" if money is None else f", {money:,.2f} {cost.get('currency') or 'in money'}"
        words += f"; each minute of waiting adds {steps} steps{more}"
    elif steps is None:
        words += "; how many steps each minute of waiting adds is not known"
    if (pace := cost.get("step_time_s")) is not None:
        words += f" (at {pace:.3g} s a step, the median before it)"
    return words


def approved_words(command: dict[str, Any], *, restart: bool = False) -> str:
    """What an approval has led to; `restart`: the job carries it out when it is started again."""
    if restart:
        return (
            f"Approved: {command_words(command)}. The job ends at its next step boundary with exit "
            "status 76. Restart the job, as it was started, unless its launcher does: the new "
            "start goes on from there."
        )
    return (
        f"Approved: {command_words(command)}. The job applies it at its next step boundary, if it "
        f"still runs: spikeguard show '{command['id'].rpartition('.')[0]}' tells."
    )


def proposal_words(command: dict[str, Any]) -> str:
    """A proposal as a person reads it before deciding."""
    why = "\n         ".join(paragraphs(command["reason"]))
    lines = (
        f"{command['id']}, revision {command['revision']}: {command_words(command)}",
        *f"  why:   {why}".splitlines(),
        *(f"  check: {check}" for check in command["checks"]),
        f"  costs: {cost_words(command['cost'])}",
    )
    return "\n".join(map(printable, lines))
