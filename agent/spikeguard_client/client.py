"""The calls of the API, one method each: what it asks, and in which shape the answer comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict, Unpack

from spikeguard_client.calls import Calls
from spikeguard_client.shapes import (
    AccessToken,
    AuditEntry,
    BatchEvidence,
    Channel,
    ChannelTest,
    Command,
    Delivery,
    Inbox,
    Incident,
    IncidentDetail,
    Intervention,
    Me,
    NewToken,
    Note,
    Options,
    Policy,
    Response,
    Run,
    RunDetail,
    Series,
    Session,
    SignInLink,
    Silence,
)
from spikeguard_protocol import CommandId, IncidentId, Role, RunId, Verb
from spikeguard_protocol.paths import (
    channel_path,
    command_path,
    incident_path,
    run_path,
    silence_path,
)


class Order(TypedDict, total=False):
    """What an order says beside its verb; what is left out is not sent."""

    target: str
    skip: tuple[int, int]  # batches [first, end)
    factor: float  # of every learning rate, for `steps` steps
    steps: int
    cap: float  # learning rate; a rollback's factor lowers it no further than to this
    mitigation: str
    expect: str  # of the loss: `lower`, `higher` or `none`
    expect_size: float  # nats


class Client:
    """Calls of one server with one token. Threads may share it: it keeps no connection.

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

    def sign_in_link(self, next: str = "") -> SignInLink:
        """A link that signs your browser in, once, on the server's own machine; `next` is the page
        that it goes on to."""
        return self._calls.send(SignInLink, "POST", "/v1/sessions/links", {"next": next})

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
        self, run: RunId | None = None, state: str | None = None, project: str | None = None
    ) -> Iterator[Incident]:
        """Spikes, newest first; `state` is `open`, `recovering`, `closed`, or several by commas."""
        name = None if run is None else f"{run.project}/{run.name}"
        return self._calls.items(Incident, "/v1/incidents", run=name, state=state, project=project)

    def inbox(self, project: str | None = None, limit: int = 50) -> Inbox:
        """What waits for people, the most pressing first: `limit` of each kind at most."""
        return self._calls.get(Inbox, "/v1/inbox", project=project, limit=limit)

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

    def incident_batch(self, incident: IncidentId) -> BatchEvidence:
        """What lay in the batches near a spike's onset, as far as the agent told of it."""
        return self._calls.get(BatchEvidence, f"{incident_path(incident)}/batch")

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
        **order: Unpack[Order],
    ) -> Command:  # fmt: skip
        """Order something of a run, done at its next step boundary, in the name that stands behind
        the token: `rollback` to a `target`, `skip_batches`, `scale_lr`, `apply` of a
        `mitigation`, `checkpoint_now`, `stop`. While an incident is open, what changes the training
        is ordered of it: `order_instead`.
        """
        body = {"verb": str(verb), "reason": reason, "expires_in_s": expires_in_s, **order}
        return self._calls.send(Command, "POST", f"{run_path(run)}/commands", body)

    def order_instead(
        self, incident: IncidentId, verb: Verb | str, reason: str, expires_in_s: float = 600.0,
        *, proposal: CommandId | None = None, revision: int | None = None, **order: Unpack[Order],
    ) -> Command:  # fmt: skip
        """The same of an open incident, in place of the `proposal` and `revision` that were seen
        (None: nothing was proposed); a conflict where another one stands there by now. `watch`
        leaves it alone for `steps` steps."""
        seen = {} if proposal is None else {"command": proposal.number, "revision": revision}
        body = {"verb": str(verb), "reason": reason, "expires_in_s": expires_in_s, **order, **seen}
        return self._calls.send(Command, "POST", f"{incident_path(incident)}/commands", body)

    def interventions(self, run: RunId) -> Iterator[Intervention]:
        """What was done to a run, by whom, why, what was expected and what came, newest first."""
        return self._calls.items(Intervention, f"{run_path(run)}/interventions")

    def tokens(self) -> Iterator[AccessToken]:
        """The tokens and sessions that work, newest first, without their secrets."""
        return self._calls.items(AccessToken, "/v1/tokens")

    def make_token(
        self, role: Role, *, project: str | None = None, run: str | None = None,
        person: str | None = None, name: str | None = None, expires_in_s: float | None = None,
        reason: str | None = None, unnamed: bool = False,
    ) -> NewToken:  # fmt: skip
        """Make a token; its secret is in this one answer. `name` is what it is for. `run` is the
        one of `project` that an agent's is good for; it need not exist yet. An operator's or an
        admin's names its `person`, or is `unnamed`: whoever signs in with it types a name."""
        body = {
            "role": role.value, "project": project, "run": run, "person": person, "name": name,
            "expires_in_s": expires_in_s, "reason": reason,
            **({"unnamed": True} if unnamed else {}),
        }  # fmt: skip
        return self._calls.send(NewToken, "POST", "/v1/tokens", body)

    def revoke_token(self, id: int, reason: str | None = None) -> None:
        """From now on neither the token nor any session that it opened works."""
        self._calls.call("DELETE", f"/v1/tokens/{id}", reason=reason)

    def policy(self, project: str) -> Policy:
        """The policy in force."""
        return self._calls.get(Policy, "/v1/policy", project=project)

    def put_policy(
        self, project: str, policy: Mapping[str, Any], replaces: int | None = None,
        reason: str | None = None,
    ) -> Policy:  # fmt: skip
        """Put a policy in force; a conflict if `replaces` is no longer the version in force."""
        body = {"project": project, "policy": dict(policy), "version": replaces, "reason": reason}
        return self._calls.send(Policy, "PUT", "/v1/policy", body)

    def run_policy(self, run: RunId) -> Policy:
        """The policy in force for a run; `scope` says whether it is its own or its project's."""
        return self._calls.get(Policy, _policy_path(run))

    def put_run_policy(
        self, run: RunId, policy: Mapping[str, Any], replaces: int | None = None,
        reason: str | None = None,
    ) -> Policy:  # fmt: skip
        """Give a run a policy of its own; what it leaves out is what its project's says now. A
        conflict if `replaces` is no longer the version of the run's own, 0 for none."""
        body = {"policy": dict(policy), "version": replaces, "reason": reason}
        return self._calls.send(Policy, "PUT", _policy_path(run), body)

    def drop_run_policy(self, run: RunId, reason: str | None = None) -> Policy:
        """Let a run follow its project's policy again, which is the answer."""
        return self._calls.send(Policy, "DELETE", _policy_path(run), reason=reason)

    def halt(self, project: str, reason: str) -> Policy:
        """Throw the kill switch: nothing is approved and nothing delivered in the project."""
        return self._switch("halt", project, reason)

    def resume(self, project: str, reason: str) -> Policy:
        """Lift the kill switch."""
        return self._switch("resume", project, reason)

    def channels(self, project: str) -> list[Channel]:
        """Where the people of a project are told."""
        return list(self._calls.items(Channel, "/v1/channels", paged=False, project=project))

    def put_channel(
        self, project: str, name: str, channel: Mapping[str, Any], reason: str | None = None
    ) -> Channel:
        """Write a channel; without `target` it keeps the one that it has."""
        body = {**channel, "reason": reason}
        return self._calls.send(Channel, "PUT", channel_path(project, name), body)

    def delete_channel(self, project: str, name: str, reason: str | None = None) -> None:
        """Tell nothing there any more."""
        self._calls.call("DELETE", channel_path(project, name), reason=reason)

    def test_channel(self, project: str, name: str) -> ChannelTest:
        """Send a test now, and say what became of it."""
        return self._calls.send(ChannelTest, "POST", f"{channel_path(project, name)}/test")

    def deliveries(self, project: str, *, channel: str | None = None) -> Iterator[Delivery]:
        """What was told and what was not, newest first."""
        return self._calls.items(Delivery, "/v1/deliveries", project=project, channel=channel)

    def silences(self, project: str) -> list[Silence]:
        """Silences and maintenance windows in force or to come."""
        return list(self._calls.items(Silence, "/v1/silences", paged=False, project=project))

    def silence(
        self,
        project: str,
        *,
        lasts_s: float,
        reason: str,
        run: str | None = None,
        incident: int | None = None,
        begins_in_s: float = 0.0,
    ) -> Silence:
        """Say nothing about a project, a run or an incident for a while."""
        body = {
            "project": project, "run": run, "incident": incident, "begins_in_s": begins_in_s,
            "lasts_s": lasts_s, "reason": reason,
        }  # fmt: skip
        return self._calls.send(Silence, "POST", "/v1/silences", body)

    def end_silence(self, project: str, number: int, reason: str | None = None) -> None:
        """Take a silence back; what it held is told."""
        self._calls.call("DELETE", silence_path(project, number), reason=reason)

    def _switch(self, word: str, project: str, reason: str) -> Policy:
        body = {"project": project, "reason": reason}
        return self._calls.send(Policy, "POST", f"/v1/policy/{word}", body)


def _policy_path(run: RunId) -> str:
    return f"{run_path(run)}/policy"
