"""What admins and operators do over HTTP with their login: tokens, policies, channels.

A secret goes to standard output alone, so that it can be piped; words about it go to standard
error. The server judges who may do what.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, client_command, read_toml, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, most, print_json, print_list, told
from spikeguard_protocol import DEFAULT_PROJECT, Role, RunId
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.paths import channel_path, run_path
from spikeguard_protocol.phrases import duration_phrase

DAY_S = 86_400.0
MAX_DAYS = 3660
EXPIRES_SOON_S = 14 * DAY_S
DECIDERS = (Role.OPERATOR, Role.ADMIN)
TOKEN_HEAD = ("ID", "ROLE", "PROJECT", "RUN", "PERSON", "NAME", "KIND", "ENDS IN", "MADE BY")
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key of TOML that needs no quotes
CHANNEL_HEAD = ("CHANNEL", "KIND", "TARGET", "LEVEL", "ENABLED", "CHANGED BY")


# --- tokens -----------------------------------------------------------------------------------


def token_over_http(options: Namespace) -> int:
    """One of create, list, revoke."""
    return _TOKEN_WORDS[options.word](Api(load_credentials()), options)


def wanted_token(options: Namespace) -> dict[str, Any]:
    """What a new token may do, as the API takes it; raise `CommandFailed` where that is none."""
    days = options.expires_in
    if days is not None and not 0 < days <= MAX_DAYS:
        raise CommandFailed(f"--expires-in takes days, more than 0 and at most {MAX_DAYS}")
    project, run = scope_of(options.project, options.run)
    return {
        "role": options.role,
        "project": project,
        "run": run,
        "person": options.person or asked_person(options),
        "name": options.name,
        "expires_in_s": None if days is None else days * DAY_S,
    }


def _create(api: Api, options: Namespace) -> int:
    wanted = wanted_token(options)
    wanted |= {"unnamed": options.unnamed or None, "reason": options.reason}
    made = api.post("/v1/tokens", {k: v for k, v in wanted.items() if v is not None})
    return show_once(options, made, made["token"])


def show_once(options: Namespace, token: Mapping[str, Any], secret: str) -> int:
    """A new token: its secret alone, or with all that is known of it."""
    if options.json:
        print_json({**token, "token": secret})
    else:
        print(printable(secret))
    say(
        f"token {token['id']}: {token_words(token)}. It is shown this once; whoever holds it may "
        "do this.",
        to_error=True,
    )
    return 0


def asked_person(options: Namespace) -> str | None:
    """Whose a token for people is, unless it is to be nobody's in particular."""
    if options.role not in DECIDERS or options.unnamed:
        return None
    name = input("Whose is it? Their name: ").strip() if sys.stdin.isatty() else ""
    if not name:
        raise CommandFailed(
            f"a token of role {options.role} is a person's: give --person NAME, or --unnamed to "
            "let whoever signs in with it type a name"
        )
    return name


def expiry_words(token: Mapping[str, Any]) -> str:
    """What is said of a training job's token that ends soon."""
    project = f" of project {token['project']}" if token["project"] else ""
    named = f", {token['name']!r}" if token["name"] else ""
    return (
        f"token {token['id']} of role agent{project}{named} ends in "
        f"{token['expires_in_s'] / DAY_S:.1f} days: its jobs are not watched after that. Make "
        "another one (`spikeguard token create --role agent`) and start the jobs with it"
    )


def _ends_soon(token: Mapping[str, Any]) -> bool:
    left = token["expires_in_s"]
    return token["role"] == Role.AGENT and left is not None and left < EXPIRES_SOON_S


def scope_of(project: str | None, run: str | None) -> tuple[str | None, str | None]:
    """Names of project and run that a token is good for; None is every one."""
    if run is None:
        return None if project is None else RunId(project, "any").project, None
    wanted = RunId.parse(run if "/" in run or project is None else f"{project}/{run}")
    if project not in (None, wanted.project):
        raise CommandFailed(f"--run names project {wanted.project}, --project {project}: drop one")
    return wanted.project, wanted.name


