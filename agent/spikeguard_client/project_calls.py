"""What a program asks of a project: its tokens, policy, channels and silences.

Invariants: as those of `client`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spikeguard_client.calls import Calls
from spikeguard_client.shapes import (
    AccessToken,
    Channel,
    ChannelTest,
    Delivery,
    NewToken,
    Policy,
    Silence,
)
from spikeguard_protocol import Role, RunId
from spikeguard_protocol.paths import channel_path, run_path, silence_path


class ProjectCalls:
    """The calls about a project, for `Client`."""

    _calls: Calls

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
            "expires_in_s": expires_in_s, **because(reason),
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
        body = {"project": project, "policy": dict(policy), "version": replaces, **because(reason)}
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
        body = {"policy": dict(policy), "version": replaces, **because(reason)}
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
        body = {**channel, **because(reason)}
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


def because(reason: str | None) -> dict[str, str]:
    """Sent only where it was given."""
    return {} if reason is None else {"reason": reason}


def _policy_path(run: RunId) -> str:
    return f"{run_path(run)}/policy"
