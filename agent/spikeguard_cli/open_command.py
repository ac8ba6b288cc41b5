"""`spikeguard open`: an incident's page in a browser."""

from __future__ import annotations

import webbrowser
from argparse import ArgumentParser, Namespace
from contextlib import suppress

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed
from spikeguard_cli.credentials import Credentials, load_credentials
from spikeguard_cli.options import json_option, told
from spikeguard_protocol import IncidentId, RunId
from spikeguard_protocol.paths import incident_page_path, incident_path, run_path


def open_page(options: Namespace) -> int:
    """Print where the incident's page is, and show it where there is a browser."""
    used = load_credentials()
    incident = _incident(options.id, used)
    url = f"{used.server}{incident_page_path(incident)}"
    told(options, {"id": str(incident), "url": url}, url)
    if not (options.print or options.json):
        _show(url)
    return 0


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
        "id", metavar="ID", help="incident RUN#3 (quote it), or RUN: its open or newest incident"
    )
    parser.add_argument("--print", action="store_true", help="only print the address")
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    Command("open", "open an incident's page in a browser", open_page, _options),
)
