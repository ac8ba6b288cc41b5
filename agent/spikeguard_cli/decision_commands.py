"""The commands by which a person answers what an incident proposes: approve and reject.

What is signed is built from what was printed, and printed before anybody is asked.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from spikeguard_cli.api import Api, Refused
from spikeguard_cli.command import Changed, Command, CommandFailed
from spikeguard_cli.credentials import (
    load_credentials,
)
from spikeguard_cli.options import (
    json_option,
    told,
)
from spikeguard_cli.order_signing import as_ordered, left_s, order_of, signature_of
from spikeguard_cli.orders import (
    add_order_options,
    edited_body,
    edits,
    options_of,
    planned_lines,
    seen_of,
    send_order,
)
from spikeguard_cli.wording import (
    approved_words,
    proposal_words,
    signed_words,
)
from spikeguard_protocol import (
    BY_RESTART,
    CommandId,
    IncidentId,
)
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.order_signature import Signed
from spikeguard_protocol.paths import command_path, incident_path, run_path


def approve(options: Namespace) -> int:
    """Approve the proposal that the person has seen."""
    api = Api(load_credentials())
    command = _proposed(api, options.id)
    if edits(options):
        return _edit_and_approve(api, command, options)
    order = order_of(command) if options.order_key else None
    restart = _goes_by_restart(api, command)
    seen_by = sys.stderr if options.json else sys.stdout
    print(_shown(command, order, restart=restart), file=seen_by)
    revision = options.revision or command["revision"]
    seen = options.revision and order is None  # elsewhere; what is signed is what stands here
    if not (options.yes or seen or _agrees("Approve this?")):
        print("Nothing was approved.", file=seen_by)
        return 1
    body: dict[str, Any] = {"revision": revision}
    if order is not None:
        body["signature"] = signature_of(order, left_s(command), Path(options.order_key))
    done = _decide(api, CommandId.parse(command["id"]), "approve", body)
    return told(options, done, approved_words(done, restart=restart))


def _shown(command: dict[str, Any], order: Signed | None, *, restart: bool) -> str:
    """What a person is asked to say yes to."""
    lines = [proposal_words(command)]
    if order is not None:
        lines.append(signed_words(order, left_s(command)))
    if restart:
        lines.append(
            "  restart: the job ends when it is told, and carries this out once it is restarted"
        )
    return "\n".join(lines)


def _edit_and_approve(api: Api, command: dict[str, Any], options: Namespace) -> int:
    """Order the proposal with other arguments, in its place and by one act."""
    screen = sys.stderr if options.json else sys.stdout
    print(proposal_words(command), file=screen)
    if not options.reason:
        raise CommandFailed("say why you change it: --reason; the record keeps it")
    run = CommandId.parse(command["id"]).incident.run
    offered = options_of(api, run)
    body = edited_body(command, options, offered)
    print("Changed to:", file=screen)
    for line in planned_lines(body, offered):
        print(line, file=screen)
    if not (options.yes or _agrees("Approve this?")):
        print("Nothing was approved.", file=screen)
        return 1
    made = send_order(api, run, body, options, seen_of(command, options.revision))
    if made["state"] == "proposed" and options.order_key:
        order = as_ordered(made, run, body, offered)
        print(signed_words(order, left_s(made)), file=screen)
        signature = signature_of(order, left_s(made), Path(options.order_key))
        said = {"revision": made["revision"], "signature": signature}
        made = _decide(api, CommandId.parse(made["id"]), "approve", said)
    return told(options, made, approved_words(made, restart=_goes_by_restart(api, made)))


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
    done = _decide(api, CommandId.parse(command["id"]), "reject", body)
    return told(options, done, f"Rejected {command['id']}: {options.reason}")


def _decide(api: Api, command: CommandId, verdict: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        done: dict[str, Any] = api.post(f"{command_path(command)}/{verdict}", body)
    except Refused as refusal:
        if refusal.code != "revision_changed":
            raise
        current = refusal.body["current"]
        raise Changed(
            "The proposal has changed meanwhile; nothing was done. It now reads:\n"
            f"{proposal_words(current)}\n"
            f"Look at it and decide again: spikeguard show '{command.incident}'"
        ) from refusal
    return done


def _proposed(api: Api, text: str) -> dict[str, Any]:
    """The command that `text` names: itself, or what its incident proposes now."""
    if "." in text.rpartition("#")[2]:
        command = CommandId.parse(text)
        found: list[dict[str, Any]] = api.get(incident_path(command.incident))["commands"]
        for entry in found:
            if entry["number"] == command.number:
                return _of_incident(command.incident, entry)
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
    return _of_incident(incident, proposal)


def _of_incident(incident: IncidentId, command: dict[str, Any]) -> dict[str, Any]:
    """`command`, where it is one of `incident`: nobody decides on what they did not name."""
    if CommandId.parse(command["id"]).incident != incident:
        told = printable(str(command["id"]))[:200]
        raise CommandFailed(f"asked for {incident}, the server answered with {told}: nothing done")
    return command


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed("nobody is at a terminal to be asked: give --yes, or --revision N")
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def _decision_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 or command RUN#3.1 (quote it)")
    parser.add_argument("--revision", type=int, help="the revision you have seen")
    json_option(parser)


def _approve_options(parser: ArgumentParser) -> None:
    _decision_options(parser)
    parser.add_argument(
        "--order-key", metavar="FILE",
        help="sign the order with the first key in FILE, for a job that asks for it",
    )  # fmt: skip
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


COMMANDS: tuple[Command, ...] = (
    Command(
        "approve",
        "approve what an incident proposes, as it is or changed",
        approve,
        _approve_options,
    ),
    Command("reject", "reject what an incident proposes, with a reason", reject, _reject_options),
)
