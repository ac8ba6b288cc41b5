"""The commands that talk to a server: log in, look, decide, read the post-mortem."""

from __future__ import annotations

import getpass
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from spikeguard_cli.access_commands import COMMANDS as ACCESS
from spikeguard_cli.api import Api, Refused
from spikeguard_cli.command import Command, client_command, say
from spikeguard_cli.credentials import (
    Credentials,
    credentials_path,
    load_credentials,
    save_credentials,
)
from spikeguard_cli.decision_commands import COMMANDS as DECISIONS
from spikeguard_cli.options import (
    chosen,
    json_option,
    limit_option,
    lines_option,
    most,
    print_entries,
    print_json,
    print_list,
    since_option,
    told,
)
from spikeguard_cli.run_command import COMMANDS as RUN
from spikeguard_cli.show_commands import COMMANDS as SHOW
from spikeguard_cli.wording import RUN_HEAD, audit_table, incident_table, run_row
from spikeguard_protocol import IncidentId, RunId
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.paths import incident_path, run_path

MOST_RUNS = 20  # that a list of incidents asks about their jobs
FORMS = ("md", "html", "json")  # of a post-mortem


def login(options: Namespace) -> int:
    """Exchange a token for a session in a person's name and remember it."""
    server = options.server.rstrip("/")
    token = _given_token(options)
    session = _session(Api(Credentials(server, token)), token, options.name)
    path = credentials_path()
    save_credentials(Credentials(server, session["token"], session["name"]), path)
    kept = {"server": server, "credentials": str(path)}
    known = {name: session.get(name) for name in ("name", "role", "project")}
    said = f"Logged in at {server} as {session['name']} ({session['role']}); kept in {path}"
    return told(options, kept | known, said)


def _session(api: Api, token: str, name: str | None) -> dict[str, Any]:
    """A session; without a name in that of the token's person, else of the account."""

    def named(name: str) -> dict[str, Any]:
        return api.post("/v1/sessions", {"token": token, "name": name})

    try:
        return named(name or "")
    except Refused as refusal:
        if name or refusal.body.get("field") != "name":
            raise
        return named(getpass.getuser())


def runs(options: Namespace) -> int:
    """List runs: those with an open spike first, then those that go on."""
    asked: dict[str, Any] = {"project": options.project, "state": options.state}
    asked["sort"] = None if options.newest else "urgency"
    listed = Api(load_credentials()).items("/v1/runs", most(options) + 1, **asked)
    found = list(chosen(options, listed, "last_message_at", "created_at", ordered=False))
    print_list(options, found, RUN_HEAD, run_row, "No runs yet.")
    return _say_more(options, listed, "runs")


def incidents(options: Namespace) -> int:
    """List incidents: open ones first."""
    run = RunId.parse(options.run) if options.run else None
    wanted = f"{run.project}/{run.name}" if run else None
    states = [["open", "recovering"]] if options.open else [["open", "recovering"], ["closed"]]
    if options.newest and not options.open:
        states = [[]]
    api = Api(load_credentials())
    asked = {"run": wanted, "project": options.project}
    listed = chain.from_iterable(
        api.items("/v1/incidents", most(options) + 1, state=state, **asked) for state in states
    )
    found = list(chosen(options, listed, "opened_at", ordered=False))
    if options.json:
        print_json(found)
    else:
        print(incident_table(found, _jobs(api, found)) if found else "No incidents.")
    return _say_more(options, listed, "incidents")


def _say_more(options: Namespace, listed: Iterator[dict[str, Any]], what: str) -> int:
    """That a list was cut at `--limit`; `listed`: what is left of it."""
    if options.limit and options.since is None and next(listed, None) is not None:
        say(f"More {what} exist: --limit 0 lists them all.", to_error=True)
    return 0


def _jobs(api: Api, found: list[dict[str, Any]]) -> dict[str, str]:
    """What to look at of incidents whose run's process may have died, by their ids."""
    asked = [i for i in found if i["state"] != "closed" or i.get("outcome") == "run_ended"]
    wanted = {i["id"]: IncidentId.parse(i["id"]).run for i in asked}
    runs = list(dict.fromkeys(wanted.values()))[:MOST_RUNS]
    told = {run: _job(api, run) for run in runs}
    return {id: job for id, run in wanted.items() if (job := told.get(run))}


