"""`spikeguard followup`: list what an incident gives reason to do, add to it, tick it off."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, print_json
from spikeguard_cli.wording import table
from spikeguard_protocol import FollowupState, IncidentId
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.paths import incident_path

STATES = {
    "done": FollowupState.DONE,
    "drop": FollowupState.DROPPED,
    "reopen": FollowupState.OPEN,
}
HEAD = ("", "follow-up", "owner", "state")


def followup(options: Namespace) -> int:
    """List, add or change."""
    incident = IncidentId.parse(options.id)
    api = Api(load_credentials())
    path = f"{incident_path(incident)}/followups"
    if options.number is not None:
        return _change(api, path, options)
    if options.add is not None:
        made = api.post(path, {"text": options.add, "owner": options.owner})
        return _told(options, made, f"Follow-up {made['number']} of {incident}: {made['text']}")
    if _changes(options):
        raise CommandFailed(f"name the follow-up: spikeguard followup '{incident}' NUMBER --done")
    return _list(api, path, incident, options)


def _list(api: Api, path: str, incident: IncidentId, options: Namespace) -> int:
    found: list[dict[str, Any]] = api.get(path)["items"]
    if options.json:
        print_json(found)
        return 0
    rows = [[str(f["number"]), f["text"], f["owner"] or "nobody", f["state"]] for f in found]
    print(table(HEAD, rows) if rows else f"Nothing is to be done because of {incident}.")
    return 0


def _change(api: Api, path: str, options: Namespace) -> int:
    changes = _changes(options)
    if options.add is not None or not changes:
        raise CommandFailed("say what becomes of it: --done, --drop, --reopen, --owner, --text")
    found: list[dict[str, Any]] = api.get(path)["items"]
    now = next((each for each in found if each["number"] == options.number), None)
    if now is None:
        known = ", ".join(str(each["number"]) for each in found) or "none"
        raise CommandFailed(f"{options.id} has no follow-up {options.number}; it has {known}")
    made = api.post(f"{path}/{options.number}", {"revision": now["revision"], **changes})
    owner = made["owner"] or "nobody"
    return _told(options, made, f"{made['number']}, {made['state']}, {owner}: {made['text']}")


def _changes(options: Namespace) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if options.to is not None:
        changes["state"] = STATES[options.to].value
    if options.text is not None:
        changes["text"] = options.text
    if options.nobody:
        changes["nobody"] = True
    elif options.owner is not None and options.add is None:
        changes["owner"] = options.owner
    return changes


def _told(options: Namespace, answer: dict[str, Any], said: str) -> int:
    if options.json:
        print_json(answer)
    else:
        say(printable(said))
    return 0


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} is no follow-up: give its number, 1 or more")
    return int(text)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 (quote it)")
    parser.add_argument(
        "number", metavar="NUMBER", nargs="?", type=_number,
        help="the follow-up to change; left out: list them",
    )  # fmt: skip
    parser.add_argument("--add", metavar="TEXT", help="add one: what is to be done")
    to = parser.add_mutually_exclusive_group()
    to.add_argument("--done", dest="to", action="store_const", const="done", help="tick it off")
    to.add_argument(
        "--drop", dest="to", action="store_const", const="drop", help="decide against it"
    )
    to.add_argument("--reopen", dest="to", action="store_const", const="reopen", help="open again")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--owner", metavar="NAME", help="whose it is")
    whose.add_argument("--nobody", action="store_true", help="take it from whoever has it")
    parser.add_argument("--text", metavar="TEXT", help="change its text")
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    Command("followup", "follow-ups of an incident: list, add, tick off", followup,
            _options),
)  # fmt: skip
