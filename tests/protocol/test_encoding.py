"""What the encoding promises: everything survives the way, and nothing bad gets in."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from spikeguard_protocol import (
    Ack,
    AttemptEnded,
    AttemptStarted,
    BatchDetail,
    BatchRange,
    CheckpointNow,
    CommandResult,
    EvenRanges,
    Gap,
    LayerNorms,
    Medium,
    Message,
    Order,
    ProtocolError,
    Record,
    ResultState,
    Rollback,
    Samples,
    ScaleLr,
    SegmentId,
    SegmentPoint,
    SegmentReason,
    SegmentStarted,
    SkipBatches,
    Stop,
    TargetDeleted,
    TargetSaved,
    UnknownVersion,
    Watch,
    decode_ack,
    decode_message,
    encode,
)

ATTEMPT = "0123456789abcdef"
LONG = "a" * 201
POINT = SegmentPoint(SegmentId(ATTEMPT, 0), 400)
RECORDS: tuple[Record, ...] = (
    AttemptStarted(POINT, 8, ("rollback",), "0.1.0", 4096, {"beta2": "0.95"}),
    SegmentStarted(1, SegmentReason.ROLLBACK, POINT, 410, "gpt-1#3.1"),
    Samples(
        1,
        (401, 402),
        {"loss": (2.5, math.nan), "grad_norm": (None, math.inf), "x": (-math.inf, 0.0)},
        (BatchRange(410, 411), None),
    ),
    Samples(1, (403, 404), {"loss": (2.5, 2.4)}, EvenRanges(411, 2, 2)),
    LayerNorms(1, 401, "grad_norm", {"blocks.0.attn": 0.25, "head": math.inf}),
    TargetSaved("checkpoint-400", 0, 400, 400, Medium.DISK),
    TargetDeleted("checkpoint-100"),
    CommandResult("gpt-1#3.1", ResultState.APPLIED, "rolled back", 420),
    Gap(7, 9, "disk full", 300),
    AttemptEnded("finished"),
    BatchDetail(0, 1, 0, 1, ("doc-17",)),
)
ROLLBACK = Rollback("checkpoint-400", 400, BatchRange(410, 420), 0.5, 100)
ACK = Ack(4, (Order("gpt-1#3.1", ATTEMPT, ROLLBACK, 60.0, None),), True, ("checkpoint-400",))


def message(*records: Record, sequence: int = 1) -> Message:
    return Message("default", "gpt-1", ATTEMPT, sequence, 0.25, records)


def plain(*records: Record) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encode(message(*records)))
    return body


def refused(body: object) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_message(json.dumps(body).encode())
    return caught.value


def test_every_record_survives_the_way() -> None:
    sent = message(*RECORDS)
    assert repr(decode_message(encode(sent))) == repr(sent)  # repr: NaN is not equal to itself


def test_every_order_survives_the_way() -> None:
    actions = (
        SkipBatches(BatchRange(5, 9)),
        ROLLBACK,
        Rollback("checkpoint-400", 400),
        ScaleLr(0.5, 10),
        CheckpointNow(),
        Watch(200),
        Stop(),
    )
    orders = tuple(Order("gpt-1#3.1", ATTEMPT, action, 60.0, 500) for action in actions)
    ack = Ack(7, orders, True, ("checkpoint-400",), 1)
    assert decode_ack(encode(ack)) == ack


def test_what_travels_is_json_that_any_reader_takes() -> None:
    def refuse(word: str) -> float:
        raise AssertionError(word)

    json.loads(encode(message(*RECORDS)), parse_constant=refuse)


def test_a_bare_nan_is_refused_with_the_way_to_write_it() -> None:
    body = encode(message()).replace(b'"age_s":0.25', b'"age_s":NaN')
    with pytest.raises(ProtocolError, match='"nan"'):
        decode_message(body)


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "a b", "x" * 200])
def test_a_target_that_nobody_can_have_saved_cannot_be_deleted(name: str) -> None:
    """Half a character of UTF-16 is JSON, and no text that a database takes."""
    deleted = {"type": "TargetDeleted", "name": name}
    assert refused({**plain(), "records": [deleted]}).field == "body.records.name"


@pytest.mark.parametrize(("field", "kind", "given"), [
    ("agent_version", AttemptStarted, (None, 1, (), LONG)),
    ("capabilities", AttemptStarted, (None, 1, (LONG,), "1")),
    ("settings", AttemptStarted, (None, 1, (), "1", None, {LONG: "x"})),
    ("command", SegmentStarted, (0, SegmentReason.START, None, 0, f"gpt-1#3.{LONG}")),
    ("signal", LayerNorms, (0, 1, LONG, {})),
    ("norms", LayerNorms, (0, 1, "grad_norm", {10 * LONG: 1.0})),
])  # fmt: skip
def test_a_text_without_an_end_is_refused_by_its_field(
    field: str, kind: Any, given: tuple[Any, ...]
) -> None:
    """What a job says of itself is kept, and shown to everybody who looks at its run."""
    with pytest.raises(ProtocolError) as error:
        kind(*given)
    assert error.value.field == field


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_an_unknown_version_is_told_apart_from_a_bad_message(version: object) -> None:
    assert isinstance(refused({**plain(), "version": version}), UnknownVersion)


def test_a_message_over_the_size_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="bytes"):
        decode_message(b"{" + b" " * 10_000_000)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_never_raises_anything_but_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(body)


json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(plain(*RECORDS))), json_values)
def test_any_value_in_any_field_is_read_or_refused_by_name(name: str, value: object) -> None:
    body = json.dumps({**plain(*RECORDS), name: value}).encode()
    with contextlib.suppress(ProtocolError):  # anything else would be a crash of the reader
        assert isinstance(decode_message(body), Message)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"names": [f"doc-{n}" for n in range(65)]}, "names"),
        ({"names": ["x" * 201]}, "names"),
        ({"names": "doc"}, "names"),
        ({"rank": -1}, "rank"),
        ({"names_cut": -1}, "names_cut"),
    ],
)
def test_what_lay_in_a_batch_is_refused_by_the_limit_it_breaks(
    changed: dict[str, Any], field: str
) -> None:
    record = json.loads(encode(BatchDetail(0, 4, 0, 4)))
    error = refused({**plain(), "records": [{**record, **changed}]})
    assert error.field.startswith("body.records")
    assert error.field.endswith(field)
    assert error.limit
    assert error.remedy
