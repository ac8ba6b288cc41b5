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
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.http_server import Request, answering

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
Answer = tuple[int, str, bytes]


@dataclass(frozen=True)
class Heard:
    """A request as it arrived."""

    method: str
    path: str
    bearer: str
    body: Plain


@dataclass
class World:
    """What the stand-in knows, and what it heard."""

    runs: list[Plain]
    series: dict[str, Plain]  # run -> Series
    incidents: list[Plain]  # details
    incident_series: dict[str, Plain]  # incident id -> Series
    audit: list[Plain] = field(default_factory=list)
    commands: list[Plain] = field(default_factory=list)  # of the first incident's run itself
    heard: list[Heard] = field(default_factory=list)
    people: dict[str, Plain] = field(default_factory=lambda: copy.deepcopy(PEOPLE))
    broken: Callable[[], Answer] | None = None  # answers everything, if set


def answer_json(status: int, body: object) -> Answer:
    """JSON as the server writes it: no NaN in it."""
    return status, "application/json", json.dumps(body, allow_nan=False).encode()


def error(status: int, code: str, message: str, remedy: str, **more: object) -> Answer:
    """The one shape of errors."""
    said = {"code": code, "field": None, "message": message, "remedy": remedy} | more
    return answer_json(status, {"error": said})


def respond(world: World, method: str, url: str, bearer: str) -> Answer:
    """The answer to one request."""
    parts = urlsplit(url)
    path = [unquote(part) for part in parts.path.strip("/").split("/")]
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if world.broken:
        return world.broken()
    person = world.people.get(bearer)
    if person is None:
        return error(401, "unauthorized", "The token is not known or has ended", "Sign in again.")
    match (method, path):
        case ("GET", ["v1", "me"]):
            return answer_json(200, person)
        case ("GET", ["v1", "runs"]):
            detail = ("attempts", "segments", "targets", "precursors", "notes", "trends")
            keys = [key for key in world.runs[0] if key not in detail]
            some = [run for run in world.runs if query.get("search", "") in run["id"]]
            items = [{key: run[key] for key in keys} for run in some]
            return answer_json(200, {"items": items, "next_cursor": None, "total": len(world.runs)})
        case ("GET", ["v1", "incidents"]):
            wanted = query.get("run")
            return _list([i for i in world.incidents if wanted in (None, _run_of(i))])
        case ("GET", ["v1", "runs", project, name, *rest]):
            return _of_run(world, f"{project}/{name}", rest, query)
    return error(404, "not_found", f"There is no {parts.path}", "See docs/protocol.md.")


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
        case ["audit"]:
            return _list(world.audit)
        case ["incidents", number, *more]:
            return _of_incident(world, run, int(number), more)
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


def _of_incident(world: World, run: str, number: int, more: list[str]) -> Answer:
    found = _incident(world, run, number)
    if found is None:
        return error(404, "no_incident", f"Run {run} has no incident {number}", "See its list.")
    match more:
        case []:
            return answer_json(200, found)
        case ["series"]:
            return answer_json(200, world.incident_series[found["id"]])
    return error(404, "not_found", "There is no such thing", "See docs/protocol.md.")


def _incident(world: World, run: str, number: int) -> Plain | None:
    matching = (i for i in world.incidents if (_run_of(i), i["number"]) == (run, number))
    return next(matching, None)


@contextmanager
def serving(world: World) -> Iterator[str]:
    """Serve `world` on a free port of this machine; gives the address."""

    def answer(request: Request) -> tuple[int, dict[str, str], bytes]:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        world.heard.append(Heard(request.method, request.path, bearer, request.json()))
        status, media, content = respond(world, request.method, request.path, bearer)
        return status, {"Content-Type": media}, content

    with answering(answer) as address:
        yield address