def _job(api: Api, run: RunId) -> str | None:
    try:
        job: str | None = api.get(run_path(run))["look_at_job"]
    except Refused:
        return None  # the run may have been deleted meanwhile; its incident is listed all the same
    return job


def audit(options: Namespace) -> int:
    """The record of a run, or of what belongs to none."""
    path = "/v1/audit"
    if options.run:
        path = f"{run_path(RunId.parse(options.run))}/audit"
    entries = Api(load_credentials()).items(path, most(options))
    shown = chosen(options, entries, "at")
    if print_entries(options, shown):
        return 0
    found = list(shown)
    print(audit_table(found) if found else "Nothing has happened yet.")
    return 0


def postmortem(options: Namespace) -> int:
    """Print or save the post-mortem of a closed incident."""
    incident = IncidentId.parse(options.id)
    path = f"{incident_path(incident)}/postmortem"
    form = "json" if options.json else options.format or _form_of(options.output)
    document = Api(load_credentials()).read(path, format=form)
    if options.output:
        Path(options.output).write_bytes(document)
        say(options.output)
        return 0
    text = document.decode()
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)
    return 0


def _form_of(output: str | None) -> str:
    """As the name of the file says; Markdown where nothing does."""
    suffix = Path(output or "").suffix.lstrip(".").lower()
    return suffix if suffix in FORMS else "md"


def delete(options: Namespace) -> int:
    """Remove a run for good; its audit stays."""
    run = RunId.parse(options.run)
    if not (options.yes or _named_again(run)):
        say("Nothing was deleted.", to_error=options.json)
        return 1
    Api(load_credentials()).delete(run_path(run), reason=options.reason)
    said = f"Deleted {run}. Its record stays: spikeguard audit {run}"
    return told(options, {"id": str(run), "deleted": True}, said)


def _named_again(run: RunId) -> bool:
    question = f"Remove samples, incidents and post-mortems of {run} for good? Type its name: "
    return sys.stdin.isatty() and input(question).strip() == str(run)


def _given_token(options: Namespace) -> str:
    if options.token_file:
        return Path(options.token_file).read_text().strip()
    return getpass.getpass("Access token: ") if sys.stdin.isatty() else sys.stdin.readline().strip()


def _login_options(parser: ArgumentParser) -> None:
    parser.add_argument("--server", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument(
        "--name",
        help="your name, as approvals will carry it (default: the token's, else the account's)",
    )
    parser.add_argument("--token-file", help="file with the token; else it is asked for, or stdin")
    json_option(parser)


def _list_options(parser: ArgumentParser) -> None:
    limit_option(parser)
    since_option(parser)
    parser.add_argument("--project", help="only those of this project")
    parser.add_argument(
        "--newest", action="store_true", help="newest first, instead of those that need somebody"
    )
    json_option(parser)


def _run_options(parser: ArgumentParser) -> None:
    parser.add_argument("--state", choices=("live", "silent", "ended"), help="only those")
    _list_options(parser)


def _incident_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="only this run: NAME or PROJECT/NAME")
    parser.add_argument("--open", action="store_true", help="only those not closed")
    _list_options(parser)


def _audit_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?",
        help="NAME or PROJECT/NAME; left out: tokens, policies, channels, silences (an admin's)",
    )  # fmt: skip
    limit_option(parser)
    since_option(parser)
    lines_option(parser)


def _postmortem_options(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="incident RUN#3 (quote it)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format", choices=FORMS,
        help="how it is written (default: as the name of the file ends, else Markdown)",
    )  # fmt: skip
    form.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--output", metavar="FILE", help="file to write instead of printing")


def _delete_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    json_option(parser)
    parser.add_argument("--reason", required=True, help="why; the record keeps it")
    parser.add_argument("--yes", action="store_true", help="do not ask for the name again")


COMMANDS: tuple[Command, ...] = (
    *ACCESS,
    client_command(
        "login", "log in at a server, so that your decisions carry your name", login, _login_options
    ),
    client_command("runs", "list runs: state, step, loss, open incident", runs, _run_options),
    *SHOW,
    *RUN,
    client_command("delete", "remove a run for good, all but its record", delete, _delete_options),
    client_command(
        "incidents", "list spikes: kind, outcome, what is proposed", incidents, _incident_options
    ),
    *DECISIONS,
    client_command(
        "audit", "print or export who changed what, when and why", audit, _audit_options
    ),
    client_command(
        "postmortem",
        "print or save the post-mortem of a closed incident",
        postmortem,
        _postmortem_options,
    ),
)
