"""`spikeguard journal`: what the run's journal holds, and how a person takes an order back.

The journal itself is only read: what is undone stands in a file of its own beside it, so a job that
writes its journal is never disturbed. The next start reads both.
"""

from __future__ import annotations

import getpass
import json
import time
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spikeguard.cli.sync import homes, run_of
from spikeguard.commands.journal import UNDONE, Journal, Undo, add_undo
from spikeguard.errors import AttachError
from spikeguard.uplink.outbox import live_attempts
from spikeguard_cli.command import CommandFailed, say
from spikeguard_cli.options import chosen, print_entries, told
from spikeguard_cli.wording import table
from spikeguard_protocol import Action, ProtocolError, ResultState, action_words, from_json
from spikeguard_protocol.escaping import printable

HEAD = ("AT", "STEP", "ORDER", "WHAT", "STATE", "WHAT HOLDS AT THE NEXT START")


def journal(options: Namespace) -> int:
    """List the orders of the run in `options.directory`, or take one back."""
    home = _home(Path(options.directory))
    held = _read(home)
    if options.undo is not None:
        return _undo(home, held, options)
    orders = [_order(held, command) for command in reversed(list(held.ordered))]
    orders = list(chosen(options, orders, "at", ordered=False))
    if print_entries(options, orders):
        return 0
    say(f"run {run_of(home)}, {home}")
    print(table(HEAD, [_row(order) for order in orders]) if orders else "Nothing was ordered.")
    return 0


def _home(directory: Path) -> Path:
    found = homes(directory)
    if len(found) > 1:
        named = ", ".join(map(str, found[:8]))
        raise CommandFailed(f"{directory} holds {len(found)} runs: name one of {named}")
    return found[0]


def _read(home: Path) -> Journal:
    path = home / "journal.jsonl"
    try:
        held = Journal(None, run_of(home))
        held.read(path, None)
    except AttachError as error:
        raise CommandFailed(f"{printable(error.problem)}. {error.remedy}") from error
    if torn := held.cut_short:
        lines = ", ".join(map(str, torn[:8]))
        count = f"{len(torn)} lines of {path} were" if len(torn) > 1 else f"1 line of {path} was"
        say(f"spikeguard: {count} cut short and count for nothing: {lines}", to_error=True)
    for damage in held.damage:
        say(f"spikeguard: {damage}", to_error=True)
    return held


def _order(held: Journal, command: str) -> dict[str, Any]:
    """One entry of the list, as plain values."""
    entry, result, undo = held.plain[command], held.results.get(command), held.undone.get(command)
    return {
        "command": command,
        "at": _time(entry.get("at")),
        "attempt": entry.get("attempt"),
        "step": held.ordered[command].step,
        "action": entry.get("action"),
        "state": result.state.value if result is not None else "begun",
        "result": result.reason if result is not None else None,
        "undone_at": _time(undo.at) if undo is not None else None,
        "undone_by": undo.by if undo is not None else None,
        "holds": list(_effects(held, command)),
    }


def _effects(held: Journal, command: str) -> Iterator[str]:
    """What of `command` a start repeats."""
    begun = held.ordered[command]
    if begun.skip is not None:
        yield f"leaves out batches {begun.skip}"
    for each in begun.abandoned:
        steps = f"the steps after {each.after}" if each.after >= 0 else "all"
        segment = f"{each.segment.attempt[:8]}.{each.segment.number}"
        yield f"{steps} of segment {segment} stay abandoned"
    newest = held.scaling_since(None)
    if newest is not None and newest.command == command and newest.scale is not None:
        until = newest.scale.start + newest.scale.steps
        yield f"learning rate x{newest.scale.factor:g} until step {until}"
    if (applying := begun.applying) is not None and held.wants(applying):
        yield f"mitigation {applying.name} from step {applying.start + 1} to {applying.end}"


def _row(order: dict[str, Any]) -> list[str]:
    if order["undone_at"] is not None:
        holds = f"nothing: undone by {order['undone_by']} on {order['undone_at']}"
    else:
        holds = "; ".join(order["holds"]) or "-"
    cells = (order["at"] or "-", order["step"], order["command"], _words(order), order["state"])
    return [*map(str, cells), holds]


def _words(order: dict[str, Any]) -> str:
    try:
        return action_words(from_json(Action, order["action"])) if order["action"] else "-"
    except ProtocolError:  # of a newer release
        return json.dumps(order["action"])


def _undo(home: Path, held: Journal, options: Namespace) -> int:
    command = options.undo
    if (earlier := held.undone.get(command)) is not None:
        plain = _order(held, command) | {"undoes": []}
        said = f"{command} was undone already, by {earlier.by} on {_time(earlier.at)}"
        return told(options, plain, said)
    if command not in held.ordered:
        raise CommandFailed(_why_not(held, command))
    effects = list(_effects(held, command))
    if not effects:
        raise CommandFailed(f"{command} left nothing that a start would repeat: nothing to undo")
    add_undo(home / UNDONE, Undo(command, time.time(), getpass.getuser()))
    if options.json or options.jsonl:
        return told(options, _order(_read(home), command) | {"undoes": effects}, "")
    say(f"{command} is undone from the next start of the run on. It no longer holds that it:")
    for effect in effects:
        say(f"  {effect}")
    for attempt in live_attempts(home / "outbox"):
        say(f"Attempt {attempt} is running here: it goes on as it is until it is started again.")
    print(
        "An attempt that runs now, here or elsewhere, keeps to the order until it is started again."
        " Abandoned checkpoints that were removed meanwhile do not come back, and batches that the"
        " run has passed by are read again only where it resumes from before them."
    )
    return 0


def _why_not(held: Journal, command: str) -> str:
    result = held.results.get(command)
    if result is not None and result.state is ResultState.REFUSED:
        return f"{command} was refused ({printable(result.reason)}): there is nothing to undo"
    newest = ", ".join(list(held.ordered)[-8:]) or "none"
    return f"the journal holds no order {printable(command)!r}. Its newest: {printable(newest)}"


def _time(at: Any) -> str | None:
    """RFC 3339 in UTC; None where the entry does not say, or nothing that is a time."""
    if isinstance(at, bool) or not isinstance(at, int | float):
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None
