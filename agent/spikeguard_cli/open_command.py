"""`spikeguard open`: an incident's page in a browser, and a link that signs the browser in."""

from __future__ import annotations

import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from contextlib import suppress

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, client_command
from spikeguard_cli.credentials import Credentials, load_credentials
from spikeguard_cli.options import json_option, told
from spikeguard_protocol import CommandId, IncidentId, RunId
from spikeguard_protocol.paths import confirm_path, incident_page_path, incident_path, run_path


def open_page(options: Namespace) -> int:
    """Print where the incident's page is, and show it where there is a browser."""
    used = load_credentials()
    if options.sign_in:
        return _sign_in(Api(used), options)
    if options.id is None:
        raise CommandFailed("open which page? Name an incident, RUN#3, or a RUN")
    incident = _incident(options.id, used)
    url = f"{used.server}{incident_page_path(incident)}"
    told(options, {"id": str(incident), "url": url}, url)
    if not (options.print or options.json):
        _show(url)
    return 0


def _sign_in(api: Api, options: Namespace) -> int:
    """A link that signs a browser in once; on to the page of what is named, where it is."""
    made = api.post("/v1/sessions/links", {"next": _page_of(api, options.id)})
    told(options, made, made["link"])
    print(
        "It signs a browser on the server's machine in, once, within 10 minutes.", file=sys.stderr
    )
    return 0


def _page_of(api: Api, text: str | None) -> str:
    """The page that decides on a command, or on what an incident proposes; that of the incident
    where it proposes nothing."""
    if text is None:
        return ""
    if "." in text.rpartition("#")[2]:
        return confirm_path(CommandId.parse(text))
    incident = IncidentId.parse(text)
    proposal = api.get(incident_path(incident))["proposal"]
    if proposal is None:
        return incident_page_path(incident)
    return confirm_path(CommandId.parse(proposal["id"]))


def _incident(text: str, used: Credentials) -> IncidentId:
    """The one that is named, which has to be there; of a run the newest."""
    if "#" in text:
        incident = IncidentId.parse(text)
        Api(used).get(incident_path(incident))
        return incident
    run = RunId.parse(text)
    found = Api(used).get(run_path(run))
    if not found["incidents"]:
        raise CommandFailed(f"{run} had no spike: `spikeguard show {run}` shows how it trains")
    return IncidentId(run, found["open_incident"] or found["incidents"])


def _show(url: str) -> None:
    """Where there is none, the address stands on the screen."""
    with suppress(webbrowser.Error):
        webbrowser.get().open(url)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "id", metavar="ID", nargs="?",
        help="incident RUN#3 (quote it), or RUN: its open or newest incident",
    )  # fmt: skip
    parser.add_argument(
        "--sign-in", action="store_true",
        help="print a link that signs your browser in, once, and goes on to what incident RUN#3 "
        "proposes, or to command RUN#3.1",
    )  # fmt: skip
    parser.add_argument("--print", action="store_true", help="only print the address")
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    client_command("open", "open an incident's page in a browser", open_page, _options),
)
