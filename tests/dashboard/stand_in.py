"""A small HTTP server that answers as `docs/protocol.md` says, and keeps what it was told.

It stands in for the server where a test needs a state that a real run reaches only with luck (a
session that has ended, a proposal that changes under the reader's eyes). Sessions and roles are
real enough to refuse: who may not, gets the documented error.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.listening import listening
from spikeguard_server.domain.policy.settings import DEFAULT_POLICY, policy_to_mapping
from spikeguard_server.http.bodies.policy_settings import policy_settings

VIEWER_TOKEN = "viewer-token-of-the-dashboard"
ADA_TOKEN = "session-of-ada-lovelace-0123456789"
PEOPLE: dict[str, dict[str, Any]] = {
    VIEWER_TOKEN: {
        "name": None,
        "role": "viewer",
        "project": None,
        "run": None,
        "expires_in_s": None,
        "token": 1,
    },
    ADA_TOKEN: {
        "name": "Ada Lovelace",
        "role": "operator",
        "project": None,
        "run": None,
        "expires_in_s": 39600.0,
        "token": 2,
    },
}
Plain = dict[str, Any]
POLICY: Plain = {
    "project": "default",
    "run": None,
    "scope": "project",
    "version": 1,
    "created_at": None,
    "created_by": None,
    "policy": {**policy_to_mapping(DEFAULT_POLICY), "currency": "EUR"},
}
Answer = tuple[int, str, bytes]
SPEAKS_FOR = "Spikeguard-For"


@dataclass(frozen=True)
class Heard:
    """A request as it arrived."""

    method: str
    path: str
    bearer: str
    body: Plain
    speaks_for: str | None = None


@dataclass
class World:
    """What the stand-in knows, and what it heard."""

    runs: list[Plain]
    series: dict[str, Plain]  # run -> Series
    incidents: list[Plain]  # details
    incident_series: dict[str, Plain]  # incident id -> Series
    postmortems: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict)
    layers: Plain = field(default_factory=dict)
    batch: Plain = field(default_factory=dict)
    audit: list[Plain] = field(default_factory=list)
    commands: list[Plain] = field(default_factory=list)  # of the first incident's run itself
    inbox: list[Plain] = field(default_factory=list)
    followups: list[Plain] = field(default_factory=list)  # of every incident
    notices: dict[str, list[Plain]] = field(default_factory=dict)  # last part of the path -> items
    policy: Plain = field(default_factory=lambda: copy.deepcopy(POLICY))
    heard: list[Heard] = field(default_factory=list)
    people: dict[str, Plain] = field(default_factory=lambda: copy.deepcopy(PEOPLE))
    broken: Callable[[], Answer] | None = None  # answers everything, if set
    before_decision: Callable[[], None] | None = None  # happens once, as a decision arrives

    def decisions(self) -> list[Heard]:
        """What was decided, as it arrived."""
        return [request for request in self.heard if request.method == "POST"]


def answer_json(status: int, body: object) -> Answer:
    """JSON as the server writes it: no NaN in it."""
    return status, "application/json", json.dumps(body, allow_nan=False).encode()


def error(status: int, code: str, message: str, remedy: str, **more: object) -> Answer:
    """The one shape of errors."""
    said = {"code": code, "field": None, "message": message, "remedy": remedy} | more
    return answer_json(status, {"error": said})


def respond(world: World, method: str, url: str, bearer: str, body: Plain) -> Answer:
    """The answer to one request."""
    parts = urlsplit(url)
    path = [unquote(part) for part in parts.path.strip("/").split("/")]
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if world.broken:
        return world.broken()
    if method == "POST" and (happening := world.before_decision):
        world.before_decision = None
        happening()
    person = world.people.get(bearer)
    if person is None:
        return error(401, "unauthorized", "The token is not known or has ended", "Sign in again.")
    match (method, path):
        case ("GET", ["v1", "me"]):
            return answer_json(200, person)
        case ("GET", ["v1", "runs"]):
            detail = ("attempts", "segments", "targets", "precursors", "notes")
            keys = [key for key in world.runs[0] if key not in detail]
            some = [run for run in world.runs if query.get("search", "") in run["id"]]
            items = [{key: run[key] for key in keys} for run in some]
            return answer_json(200, {"items": items, "next_cursor": None, "total": len(world.runs)})
        case ("GET", ["v1", "policy", "settings"]):
            return answer_json(200, policy_settings().model_dump(mode="json"))
        case ("POST", ["v1", "runs", project, name, "policy", "preview"]):
            return _previewed(f"{project}/{name}", body)
        case ("POST", ["v1", "runs", project, name, "tags"]):
            run = next(r for r in world.runs if (r["project"], r["name"]) == (project, name))
            run["tags"] = sorted({*run["tags"], *body["add"]} - {*body["remove"]})
            return answer_json(200, run)
        case ("PUT", ["v1", "channels", _, _]):
            if not body["target"].get("url", "").startswith("https://"):
                return error(
                    422, "unprocessable", "target.url is an http or https URL",
                    "Write https://HOST/PATH", field="target.url",
                )  # fmt: skip
            return answer_json(200, {})
        case ("GET", ["v1", "channels" | "silences" | "deliveries" as what]):
            return _list(world.notices.get(what, []))
        case ("POST", ["v1", "channels", _, channel, "test"]):
            return answer_json(200, {"result": "sent", "reason": f"to {channel}", "took_ms": 84.0})
        case ("GET", ["v1", "inbox"]):
            return answer_json(200, {"person": person["name"], "items": world.inbox, "more": False})
        case ("GET", ["v1", "incidents"]):
            wanted = query.get("run")
            return _list([i for i in world.incidents if wanted in (None, _run_of(i))])
        case ("GET", ["v1", "runs", project, name, *rest]):
            return _of_run(world, f"{project}/{name}", rest, query)
        case ("POST", ["v1", "runs", project, name, "incidents", number, "commands", which, act]):
            if person["role"] not in ("operator", "admin") or not person["name"]:
                return error(403, "forbidden", "Only an operator may decide", "Sign in as one.")
            place = f"{project}/{name}", int(number), int(which)
            return _decide(world, place, act, body, person["name"])
        case ("POST", ["v1", "runs", _, _, "incidents", _, "followups", *which]):
            return _follow_up(world, which, body, person["name"])
        case (_, ["v1", "runs", project, name, "incidents", number, what]):
            if person["role"] not in ("operator", "admin") or not person["name"]:
                return error(403, "forbidden", "Only an operator may respond", "Sign in as one.")
            found = _incident(world, f"{project}/{name}", int(number))
            assert found is not None
            return _respond(found, what, method, body, person["name"])
    return error(404, "not_found", f"There is no {parts.path}", "See docs/protocol.md.")


def _previewed(run: str, body: Plain) -> Answer:
    patience = body["policy"]["patience_steps"]
    if patience < 0:
        return error(
            422, "unprocessable", "patience_steps lies in [0, 1e+06]", f"Got {patience}",
            field="patience_steps",
        )  # fmt: skip
    if (budget := body["policy"]["approval"]["rollback"]["budget"]) < 0:
        field = "approval.rollback.budget"
        return error(422, "unprocessable", f"{field} is below 0", f"Got {budget}", field=field)
    spike: Plain = {
        "branch": 0, "onset_step": 1246, "detected_step": 1247, "peak_step": 1266,
        "closed_step": None, "kind": "lingering", "confidence": 0.9, "signal": "loss",
        "peak_loss": 5.2, "proposals": [],
    }  # fmt: skip
    now = {"policy": "policy 1", "found": 1, "proposed": 0, "to_step": 1400, "incidents": [spike]}
    then = {**now, "found": 0, "incidents": []}
    return answer_json(200, {
        "run": run, "first_step": 1, "last_step": 1400, "samples": 1400, "whole": True,
        "checkpoint_every": 100, "now": now, "then": then,
    })  # fmt: skip


def _follow_up(world: World, which: list[str], body: Plain, person: str) -> Answer:
    if not which:
        now = "2026-03-14T04:10:00Z"
        world.followups.append({
            "number": len(world.followups) + 1, "text": body["text"], "state": "open",
            "owner": body["owner"], "revision": 1, "asked_by": person, "created_at": now,
            "changed_at": now, "changed_by": person,
        })  # fmt: skip
        return answer_json(201, world.followups[-1])
    one = next(each for each in world.followups if each["number"] == int(which[0]))
    if one["revision"] != body["revision"]:
        return error(409, "conflict", "It was changed meanwhile", "Look at it again.")
    one |= {key: body[key] for key in ("text", "owner", "state") if key in body}
    if body.get("nobody"):
        one["owner"] = None
    one["revision"] += 1
    return answer_json(200, one)


def _list(items: list[Plain]) -> Answer:
    return answer_json(200, {"items": items, "next_cursor": None})


def _run_of(incident: Mapping[str, Any]) -> str:
    return f"{incident['project']}/{incident['run']}"


def _of_run(world: World, run: str, rest: list[str], query: Mapping[str, str]) -> Answer:
    found = next((r for r in world.runs if f"{r['project']}/{r['name']}" == run), None)
    if found is None:
        return error(404, "no_run", f"There is no run {run}", "See the list of runs.")
    match rest:
        case []:
            return answer_json(200, found)
        case ["series"]:
            return answer_json(200, _window(world.series[run], query))
        case ["commands"]:
            return _list(world.commands if run == _run_of(world.incidents[0]) else [])
        case ["policy"]:
            return answer_json(200, world.policy)
        case ["audit"]:
            return _list(world.audit)
        case ["incidents", number, *more]:
            return _of_incident(world, run, int(number), more, query)
    return error(404, "not_found", "There is no such thing", "See docs/protocol.md.")


def _window(series: Plain, query: Mapping[str, str]) -> Plain:
    first, last = int(query.get("first", 0)), int(query.get("last", 2**53))
    wanted = [name for name in query["signals"].split(",") if name]
    segments = []
    for segment in series["segments"]:
        inside = [i for i, step in enumerate(segment["steps"]) if first <= step <= last]
        columns = {name: segment["values"].get(name) for name in wanted}
        values = {
            name: [column[i] if column else None for i in inside]
            for name, column in columns.items()
        }
        steps = [segment["steps"][i] for i in inside]
        batches = [segment["batches"][i] for i in inside]
        segments.append({**segment, "steps": steps, "values": values, "batches": batches})
    return {**series, "signals": wanted, "segments": segments}


def _of_incident(
    world: World, run: str, number: int, more: list[str], query: Mapping[str, str]
) -> Answer:
    found = _incident(world, run, number)
    if found is None:
        return error(404, "no_incident", f"Run {run} has no incident {number}", "See its list.")
    match more:
        case []:
            return answer_json(200, found)
        case ["series"]:
            return answer_json(200, world.incident_series[found["id"]])
        case ["layers"]:
            return answer_json(200, world.layers)
        case ["batch"]:
            return answer_json(200, world.batch)
        case ["followups"]:
            return answer_json(200, {"items": world.followups})
        case ["postmortem"]:
            if not found["has_postmortem"]:
                return error(409, "not_closed", "The incident is open", "Wait for its close.")
            return 200, *world.postmortems[found["id"]][query["format"]]
    return error(404, "not_found", "There is no such thing", "See docs/protocol.md.")


def _incident(world: World, run: str, number: int) -> Plain | None:
    matching = (i for i in world.incidents if (_run_of(i), i["number"]) == (run, number))
    return next(matching, None)


def _decide(world: World, place: tuple[str, int, int], act: str, body: Plain, name: str) -> Answer:
    incident = _incident(world, *place[:2])
    assert incident is not None
    command = next(c for c in incident["commands"] if c["number"] == place[2])
    if body["revision"] != command["revision"]:
        return error(
            409,
            "revision_changed",
            f"Revision {body['revision']} is no longer what is proposed",
            "Look at the current one.",
            current=command,
        )
    command["state"] = "approved" if act == "approve" else "rejected"
    command["decided_by"], command["decided_at"] = name, "2026-03-14T03:12:09.000Z"
    command["decision_reason"] = body.get("reason")
    incident["proposal"] = None
    return answer_json(200, command)


def _respond(incident: Plain, what: str, method: str, body: Plain, name: str) -> Answer:
    """Who looks at it, whose it is, what was said."""
    done = {
        "number": len(incident["responses"]) + 1, "at": "2026-03-14T03:12:09.000Z", "person": name,
        "action": "commented", "assignee": body.get("assignee"), "text": body.get("text"),
    }  # fmt: skip
    if what == "acknowledgement":
        incident["acknowledged_by"] = name if method == "POST" else None
        done["action"] = "acknowledged" if method == "POST" else "unacknowledged"
    elif what == "assignee":
        incident["assignee"] = body["assignee"]
        done["action"] = "assigned" if body["assignee"] else "unassigned"
    incident["responses"].append(done)
    return answer_json(201 if what == "comments" else 200, done if what == "comments" else incident)


@contextmanager
def serving(world: World) -> Iterator[str]:
    """Serve `world` on a free port of this machine; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.loads(raw) if raw else {}
            bearer = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            world.heard.append(
                Heard(self.command, self.path, bearer, body, self.headers.get(SPEAKS_FOR))
            )
            status, media, content = respond(world, self.command, self.path, bearer, body)
            self.send_response(status)
            self.send_header("content-type", media)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _handle

        def log_message(self, *_: object) -> None:
            return

    with listening(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield address
