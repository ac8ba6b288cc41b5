"""Orders that have to be signed: what whoever stands between can do to them, and what not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spikeguard_protocol import (
    Ack,
    AttemptStarted,
    CommandResult,
    Order,
    ResultState,
    ScaleLr,
    encode,
    read_ack,
)
from spikeguard_protocol.order_signature import OrderKey, Signed, read_order_keys, sign

from .job import FAST, Job
from .wire import Wire, await_that, served

NEW, OLD, FOREIGN = (OrderKey(bytes([n]) * 32) for n in (1, 2, 3))
LOWER = ScaleLr(0.5, 10)
SOON = 60.0


def key_file(folder: Path, *keys: OrderKey) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "order_keys"
    path.write_text(
        "# of two keys one is on its way out\n" + "\n".join(k.secret.hex() for k in keys)
    )
    return str(path)


def signed_by(key: OrderKey, order: Order, valid_s: float = SOON) -> Order:
    about = Signed(order.command, order.attempt, order.action, order.expires_at_step)
    return replace(order, signature=sign(key, about, time.time() + valid_s))


def order_for(wire: Wire, number: int, **changes: Any) -> Order:
    details: dict[str, Any] = {"expires_in_s": 60.0, "expires_at_step": 10_000, **changes}
    return Order(f"test#1.{number}", wire.attempt, LOWER, **details)


def answered(wire: Wire, job: Job, order: Order) -> CommandResult:
    wire.orders.append(order)

    def look() -> CommandResult | None:
        job.train_step()
        return wire.result(order.command)

    found: CommandResult = await_that(look)
    return found


Change = Callable[[Order], Order]
WRONG: list[tuple[str, Change, str]] = [
    ("unsigned", lambda o: o, "it is not signed; this job takes orders that are signed with key"),
    ("a key of another job", lambda o: signed_by(FOREIGN, o), f"signed with key {FOREIGN.name}; "),
    (
        "other arguments",
        lambda o: replace(signed_by(NEW, o), action=ScaleLr(0.4, 10)),
        "is of another order",
    ),
    (
        "another verb's arguments",
        lambda o: replace(signed_by(NEW, o), action=ScaleLr(0.5, 11)),
        "is of another order",
    ),
    (
        "another number",
        lambda o: replace(signed_by(NEW, replace(o, command="test#1.99")), command=o.command),
        "is of another order",
    ),
    (
        "another attempt",
        lambda o: replace(signed_by(NEW, replace(o, attempt="f" * 16)), attempt=o.attempt),
        "is of another order",
    ),
    (
        "a later last step",
        lambda o: replace(signed_by(NEW, o), expires_at_step=20_000),
        "is of another order",
    ),
    (
        "a later end in time",
        lambda o: replace(s := signed_by(NEW, o), signature=_later(s.signature)),
        "is of another order",
    ),
    ("too late", lambda o: signed_by(NEW, o, -301.0), "its signature was good until"),
    (
        "a command of another run",
        lambda o: signed_by(NEW, replace(o, command=f"other#{o.command.rpartition('#')[2]}")),
        "it was signed as a command of another run; this one is test",
    ),
    ("garbage", lambda o: replace(o, signature="\x1b[2J"), "none that this release knows"),
]


def _later(signature: str | None) -> str:
    name, until, mac = str(signature).split(".")
    return f"{name}.{int(until) + 10_000}.{mac}"


def test_only_what_was_signed_for_this_attempt_is_carried_out_by_either_of_two_keys(
    tmp_path: Path,
) -> None:
    """Between the job and whoever signs stands a server that lies."""
    settings = replace(FAST, order_keys_file=key_file(tmp_path / "keys", NEW, OLD))
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, settings=settings)
        job.train_to(5)
        await_that(lambda: wire.messages)
        for number, (what, change, reason) in enumerate(WRONG, 1):
            order = change(order_for(wire, number))
            result = answered(wire, job, order)
            assert (what, result.state) == (what, ResultState.REFUSED)
            assert reason in result.reason
        assert '"begun"' not in (tmp_path / "guard/journal.jsonl").read_text()
        for number, key in ((50, NEW), (51, OLD)):
            result = answered(wire, job, signed_by(key, order_for(wire, number)))
            assert result.state is ResultState.APPLIED, result.reason
        job.guard.finish()
        started = wire.records(AttemptStarted)[0]
    assert started.settings["order_keys"] == f"{NEW.name},{OLD.name}"
    told = " ".join([*started.settings.values(), (tmp_path / "guard/journal.jsonl").read_text()])
    assert NEW.secret.hex() not in told


@pytest.mark.parametrize(
    "content", [None, b"", b"no key\n", b"\xff\xfe", b"ab" * 32 + b"\n" + b"c"]
)
def test_keys_that_cannot_be_read_refuse_every_order_and_no_training(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "order_keys"
    if content is not None:
        path.write_bytes(content)
    settings = replace(FAST, order_keys_file=str(path))
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, settings=settings)
        job.train_to(5)
        await_that(lambda: wire.messages)
        result = answered(wire, job, signed_by(NEW, order_for(wire, 1)))
        job.guard.finish()
    assert result.state is ResultState.REFUSED
    assert "its keys cannot be read" in result.reason
    assert "SPIKEGUARD_ORDER_KEYS_FILE" in result.reason
    assert "no order will be carried out" in caplog.text


def test_an_order_without_a_signature_is_written_as_older_agents_know_it() -> None:
    order = Order("test#1.1", "a" * 16, LOWER, 60.0, None)
    assert b"signature" not in encode(Ack(1, (order,)))
    ack, bad = read_ack(encode(Ack(1, (signed_by(NEW, order),))))
    assert not bad
    assert ack.orders[0].signature is not None


def test_the_file_of_keys_names_its_wrong_line_and_never_what_stands_there() -> None:
    assert [key.name for key in read_order_keys(f"\n# a\n{NEW.secret.hex()}\n")] == [NEW.name]
    with pytest.raises(ValueError, match="line 2 is no key") as error:
        read_order_keys(f"{NEW.secret.hex()}\n{'s3cret' * 9}\n")
    assert "s3cret" not in str(error.value)
