"""`spikeguard run` and `note`: have a run do something, of its own or in place of what is proposed;
tell of a change to it, or list what was told and found."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, agrees, client_command, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import (
    MOST_LIMIT,
    checked,
    chosen,
    json_option,
    lasting,
    limit_option,
    lines_option,
    most,
    print_entries,
    print_json,
    print_list,
    since_option,
    told,
)
from spikeguard_cli.orders import (
    VERBS,
    add_expect_options,
    add_order_options,
    expected,
    named,
    options_of,
    order_body,
    planned_lines,
    send_order,
)
from spikeguard_cli.wording import command_words, note_lines, state_words
from spikeguard_protocol import RUN_ITSELF, CommandId, IncidentId, RunId, Verb
from spikeguard_protocol.paths import command_path, incident_path, run_path
from spikeguard_protocol.phrases import duration_phrase

EVERY = "*"  # live runs, of a project in PROJECT/*
HEAD = ("ID", "ORDER", "STATE", "BY", "STEP", "SAID")


def order(options: Namespace) -> int:
    """Order something, answer what waits, or list what was ordered."""
    api = Api(load_credentials())
    project, _, name = options.run.rpartition("/")
    if name == EVERY:
        return _stop_every(api, project or None, options)
    run = RunId.parse(options.run)
    if options.what is None:
        return _list(api, run, options)
    if options.what in VERBS:
        if options.number is not None:
            raise CommandFailed(f"{options.what} takes no number")
        return _give(api, run, options)
    if options.number is None:
        raise CommandFailed(f"{options.what} which? spikeguard run {run} lists them with numbers")
    id = CommandId(IncidentId(run, RUN_ITSELF), options.number)
    return _reject(api, id, options)


def _give(api: Api, run: RunId, options: Namespace) -> int:
    verb, reason = VERBS[options.what], _reason(options)
    offered = options_of(api, run)
    body = order_body(verb.value, options, offered)
    planned = planned_lines(body, offered)
    if verb is not Verb.CHECKPOINT_NOW and not options.yes:
        for line in (*planned, *_in_place_of(api, run, offered)):
            print(line)
        if not agrees(f"Have {run} do this, on all ranks?"):
            print("Nothing was ordered.")
            return 1
    options.reason = reason
    made = send_order(api, run, body, options, offered)
    return _told(options, made)


def _stop_every(api: Api, project: str | None, options: Namespace) -> int:
    """Have each live run stop. Status 1 where one could not be ordered to; the others are."""
    if options.what != "stop":
        raise CommandFailed(f"'{options.run}' takes stop alone: name the run for anything else")
    options.reason = _reason(options)
    live = api.items("/v1/runs", sys.maxsize, state="live", project=project)
    runs = [RunId.parse(one["id"]) for one in live]
    say(f"{len(runs)} live: {', '.join(map(str, runs)) or 'nothing to stop'}", to_error=True)
    if runs and not options.yes and not agrees(f"Have {len(runs)} stop?"):
        print("Nothing was ordered.")
        return 1
    made, refused = [], 0
    for run in runs:
        try:
            made.append(send_order(api, run, {"verb": "stop"}, options, options_of(api, run)))
        except CommandFailed as failure:
            refused += 1
            say(f"{run} was not ordered to stop: {failure}", to_error=True)
    if options.json:
        print_json(made)
        return int(refused > 0)
    for one in made:
        _told(options, one)
    return int(refused > 0)


def _in_place_of(api: Api, run: RunId, offered: dict[str, Any]) -> list[str]:
    """What the order takes the place of, if anything is proposed."""
    if offered["command"] is None:
        return []
    incident = api.get(incident_path(IncidentId(run, offered["incident"])))
    found = (c for c in incident["commands"] if c["number"] == offered["command"])
    return [f"  in place of {one['id']}: {command_words(one)}" for one in found]


def _reject(api: Api, id: CommandId, options: Namespace) -> int:
    body = {"revision": _one(api, id)["revision"], "reason": _reason(options)}
    return _told(options, api.post(f"{command_path(id)}/reject", body))


def _one(api: Api, id: CommandId) -> dict[str, Any]:
    for found in api.items(f"{run_path(id.incident.run)}/commands", sys.maxsize):
        if found["number"] == id.number:
            return named(id, found)
    raise CommandFailed(f"there is no {id}: spikeguard run {id.incident.run} lists those there are")


def _told(options: Namespace, made: dict[str, Any]) -> int:
    what, id = command_words(made), CommandId.parse(made["id"])
    said = f"{id} is {state_words(made['state'])}: {what}."
    if made["state"] in ("approved", "delivered"):
        follow = f"run {id.incident.run}" if id.of_run else f"show '{id.incident}'"
        left = duration_phrase(made["expires_in_s"])
        said = f"Ordered {id}: {what}. The job has {left} to fetch it; spikeguard {follow}"
    return told(options, made, said)


def _list(api: Api, run: RunId, options: Namespace) -> int:
    found = list(api.items(f"{run_path(run)}/commands", options.limit or MOST_LIMIT))
    nothing = f"Nothing was ordered of {run} itself; of its incidents: spikeguard show {run}"
    return print_list(options, found, HEAD, _row, nothing)


def _row(one: dict[str, Any]) -> list[str]:
    return [
        one["id"], command_words(one), state_words(one["state"]) or "-",
        one["decided_by"] or one["proposed_by"] or "-",
        "-" if one["applied_step"] is None else str(one["applied_step"]),
        one["result"] or one["end_reason"] or "-",
    ]  # fmt: skip


def _reason(options: Namespace) -> str:
    if not options.reason:
        raise CommandFailed("say why: --reason; the record keeps it")
    return str(options.reason)


def note(options: Namespace) -> int:
    """Write a note, or print those there are."""
    run = RunId.parse(options.run)
    api = Api(load_credentials())
    if options.text is None:
        return _list_notes(api, run, options)
    why = {"reason": options.why} if options.why else {}
    body = {"text": options.text, "step": options.step, **expected(options), **why}
    made = api.post(f"{run_path(run)}/notes", body)
    said = f"Note {made['number']} of {run} at step {made['step']:,}: {made['outcome']}."
    return told(options, made, said)


def _list_notes(api: Api, run: RunId, options: Namespace) -> int:
    if options.step is not None or options.expect or options.by is not None or options.why:
        raise CommandFailed("a note needs its text: spikeguard note RUN 'what was changed'")
    found = chosen(options, api.items(f"{run_path(run)}/notes", most(options)), "at")
    if print_entries(options, found):
        return 0
    lines = [line for one in found for line in note_lines(one)]
    print("\n".join(lines) if lines else "Nobody told of a change, and no attempt began with one.")
    return 0


_number = checked(int, lambda n: 0 < n <= MOST_LIMIT, "is no number of a command: give 1 or more")


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="NAME or PROJECT/NAME; with stop '*' or 'PROJECT/*': all live"
    )
    parser.add_argument(
        "what", nargs="?", choices=(*VERBS, "reject"),
        help="what to order; reject: take back what is not fetched; left out: list the orders",
    )  # fmt: skip
    parser.add_argument(
        "number", metavar="N", nargs="?", type=_number, help="reject: the N of RUN#0.N"
    )
    add_order_options(parser)
    parser.add_argument("--reason", help="why; the record keeps it")
    parser.add_argument(
        "--within", type=lasting, default=600.0, metavar="TIME",
        help="void if the job has not fetched it by then: 90s, 10min (the default), 2h",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="do not ask")
    limit_option(parser)
    json_option(parser)


_step = checked(int, lambda n: n >= 0, "is no step: give 0 or more")


def _note_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="what was changed; left out: list the notes"
    )
    parser.add_argument(
        "--step", type=_step, help="the last step before the change (default: the run's newest)"
    )
    parser.add_argument("--why", help="why it was changed")
    add_expect_options(parser)
    limit_option(parser)
    since_option(parser)
    lines_option(parser)


COMMANDS: tuple[Command, ...] = (
    client_command(
        "run", "have a run roll back, skip, save, stop; list what was ordered", order, _options
    ),
    client_command(
        "note", "report a change to a run, or list changes with their effect", note, _note_options
    ),
)
