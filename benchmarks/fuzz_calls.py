"""Schemathesis over the whole OpenAPI document: every call alone, and calls that follow on others.

Law: each call is made with a token of a role that may make it, or the answer would always be 403.
What counts as a finding: an answer of class 5xx, a status, a content type or a body that the
document does not tell of.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from spikeguard_protocol import Role
from spikeguard_server.identity.permissions import TABLE

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
TIMEOUT_S = 20.0
COOKIE = "spikeguard_session"
PREFERRED = (Role.ADMIN, Role.OPERATOR, Role.AGENT, Role.METRICS, Role.VIEWER)


@dataclass
class Calls:
    """Makes calls at `url` and keeps what was answered and what was wrong."""

    url: str
    issue: Callable[[Role], str]  # a new token, with a person behind it
    tokens: dict[Role, str] = field(default_factory=dict)  # in use; calls may revoke them
    cookies: dict[str, str] = field(default_factory=dict)  # token -> the cookie of a browser
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)  # by call and what was wrong
    sequences: int = 0  # of calls
    followed: int = 0  # calls of those that took what another one had answered

    def __post_init__(self) -> None:
        self.session = requests.Session()
        document = self.session.get(f"{self.url}/openapi.json", timeout=TIMEOUT_S).json()
        self.document: dict[str, Any] = document
        self.schema = schemathesis.openapi.from_dict(document)

    def each_alone(
        self, examples: int, seed: int, without: Collection[str] = (), every: int = 1
    ) -> None:
        """Every call, with `examples` requests that fit the document and as many that do not.

        `without`: labels of calls to leave out, such as "POST /v1/messages"; `every`: 2 for every
        other call.
        """
        for number, operation in enumerate(self._operations()):
            if operation.label in without or number % every:
                continue
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                self._try(operation, mode, examples, seed)

    def in_sequence(self, examples: int, steps: int, seed: int) -> None:
        """Calls that take what others answered: ids that were made, cursors, runs."""
        machine = self.schema.as_state_machine()
        calls = self

        class Sequence(machine):  # type: ignore[misc, valid-type]
            def setup(self) -> None:
                calls.sequences += 1
                super().setup()

            def get_call_kwargs(self, case: Any) -> dict[str, Any]:
                return {"base_url": calls.url, **calls.options(case)}

            def validate_response(self, response: Any, case: Any, **_: Any) -> None:
                calls.followed += self.recorder.find_parent(case_id=case.id) is not None
                calls.judge(case, response)

        settings = _settings(examples, stateful_step_count=steps)
        hypothesis.stateful.run_state_machine_as_test(
            hypothesis.seed(seed)(Sequence), settings=settings
        )

    def _operations(self) -> Iterator[Any]:
        for found in self.schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()
            if "text/event-stream" not in json.dumps(operation.definition.raw):
                yield operation  # a stream does not end

    def _try(self, operation: Any, mode: GenerationMode, examples: int, seed: int) -> None:
        @hypothesis.seed(seed)
        @_settings(examples)
        @hypothesis.given(operation.as_strategy(mode))
        def call(case: Any) -> None:
            self.judge(case, case.call(base_url=self.url, **self.options(case)))

        try:
            call()
        except hypothesis.errors.Unsatisfiable:
            return  # there is nothing that could be wrong with a call without parameters

    def options(self, case: Any) -> dict[str, Any]:
        """Who makes the call, and over which connection."""
        path, method = case.operation.full_path, case.operation.method.upper()
        rule = TABLE[method, path]
        role = next((role for role in PREFERRED if role in rule.roles), None)
        options: dict[str, Any] = {"session": self.session, "timeout": TIMEOUT_S}
        options |= {"allow_redirects": False}
        if role is None:
            return options
        if role not in self.tokens:
            self.tokens[role] = self.issue(role)
        if path.startswith(("/confirm", "/incident", "/inbox")):
            return {**options, "cookies": {COOKIE: self._cookie(self.tokens[role])}}
        return {**options, "headers": {"Authorization": f"Bearer {self.tokens[role]}"}}

    def _cookie(self, token: str) -> str:
        """Of a browser that a sign-in link of whoever holds the token signed in."""
        if token not in self.cookies:
            bearer = {"Authorization": f"Bearer {token}"}
            made = requests.post(
                f"{self.url}/v1/sessions/links", json={}, headers=bearer, timeout=TIMEOUT_S
            ).json()
            place = self.url + urlsplit(made.get("link", "/login/none")).path
            entered = requests.post(place, allow_redirects=False, timeout=TIMEOUT_S)
            self.cookies[token] = entered.cookies.get(COOKIE) or "none"
        return self.cookies[token]

    def judge(self, case: Any, response: Any) -> None:
        """Keep what the answer was and what is wrong with it."""
        label = case.operation.label
        self.answers[label, response.status_code] += 1
        if response.status_code == 401:
            self.tokens.clear()
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                key = f"{label}: {response.status_code}: {type(failure).__name__}"
                self.findings.setdefault(key, f"{failure}\n{case.as_curl_command()[:1500]}")


def _settings(examples: int, **more: Any) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        **more,
    )
