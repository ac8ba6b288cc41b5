"""Signatures of orders, by whoever approves or gives them, with a key that the server may not hold.

Law: what is signed was printed first. Of an order of one's own nothing is signed but that order, of
the run that was named, whatever the server says it made of it; and every signature ends.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.orders import arguments_of
from spikeguard_protocol import Action, CommandId, RunId, action_words, from_json
from spikeguard_protocol.escaping import printable
from spikeguard_protocol.order_signature import Signed, read_order_keys, sign
from spikeguard_protocol.orders import read_action

SIGNED_MOST_S: Final = 31 * 86_400.0  # that a signature is good for


def order_of(command: dict[str, Any]) -> Signed:
    """What `command` would have the job do: this is signed, so this is shown."""
    action = from_json(Action, read_action(command["verb"], command["arguments"]))
    return Signed(command["id"], command["attempt"] or "", action, command["expires_at_step"])


def as_ordered(
    made: dict[str, Any], run: RunId, body: dict[str, Any], offered: dict[str, Any]
) -> Signed:
    """What the server `made` of the order `body` of `run`, if it is that order; raise
    `CommandFailed` where it is another, or of another run."""
    arguments = arguments_of(body, offered)
    given = {name: value for name, value in arguments.items() if value is not None}
    wanted = from_json(Action, read_action(body["verb"], given))
    order = order_of(made)
    if order.action == wanted and CommandId.parse(order.command).incident.run == run:
        return order
    told = printable(f"{action_words(order.action)} as {order.command}")[:300]
    raise CommandFailed(
        f"{run} was ordered to {action_words(wanted)}, and the server made {told} of it: it is not "
        "signed. Reject it, and look who answers in the server's place"
    )


def left_s(command: dict[str, Any]) -> float:
    """How long an order is good for; an end that is none, or years away, is not signed."""
    left = float(command["expires_in_s"] or 0.0)
    if not 0.0 <= left <= SIGNED_MOST_S:
        raise CommandFailed(
            f"the server says that this is good for {left:g} s; it takes 0 to {SIGNED_MOST_S:g} "
            "to be signed"
        )
    return left


def signature_of(order: Signed, good_for_s: float, path: Path) -> str:
    """Of `order`, with the first key in the file."""
    try:
        key = read_order_keys(path.read_text())[0]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CommandFailed(f"{path} holds no key to sign orders with: {why}") from error
    return sign(key, order, time.time() + good_for_s)
