"""The calls of the API, one method each: what it asks, and in which shape the answer comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spikeguard_client.calls import Calls
from spikeguard_client.shapes import (
    AuditEntry,
    Command,
    Incident,
    IncidentDetail,
    Intervention,
    Me,
    Note,
    Options,
    Response,
    Run,
    RunDetail,
    Series,
    Session,
)
from spikeguard_protocol import CommandId, IncidentId, RunId, Verb
from spikeguard_protocol.paths import command_path, incident_path, run_path


class Client:
    """Calls of one server with one token: what one reads of runs and does about them. Tokens,
    policies and channels are set on the command line. Threads may share it: it keeps no connection.

    A `reason` is kept in the record.
    """

    def __init__(self, server: str, token: str, *, timeout_s: float = 15.0) -> None:
        self.server = server.rstrip("/")
        self.timeout_s = timeout_s
        self._token = token
        self._calls = Calls(server, token, timeout_s)

    def me(self) -> Me:
        """Whose token it is."""
        return self._calls.get(Me, "/v1/me")

    def signed_in(self, name: str = "") -> Client:
        """A client whose decisions carry `name`; leave it empty where the token names a person."""
        body = {"token": self._token, "name": name}
        session = self._calls.send(Session, "POST", "/v1/sessions", body)
        return Client(self.server, session["token"], timeout_s=self.timeout_s)

    def sign_out(self) -> None:
        """End the session whose token this is."""
        self._calls.call("DELETE", "/v1/sessions/current")

    def runs(
        self, *, project: str | None = None, state: str | None = None,
        search: str | None = None, tag: str | None = None, open_kind: str | None = None,
        sort: str | None = None, descending: bool = True,
    ) -> Iterator[Run]:  # fmt: skip
        """Every run that the token may see, newest first, page by page as they are read. `state` is
        `live`, `silent` or `ended`; `search` stands in PROJECT/NAME; `open_kind` is the kind of the
        open incident, or `any`; `sort` is `urgency`, `created`, `name`, `heard`, `step`, `loss`,
        `grad_norm`, `tokens_per_second` or `incidents`."""
        return self._calls.items(
            Run, "/v1/runs", project=project, state=state,
            search=search, tag=tag, open_kind=open_kind, sort=sort,
            descending=None if descending else "false",
        )  # fmt: skip

    def delete_run(self, run: RunId, reason: str) -> None:
        """Remove a run for good, all but its audit. A conflict while an attempt of it lives."""
        self._calls.call("DELETE", run_path(run), reason=reason)

    def run(self, run: RunId) -> RunDetail:
        """One run with attempts, segments and rollback targets."""
        return self._calls.get(RunDetail, run_path(run))

    def series(
        self,
        run: RunId,
        *signals: str,
        first: int | None = None,
        last: int | None = None,
        points: int = 2000,
    ) -> Series:
        """Curves of steps [first, last], thinned to `points` a segment with every extreme kept."""
        wanted = ",".join(signals or ("loss",))
        path = f"{run_path(run)}/series"
        return self._calls.get(Series, path, signals=wanted, first=first, last=last, points=points)

    def audit(self, run: RunId) -> Iterator[AuditEntry]:
        """What happened to a run, newest first."""
        return self._calls.items(AuditEntry, f"{run_path(run)}/audit")

    def fleet_audit(self) -> Iterator[AuditEntry]:
        """What happened to tokens, policies of projects, channels and silences, newest first."""
        return self._calls.items(AuditEntry, "/v1/audit")

    def notes(self, run: RunId) -> Iterator[Note]:
        """Changes of a run that nobody ordered here, with what became of its loss, newest first."""
        return self._calls.items(Note, f"{run_path(run)}/notes")

    def note(
        self, run: RunId, text: str, *, step: int | None = None, reason: str | None = None,
        expect: str | None = None, expect_size: float | None = None,
    ) -> Note:  # fmt: skip
        """Tell of a change: a new data mix, a config edit. `step` is the last before it, the newest
        where it is left out; `expect` is `lower`, `higher` or `none`, by `expect_size` nats."""
        body = {
            "text": text, "step": step, "expect": expect, "expect_size": expect_size,
            "reason": reason,
        }  # fmt: skip
        return self._calls.send(Note, "POST", f"{run_path(run)}/notes", body)

    def incidents(
        self,
        run: RunId | None = None,
        state: str | list[str] | None = None,
        project: str | None = None,
    ) -> Iterator[Incident]:
        """Spikes, newest first; `state` is `open`, `recovering`, `closed`, or several of them."""
        name = None if run is None else f"{run.project}/{run.name}"
        return self._calls.items(Incident, "/v1/incidents", run=name, state=state, project=project)

    def incident(self, incident: IncidentId) -> IncidentDetail:
        """One spike with its evidence and its commands."""
        return self._calls.get(IncidentDetail, incident_path(incident))

    def acknowledge(self, incident: IncidentId) -> IncidentDetail:
        """Say that you look at a spike: nothing is escalated, and nobody is told again."""
        path = f"{incident_path(incident)}/acknowledgement"
        return self._calls.send(IncidentDetail, "POST", path)

    def take_back_acknowledgement(self, incident: IncidentId) -> IncidentDetail:
        """Say that nobody looks at it any more."""
        path = f"{incident_path(incident)}/acknowledgement"
        return self._calls.send(IncidentDetail, "DELETE", path)

    def assign(self, incident: IncidentId, assignee: str | None) -> IncidentDetail:
        """Make a spike somebody's; None: nobody's."""
        path = f"{incident_path(incident)}/assignee"
        return self._calls.send(IncidentDetail, "POST", path, {"assignee": assignee})

    def comment(self, incident: IncidentId, text: str) -> Response:
        """Say something of a spike, which its post-mortem keeps."""
        path = f"{incident_path(incident)}/comments"
        return self._calls.send(Response, "POST", path, {"text": text})

    def incident_series(self, incident: IncidentId, *signals: str) -> Series:
        """The samples around a spike, which outlive the run's own."""
        wanted = ",".join(signals or ("loss",))
        return self._calls.get(Series, f"{incident_path(incident)}/series", signals=wanted)

    def postmortem(self, incident: IncidentId, form: str = "md") -> bytes:
        """The post-mortem as `md`, `html` or `json`."""
        path = f"{incident_path(incident)}/postmortem"
        return self._calls.call("GET", path, format=form)

    def approve(self, command: CommandId, revision: int) -> Command:
        """Say yes to the revision that was seen, in the name that stands behind the token."""
        path = f"{command_path(command)}/approve"
        return self._calls.send(Command, "POST", path, {"revision": revision})

    def reject(self, command: CommandId, revision: int, reason: str) -> Command:
        """Say no to the revision that was seen, or take back an order that was not fetched."""
        path = f"{command_path(command)}/reject"
        return self._calls.send(Command, "POST", path, {"revision": revision, "reason": reason})

    def run_commands(self, run: RunId) -> Iterator[Command]:
        """What was ordered of a run itself, without an incident, newest first."""
        return self._calls.items(Command, f"{run_path(run)}/commands")

    def options(self, run: RunId) -> Options:
        """What can be ordered of a run now: verbs, targets with health and price, its limits."""
        return self._calls.get(Options, f"{run_path(run)}/options")

    def order(
        self, run: RunId, verb: Verb | str, reason: str, expires_in_s: float = 600.0,
        *, expect: str | None = None, expect_size: float | None = None, **arguments: Any,
    ) -> Command:  # fmt: skip
        """Order something of a run, done at its next step boundary, in the name that stands behind
        the token, with the `arguments` of a command of that verb: `rollback` to a `target`,
        `skip_batches`, `scale_lr`, `apply`, `checkpoint_now`, `stop`. While an incident is open,
        what changes the training is ordered of it: `order_instead`. One may `expect` of the loss
        that it gets `lower`, `higher` or `none` of both, by so many nats.
        """
        body = {
            "verb": str(verb), "arguments": arguments, "reason": reason,
            "expires_in_s": expires_in_s, "expect": expect, "expect_size": expect_size,
        }  # fmt: skip
        return self._calls.send(Command, "POST", f"{run_path(run)}/commands", body)

    def order_instead(
        self, incident: IncidentId, verb: Verb | str, reason: str, expires_in_s: float = 600.0,
        *, proposal: CommandId | None = None, revision: int | None = None,
        expect: str | None = None, expect_size: float | None = None, **arguments: Any,
    ) -> Command:  # fmt: skip
        """The same of an open incident, in place of the `proposal` and `revision` that were seen
        (None: nothing was proposed); a conflict where another one stands there by now. `watch`
        leaves it alone for `steps` steps."""
        body = {
            "verb": str(verb), "arguments": arguments, "reason": reason,
            "expires_in_s": expires_in_s, "expect": expect, "expect_size": expect_size,
            "command": None if proposal is None else proposal.number, "revision": revision,
        }  # fmt: skip
        return self._calls.send(Command, "POST", f"{incident_path(incident)}/commands", body)

    def interventions(self, run: RunId) -> Iterator[Intervention]:
        """What was done to a run, by whom, why, what was expected and what came, newest first."""
        return self._calls.items(Intervention, f"{run_path(run)}/interventions")

    def halt(self, project: str, reason: str) -> None:
        """Throw the kill switch: nothing is approved and nothing delivered in the project."""
        self._calls.call("POST", "/v1/policy/halt", {"project": project, "reason": reason})

    def resume(self, project: str, reason: str) -> None:
        """Lift the kill switch."""
        self._calls.call("POST", "/v1/policy/resume", {"project": project, "reason": reason})
