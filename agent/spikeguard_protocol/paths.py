"""Where things lie in the HTTP API."""

from __future__ import annotations

from urllib.parse import quote

from spikeguard_protocol.identity import CommandId, IncidentId, RunId


def run_path(run: RunId) -> str:
    """A run."""
    return f"/v1/runs/{_part(run.project)}/{_part(run.name)}"


def incident_path(incident: IncidentId) -> str:
    """One spike of a run."""
    return f"{run_path(incident.run)}/incidents/{incident.number}"


def command_path(command: CommandId) -> str:
    """A command, of an incident or of the run itself; what is decided about it follows."""
    if command.of_run:
        return f"{run_path(command.incident.run)}/commands/{command.number}"
    return f"{incident_path(command.incident)}/commands/{command.number}"


def confirm_path(command: CommandId) -> str:
    """The page on which a person decides on a command."""
    run, incident = command.incident.run, command.incident.number
    return f"/confirm/{_part(run.project)}/{_part(run.name)}/{incident}/{command.number}"


def incident_page_path(incident: IncidentId) -> str:
    """The page that shows an incident at a glance."""
    run = incident.run
    return f"/incident/{_part(run.project)}/{_part(run.name)}/{incident.number}"


def act_path(run: RunId) -> str:
    """The page on which a person orders something of a run or of its open incident."""
    return f"/act/{_part(run.project)}/{_part(run.name)}"


def channel_path(project: str, name: str) -> str:
    """A channel of a project."""
    return f"/v1/channels/{_part(project)}/{_part(name)}"


def _part(name: str) -> str:
    return quote(name, safe="")