def token_words(token: Mapping[str, Any]) -> str:
    """`role operator of Ada in project default`."""
    person = f" of {token['person']}" if token["person"] else ""
    run = f" for run {token['run']}" if token["run"] else ""
    project = f" in project {token['project']}" if token["project"] else ""
    return f"role {token['role']}{person}{run}{project}"


def _list(api: Api, options: Namespace) -> int:
    found = list(api.items("/v1/tokens", most(options)))
    print_list(options, found, TOKEN_HEAD, _token_row, "No token works.")
    for token in filter(_ends_soon, found):
        say(expiry_words(token), to_error=True)
    return 0


def _token_row(token: Mapping[str, Any]) -> list[str]:
    """A token as a row under `TOKEN_HEAD`."""
    left = token["expires_in_s"]
    return [
        str(token["id"]), token["role"], token["project"] or "all", token["run"] or "all",
        token["person"] or "-", token["name"] or "-", "session" if token["session"] else "token",
        "never" if left is None else duration_phrase(left), token["created_by"],
    ]  # fmt: skip


def _revoke(api: Api, options: Namespace) -> int:
    api.delete(f"/v1/tokens/{options.id}", reason=options.reason)
    said = (
        f"token {options.id} works no longer, nor does any session that it opened or token that "
        "was made with it"
    )
    return told(options, {"id": options.id, "revoked": True}, said)


_TOKEN_WORDS: dict[str, Callable[[Api, Namespace], int]] = {
    "create": _create,
    "list": _list,
    "revoke": _revoke,
}

# --- policies ---------------------------------------------------------------------------------


def policy_over_http(options: Namespace) -> int:
    """One of import, show, drop, halt, resume."""
    RunId(options.project, getattr(options, "run", None) or "any")  # refuses what can't be a name
    return _POLICY_WORDS[options.word](Api(load_credentials()), options)


def _show(api: Api, options: Namespace) -> int:
    if options.run is None:
        found = api.get("/v1/policy", project=options.project)
    else:
        found = api.get(f"{run_path(RunId(options.project, options.run))}/policy")
    if options.json:
        print_json(found)
        return 0
    if options.run is not None:
        say(f"# {_policy_name(found)}")
    print(to_toml(found["policy"]), end="")
    return 0


def _policy_name(body: Mapping[str, Any]) -> str:
    """`policy 2`, `policy 1 of the run`."""
    return f"policy {body['version']}" + (" of the run" if body["scope"] == "run" else "")


def _import(api: Api, options: Namespace) -> int:
    policy = read_toml(options.file)
    if options.run is not None:
        run = RunId(options.project, options.run)
        body = {"policy": policy, "reason": options.reason}
        written = api.put(f"{run_path(run)}/policy", body)
        return told(options, written, f"{_policy_name(written)} is in force for {run} alone")
    body = {"project": options.project, "policy": policy, "reason": options.reason}
    written = api.put("/v1/policy", body)
    said = f"{_policy_name(written)} is in force for project {options.project}"
    return told(options, written, said)


def _drop(api: Api, options: Namespace) -> int:
    run = RunId(options.project, options.run)
    api.delete(f"{run_path(run)}/policy", reason=options.reason)
    left = api.get(f"{run_path(run)}/policy")
    return told(options, left, f"{run} follows its project again: {_policy_name(left)}")


def _switch(api: Api, options: Namespace) -> int:
    body = {"project": options.project, "reason": options.reason}
    written = api.post(f"/v1/policy/{options.word}", body)
    stands = "on: nothing is approved, nothing delivered" if options.word == "halt" else "off"
    switch = f"the kill switch of project {options.project} is {stands}"
    return told(options, written, f"policy {written['version']}: {switch}")


_POLICY_WORDS: dict[str, Callable[[Api, Namespace], int]] = {
    "import": _import,
    "show": _show,
    "drop": _drop,
    "halt": _switch,
    "resume": _switch,
}


