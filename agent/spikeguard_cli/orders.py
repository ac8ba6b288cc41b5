"""What a person orders on the command line, in its own words or as an edited proposal."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from spikeguard_cli.api import Api, Refused
from spikeguard_cli.command import Changed, CommandFailed
from spikeguard_cli.options import checked, nats, step_count
from spikeguard_cli.wording import command_words, cost_words, proposal_words
from spikeguard_protocol import CommandId, IncidentId, RunId, Verb
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.paths import incident_path, run_path
from spikeguard_protocol.phrases import duration_phrase

CHANGING = frozenset({"rollback", "skip_batches", "scale_lr", "apply"})
OF_INCIDENT = CHANGING | {"watch", "stop"}  # takes the place of a proposal, where one is open
_SHOWN_TARGETS = 8
_SHOWN_DONE = 5


def options_of(api: Api, run: RunId) -> dict[str, Any]:
    """What can be ordered of a run now."""
    return api.get(f"{run_path(run)}/options")


def order_body(
    verb: str, options: Namespace, offered: dict[str, Any], before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The order as the API takes it: what was given, in place of what `before`, the arguments of a
    proposal, says."""
    known: dict[str, Any] = {one["verb"]: one for one in offered["verbs"]}.get(verb, {})
    if not known.get("possible", True):
        raise CommandFailed(". ".join(said for said in (known["reason"], known["remedy"]) if said))
    given = {name: getattr(options, name) for name in ("skip", "factor", "steps", "mitigation")}
    said = {_NAMES.get((verb, name), name): value for name, value in given.items()}
    if options.to is not None:
        target = _target(options.to, offered)
        said |= {"target": target["name"], "step": target["step"]}
    arguments = (before or {}) | {name: value for name, value in said.items() if value is not None}
    if verb == "rollback" and "steps" in arguments:
        of = (("lr_steps", "lr_factor"), ("apply_steps", "apply"))
        lasting = [steps for steps, what in of if arguments.get(what) is not None]
        arguments |= dict.fromkeys(lasting or ["steps"], arguments.pop("steps"))
    if options.factor is not None:
        arguments.pop("lr_cap", None)
    return {"verb": verb, "arguments": {n: v for n, v in arguments.items() if v is not None}}


_NAMES = {  # of what an option gives, as the protocol calls it
    ("rollback", "factor"): "lr_factor",
    ("rollback", "mitigation"): "apply",
    ("skip_batches", "skip"): "batches",
    ("apply", "mitigation"): "name",
}


def edits(options: Namespace) -> bool:
    """Whether an approval changes what is proposed."""
    given = (options.to, options.skip, options.factor, options.steps, options.mitigation)
    return options.no_skip or any(value is not None for value in given)


def edited_body(
    proposal: dict[str, Any], options: Namespace, offered: dict[str, Any]
) -> dict[str, Any]:
    """The proposal with what was given in place of what it says."""
    verb = proposal["verb"] if options.to is None else "rollback"
    before = dict(proposal["arguments"]) if verb == proposal["verb"] else {}
    if options.no_skip:
        before |= {"skip": None, "batches": None}
    body = order_body(verb, options, offered, before)
    arguments = body["arguments"]
    if "lr_cap" in arguments and options.steps is None:  # up to the same step as was proposed
        arguments["lr_steps"] += before["step"] - arguments["step"]
    return body


def _target(text: str, offered: dict[str, Any]) -> dict[str, Any]:
    """By its name, or by the step that it was taken at; of two of one step the one on disk."""
    found = [t for t in offered["targets"] if text in (t["name"], str(t["step"]))]
    found.sort(key=lambda target: (target["name"] != text, target["medium"] != "disk"))
    if found:
        first: dict[str, Any] = found[0]
        return first
    there = ", ".join(t["name"] for t in offered["targets"][:_SHOWN_TARGETS]) or "none"
    raise CommandFailed(f"the run has no snapshot or checkpoint {text}: it has {there}")


def planned_lines(body: dict[str, Any], offered: dict[str, Any]) -> list[str]:
    """What is going to be done, what it costs, and the health of what it goes back to."""
    arguments = body["arguments"]
    rated = {"factor", "lr_factor", "name", "apply"} & arguments.keys()
    if rated and not {"steps", "lr_steps", "apply_steps"} & arguments.keys():
        raise CommandFailed("a lower learning rate and a mitigation last --steps STEPS: give them")
    lines = [command_words(body)]
    target = next((t for t in offered["targets"] if t["name"] == arguments.get("target")), None)
    if target is not None:
        lines.append(f"  costs: {cost_words(target['cost'])}")
        lines.append(
            f"  to:    {target['name']}, {target['medium']}, "
            f"{duration_phrase(target['age_s'])} old, {target['health']}"
        )
    return [printable(line) for line in lines]


