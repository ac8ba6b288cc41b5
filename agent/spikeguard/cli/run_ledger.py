"""What was done to a run, from the journal in its directory; reads only, and needs no server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spikeguard.cli.sync import homes
from spikeguard.commands.line_files import read_lines
from spikeguard_cli.command import CommandFailed, say
from spikeguard_protocol import CommandResult, from_json, verb_of
from spikeguard_protocol.orders import Action

Entry = dict[str, Any]  # with the keys of the API's `LedgerEntry`
_EMPTY: Entry = dict.fromkeys(
    (
        "kind", "at", "command", "attempt", "segment", "step", "verb", "arguments", "state",
        "reason", "result", "finished_at", "batches", "rank", "names", "names_cut",
    )
)  # fmt: skip


def read_ledger(directory: Path) -> list[Entry]:
    """The entries of the one run at or below `directory`, newest first; raise `CommandFailed`."""
    found = homes(directory)
    if len(found) > 1:
        named = ", ".join(map(str, found[:8]))
        raise CommandFailed(f"{directory} holds {len(found)} runs: name one of {named}")
    if not found:
        raise CommandFailed(f"{directory} holds no journal.jsonl. Give the run's directory")
    [home] = found
    commands = _commands(home / "journal.jsonl").values()
    return sorted(commands, key=lambda entry: entry["at"] or "", reverse=True)


def _commands(journal: Path) -> dict[str, Entry]:
    """By id, oldest first."""
    found: dict[str, Entry] = {}
    for number, plain in _sound_lines(journal):
        try:
            _take_up(found, plain)
        except (KeyError, ValueError, TypeError) as error:
            raise CommandFailed(
                f"line {number} of {journal} is damaged ({type(error).__name__}: {error}). Restore "
                "the file from a copy, or remove that line"
            ) from error
    return found


def _take_up(found: dict[str, Entry], plain: Mapping[str, Any]) -> None:
    if plain.get("entry") == "begun":
        found[plain["command"]] = _begun(plain)
    elif plain.get("entry") == "result":
        result = from_json(CommandResult, plain["result"])
        entry = found.setdefault(result.command, _command(result.command, plain, result.step))
        entry |= {
            "state": result.state.value,
            "result": result.reason,
            "finished_at": _time(plain),
        }


def _sound_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Those that are as they were written; what is wrong with the others is said."""
    lines = read_lines(path)
    if lines.damage is not None:
        say(f"spikeguard: {path} {lines.damage}", to_error=True)
    return (each for each in lines.entries if each[0] not in lines.changed)


def _begun(plain: Mapping[str, Any]) -> Entry:
    entry = _command(plain["command"], plain, plain["step"])
    if entry["arguments"] is None and plain["skip"]:  # of a release that did not say more
        entry["arguments"] = {"skip": plain["skip"]}
    return entry


def _command(command: str, plain: Mapping[str, Any], step: int) -> Entry:
    action = plain.get("action")
    said: Entry = {"kind": "command", "at": _time(plain), "command": command, "step": step}
    if action is not None:
        said["verb"] = verb_of(from_json(Action, action)).value
        said["arguments"] = {k: _range(value) for k, value in action.items() if k != "type"}
    return {**_EMPTY, **said, "attempt": plain.get("attempt"), "state": "begun"}


def _range(value: Any) -> Any:
    """A range as `[a, b]`, anything else as it is."""
    is_range = isinstance(value, dict) and value.get("type") == "BatchRange"
    return [value["first"], value["end"]] if is_range else value


def _time(plain: Mapping[str, Any]) -> str | None:
    """When a line of the journal was written; None where its release did not say."""
    at = plain.get("at")
    return _written(at) if isinstance(at, int | float) else None


def _written(at: float) -> str:
    """RFC 3339 in UTC, as the API writes it."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