def to_toml(plain: Mapping[str, Any], prefix: str = "") -> str:
    """A mapping of numbers, texts, lists and tables as TOML, in order."""
    tables = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
    lines = [
        f"{_key(name)} = {_literal(value)}\n" for name, value in plain.items() if name not in tables
    ]
    for name, value in tables.items():
        inner = to_toml(value, f"{prefix}{_key(name)}.")
        lines.append(inner if _only_tables(value) else f"\n[{prefix}{_key(name)}]\n{inner}")
    return "".join(lines)


def _only_tables(plain: Mapping[str, Any]) -> bool:
    return all(isinstance(value, Mapping) for value in plain.values())


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_literal(inner)}" for name, inner in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """A string of one line: what would not show is written as an escape that TOML reads back."""
    inner = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(_escape(c) if printable(c) != c else c for c in inner) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


# --- channels ---------------------------------------------------------------------------------


def _channels(options: Namespace) -> int:
    """One of list, put, remove, test."""
    RunId(options.project, "any")  # refuses what can't be a name
    return _CHANNEL_WORDS[options.word](Api(load_credentials()), options)


def _list_channels(api: Api, options: Namespace) -> int:
    found = api.get("/v1/channels", project=options.project)["items"]
    nothing = f"Project {options.project} has no channel."
    return print_list(options, found, CHANNEL_HEAD, _channel_row, nothing)


def _channel_row(channel: Mapping[str, Any]) -> list[str]:
    return [
        channel["name"], channel["kind"], json.dumps(channel["target"], ensure_ascii=False),
        str(channel["level"]), "yes" if channel["enabled"] else "no", channel["changed_by"],
    ]  # fmt: skip


def _put_channel(api: Api, options: Namespace) -> int:
    """The rules come from a file, since a target holds secrets and a command line is seen."""
    wanted = read_toml(options.file)
    body = wanted if options.reason is None else {**wanted, "reason": options.reason}
    made = api.put(channel_path(options.project, options.name), body)
    said = f"channel {made['name']} of project {options.project} is written: {made['kind']}"
    return told(options, made, said)


def _remove_channel(api: Api, options: Namespace) -> int:
    api.delete(channel_path(options.project, options.name), reason=options.reason)
    said = f"channel {options.name} of project {options.project} is told nothing any more"
    return told(options, {"name": options.name, "removed": True}, said)


def _test_channel(api: Api, options: Namespace) -> int:
    tested = api.post(f"{channel_path(options.project, options.name)}/test", {})
    reason = f": {tested['reason']}" if tested["reason"] else ""
    told(options, tested, f"{tested['result']}{reason} ({tested['took_ms']:.0f} ms)")
    return 0 if tested["result"] == "sent" else 1


_CHANNEL_WORDS: dict[str, Callable[[Api, Namespace], int]] = {
    "list": _list_channels,
    "put": _put_channel,
    "remove": _remove_channel,
    "test": _test_channel,
}


def _channel_options(parser: ArgumentParser) -> None:
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    listing = words.add_parser("list", help="list the channels, without their secrets")
    put = words.add_parser("put", help="make a channel or replace its rules (an admin)")
    remove = words.add_parser("remove", help="remove a channel (an admin)")
    test = words.add_parser("test", help="send a test message")
    for word in (put, remove, test):
        word.add_argument("name", metavar="NAME", help="of the channel")
    put.add_argument(
        "file", type=Path, metavar="FILE",
        help="TOML: kind, [target], and what the API's ChannelWanted takes besides",
    )  # fmt: skip
    for word in (put, remove):
        word.add_argument("--reason", help="why; the record keeps it")
    for word in (listing, put, remove, test):
        word.add_argument("--project", default=DEFAULT_PROJECT, help="which one (default: default)")
        json_option(word)


COMMANDS: tuple[Command, ...] = (
    client_command(
        "channels", "list, write and test notification channels", _channels, _channel_options
    ),
)