def send_order(
    api: Api, run: RunId, body: dict[str, Any], options: Namespace, seen: dict[str, Any]
) -> dict[str, Any]:
    """Order it of the open incident in place of the proposal that was `seen`, else of the run."""
    body = {**body, "reason": options.reason, "expires_in_s": options.within, **expected(options)}
    number = seen["incident"]
    if number is None or body["verb"] not in OF_INCIDENT:
        return api.post(f"{run_path(run)}/commands", body)
    if seen["command"] is not None:
        body |= {"command": seen["command"], "revision": seen["revision"]}
    return post_on_seen(api, f"{incident_path(IncidentId(run, number))}/commands", body)


def post_on_seen(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Order or decide on the revision in `body`; raise `Changed` where there is a newer one."""
    try:
        return api.post(path, body)
    except Refused as refusal:
        if refusal.code != "revision_changed":
            raise
        current = refusal.body["current"]
        raise Changed(
            "The proposal has changed meanwhile; nothing was done. It now reads:\n"
            f"{proposal_words(current)}\n"
            "Look at it and decide again: spikeguard show "
            f"'{CommandId.parse(current['id']).incident}'"
        ) from refusal


def named(asked: CommandId | IncidentId, command: dict[str, Any]) -> dict[str, Any]:
    """`command`, where it is what was `asked` for, or of it: nobody decides on what they did not
    name."""
    id = CommandId.parse(command["id"])
    if asked not in (id, id.incident):
        told = printable(str(command["id"]))[:200]
        raise CommandFailed(f"asked for {asked}, the server answered with {told}: nothing done")
    return command


def expected(options: Namespace) -> dict[str, Any]:
    """`--expect` and `--by` as the API takes them; what was not given is left out."""
    if options.by is not None and options.expect not in ("lower", "higher"):
        raise CommandFailed("--by is the size of an effect: give --expect lower or higher with it")
    said = {"expect": options.expect, "expect_size": options.by}
    return {name: value for name, value in said.items() if value is not None}


def done_lines(api: Api, run: RunId) -> list[str]:
    """What was done to a run lately: by whom, why, what was expected, what came of it."""
    found = api.get(f"{run_path(run)}/interventions", limit=_SHOWN_DONE)["items"]
    lines = ["what was done, newest first"] if found else []
    for one in found:
        at = "" if one["step"] is None else f" at step {one['step']:,}"
        by = one["by"] if one["approved_by"] in (None, one["by"]) else (
            f"{one['by']}, approved by {one['approved_by']}"
        )  # fmt: skip
        lines.append(f"  {one['id']}{at}: {one['what']} ({by})")
        if one["why"]:
            lines.append(f"    why: {' '.join(one['why'].split())}")
        if one["expect"]:
            lines.append(f"    expected of the loss: {one['expect']}")
        lines += [
            f"    {said}" for said in dict.fromkeys((one["outcome"], one["judgement"])) if said
        ]
    return [printable(line) for line in lines]


skip_range = checked(
    lambda text: [int(part) for part in text.split(":")],
    lambda ends: len(ends) == 2 and 0 <= ends[0] < ends[1],
    "is no range: write A:B for batches A to B - 1",
)
factor = checked(
    float,
    lambda value: 0.0 < value <= 1.0,
    "is no factor of a learning rate: give above 0, up to 1",
)


def add_order_options(parser: ArgumentParser) -> None:
    """What an order, or an edited proposal, says beside its verb."""
    parser.add_argument(
        "--to", metavar="TARGET", help="rollback: name of a checkpoint or snapshot, or its step"
    )
    parser.add_argument(
        "--skip", type=skip_range, metavar="A:B",
        help="batches A to B - 1 to leave out; for a rollback: after its target",
    )  # fmt: skip
    parser.add_argument("--factor", type=factor, help="of every learning rate, above 0 up to 1")
    parser.add_argument(
        "--steps",
        type=step_count,
        help="for how many steps; watch: steps until the policy looks again",
    )
    parser.add_argument(
        "--with", dest="mitigation", metavar="NAME",
        help="apply: the mitigation; rollback: with which the run goes on, for --steps",
    )  # fmt: skip
    add_expect_options(parser)


def add_expect_options(parser: ArgumentParser) -> None:
    """What a change is expected to do."""
    parser.add_argument(
        "--expect", choices=("lower", "higher", "none"),
        help="what you expect of the loss against its trend; it is measured afterwards",
    )  # fmt: skip
    parser.add_argument("--by", type=nats, metavar="NATS", help="by how much")


def seen_of(proposal: dict[str, Any], revision: int | None) -> dict[str, Any]:
    """The proposal that an order takes the place of."""
    id = CommandId.parse(proposal["id"])
    number = revision or proposal["revision"]
    return {"incident": id.incident.number, "command": id.number, "revision": number}


VERBS = {
    "rollback": Verb.ROLLBACK,
    "skip": Verb.SKIP_BATCHES,
    "scale-lr": Verb.SCALE_LR,
    "apply": Verb.APPLY,
    "checkpoint": Verb.CHECKPOINT_NOW,
    "stop": Verb.STOP,
    "watch": Verb.WATCH,
}
