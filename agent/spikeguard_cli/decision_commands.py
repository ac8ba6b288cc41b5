"""The commands by which a person answers an incident: ack, approve and reject."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from spikeguard_cli.api import Api, Refused
from spikeguard_cli.command import Changed, Command, CommandFailed, agrees, client_command
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, told
from spikeguard_cli.orders import (
    add_order_options,
    edited_body,
    edits,
    named,
    options_of,
    planned_lines,
    post_on_seen,
    seen_of,
    send_order,
)
from spikeguard_cli.wording import approved_words, proposal_words
from spikeguard_protocol import BY_RESTART, CommandId, IncidentId
from spikeguard_protocol.paths import command_path, incident_path, run_path

RESTART = "  restart: the job ends when it is told, and carries this out once it is restarted"


def approve(options: Namespace) -> int:
    """Approve the proposal that the person has seen, as it is, or changed by one act."""
    api = Api(load_credentials())
    command = _proposed(api, options.id)
    screen, changed = sys.stderr if options.json else sys.stdout, edits(options)
    print(proposal_words(command), file=screen)
    run = CommandId.parse(command["id"]).incident.run
    body: dict[str, Any] = {"revision": options.revision or command["revision"]}
    if changed:
        if not options.reason:
            raise CommandFailed("say why you change it: --reason; the record keeps it")
        offered = options_of(api, run)
        body = edited_body(command, options, offered)
        print("Changed to:", *planned_lines(body, offered), sep="\n", file=screen)
    restart = _goes_by_restart(api, {**command, **body})
    if restart:
        print(RESTART, file=screen)
    seen = options.revision and not changed
    if not (options.yes or seen or agrees("Approve this?")):
        print("Nothing was approved.", file=screen)
        return 1
    if changed:
        done = send_order(api, run, body, options, seen_of(command, options.revision))
    else:
        done = post_on_seen(api, f"{command_path(CommandId.parse(command['id']))}/approve", body)
    return told(options, done, approved_words(done, restart=restart))


def _goes_by_restart(api: Api, command: dict[str, Any]) -> bool:
    """Whether a framework owns the run's loop, so that a rollback waits for the next start."""
    if command["verb"] != "rollback":
        return False
    try:
        run = api.get(run_path(CommandId.parse(command["id"]).incident.run))
    except Refused:
        return False
    attempts: list[dict[str, Any]] = run.get("attempts", [])
    rows = max(attempts, key=lambda a: int(a["number"]))["abilities"] if attempts else []
    return any(row["name"] == "rollback" and row["cost"] == BY_RESTART for row in rows)


def reject(options: Namespace) -> int:
    """Reject the current proposal, for a reason that the record keeps."""
    api = Api(load_credentials())
    command = _proposed(api, options.id)
    body = {"revision": options.revision or command["revision"], "reason": options.reason}
    done = post_on_seen(api, f"{command_path(CommandId.parse(command['id']))}/reject", body)
    return told(options, done, f"Rejected {command['id']}: {options.reason}")


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


def _proposed(api: Api, text: str) -> dict[str, Any]:
    """The command that `text` names: itself, or what its incident proposes now."""
    if "." in text.rpartition("#")[2]:
        command = CommandId.parse(text)
        found: list[dict[str, Any]] = api.get(incident_path(command.incident))["commands"]
        for entry in found:
            if entry["number"] == command.number:
                return named(command.incident, entry)
        raise CommandFailed(
            f"{command.incident} has no command {command.number}: "
            f"spikeguard show '{command.incident}'"
        )
    incident = IncidentId.parse(text)
    proposal: dict[str, Any] | None = api.get(incident_path(incident))["proposal"]
    if proposal is None:
        raise Changed(
            f"{incident} proposes nothing at present: "
            f"`spikeguard show '{incident}'` says what was done"
        )
    return named(incident, proposal)


def _decision_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 or command RUN#3.1 (quote it)")
    parser.add_argument("--revision", type=int, help="the revision you have seen")
    json_option(parser)


def _approve_options(parser: ArgumentParser) -> None:
    _decision_options(parser)
    parser.add_argument(
        "--yes", action="store_true", help="approve what is proposed now, without asking"
    )
    add_order_options(parser)
    parser.add_argument("--no-skip", action="store_true", help="leave no batches out")
    parser.add_argument("--reason", help="why you change it; the record keeps it")
    parser.set_defaults(within=600.0)


def _reject_options(parser: ArgumentParser) -> None:
    _decision_options(parser)
    parser.add_argument("--reason", required=True, help="why; the record keeps it")


def _ack_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 (quote it)")
    parser.add_argument("--undo", action="store_true", help="take the acknowledgement back")
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    client_command("ack", "acknowledge an incident: you look at it", ack, _ack_options),
    client_command(
        "approve",
        "approve what an incident proposes, as it is or changed",
        approve,
        _approve_options,
    ),
    client_command(
        "reject", "reject what an incident proposes, with a reason", reject, _reject_options
    ),
)
