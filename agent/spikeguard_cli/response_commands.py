"""The commands by which people share an incident: ack, assign, comment."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, told
from spikeguard_protocol import IncidentId
from spikeguard_protocol.paths import incident_path


def ack(options: Namespace) -> int:
    """Say that you look at an incident, or take that back."""
    incident = IncidentId.parse(options.id)
    api, path = Api(load_credentials()), f"{incident_path(incident)}/acknowledgement"
    found = json.loads(api.delete(path)) if options.undo else api.post(path, {})
    by = found["acknowledged_by"]
    if by is None:
        return told(options, found, f"Nobody looks at {incident} now; it is escalated as before.")
    return told(
        options, found,
        f"{incident} is acknowledged by {by}: it is not escalated, and nobody is told again of "
        "what stands. What is proposed waits, and expires as before.",
    )  # fmt: skip


def assign(options: Namespace) -> int:
    """Make an incident somebody's: yours, where nobody is named."""
    incident = IncidentId.parse(options.id)
    if options.nobody and options.name is not None:
        raise CommandFailed("--nobody takes no name: give one of them")
    api = Api(load_credentials())
    name = None if options.nobody else options.name or _me(api)
    found = api.post(f"{incident_path(incident)}/assignee", {"assignee": name})
    return told(options, found, f"{incident} is {found['assignee'] or 'nobody'}'s now.")


def comment(options: Namespace) -> int:
    """Say something of an incident; its post-mortem keeps it."""
    incident = IncidentId.parse(options.id)
    path = f"{incident_path(incident)}/comments"
    made = Api(load_credentials()).post(path, {"text": options.text})
    return told(options, made, f"Kept with {incident}, and in its post-mortem.")


def _me(api: Api) -> str:
    name: str | None = api.get("/v1/me")["name"]
    if name is None:
        raise CommandFailed("your token names nobody: give a name, or sign in with yours")
    return name


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 (quote it)")
    json_option(parser)


def _ack_options(parser: ArgumentParser) -> None:
    _options(parser)
    parser.add_argument("--undo", action="store_true", help="take the acknowledgement back")


def _assign_options(parser: ArgumentParser) -> None:
    _options(parser)
    parser.add_argument("name", metavar="NAME", nargs="?", help="a person (default: you)")
    parser.add_argument("--nobody", action="store_true", help="take it from whoever has it")


def _comment_options(parser: ArgumentParser) -> None:
    _options(parser)
    parser.add_argument("text", metavar="TEXT", help="what you found, did or leave to do")


COMMANDS: tuple[Command, ...] = (
    Command("ack", "acknowledge an incident: you look at it", ack, _ack_options),
    Command("assign", "make an incident yours or somebody's", assign, _assign_options),
    Command("comment", "add a comment to an incident's record", comment, _comment_options),
)
