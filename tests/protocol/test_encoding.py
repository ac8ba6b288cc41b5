"""What the encoding promises: everything survives the way, and nothing bad gets in or is made."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
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
    CommandId,
    CommandResult,
    EvenRanges,
    Gap,
    IncidentId,
    LayerNorms,
    Medium,
    Message,
    Order,
    ProtocolError,
    Record,
    ResultState,
    Rollback,
    RunId,
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
from spikeguard_protocol.paths import command_path

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


IDENTITIES: list[tuple[Callable[[str], object], list[str], list[str]]] = [
    (
        RunId.parse,
        ["gpt-1", "team/gpt-1", "a.b_c-d", "7"],
        ["", "/x", "a/b/c", "-x", "a b", "a#b", "x" * 65, "default/"],
    ),
    (
        IncidentId.parse,
        ["gpt-1#3", "team/gpt.1#12"],
        ["gpt-1", "gpt-1#", "gpt-1#0", "gpt-1#-1", "gpt-1#x", "#3", "gpt-1#" + "9" * 5_000],
    ),
    (
        CommandId.parse,
        ["team/gpt.1#12.2", "gpt-1#0.2"],
        [
            *("gpt.1#12", "gpt-1#1.0", "gpt-1#0.0", "#0.1", "gpt-1.2", "gpt-1#1.x"),
            "gpt-1#1." + "9" * 5_000,
        ],
    ),
]


@pytest.mark.parametrize(("parse", "sound", "others"), IDENTITIES)
def test_an_identity_reads_back_as_it_is_written_and_what_is_none_is_refused(
    parse: Callable[[str], object], sound: list[str], others: list[str]
) -> None:
    assert [str(parse(text)) for text in sound] == sound
    for text in others:
        with pytest.raises(ProtocolError):
            parse(text)


def test_a_command_of_a_run_itself_names_no_incident() -> None:
    command = CommandId.parse("team/gpt.1#0.2")
    assert (str(command), command.of_run, command.number) == ("team/gpt.1#0.2", True, 2)
    assert command_path(command) == "/v1/runs/team/gpt.1/commands/2"
    command = CommandId.parse("team/gpt.1#12.2")
    assert (command.of_run, command.incident.number, command.number) == (False, 12, 2)


def test_a_rollback_with_half_a_learning_rate_change_cannot_be_made() -> None:
    with pytest.raises(ProtocolError, match="lr_steps"):
        Rollback("checkpoint-1", 1, None, 0.5, None)


@pytest.mark.parametrize("factor", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_learning_rate_is_never_raised_or_zeroed(factor: float) -> None:
    with pytest.raises(ProtocolError, match="lr_factor"):
        Rollback("checkpoint-1", 1, None, factor, 10)


@pytest.mark.parametrize("ends", [(5, 5), (5, 4), (-1, 4)])
def test_an_empty_range_cannot_be_made(ends: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError):
        BatchRange(*ends)


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 40), st.data())
def test_even_ranges_are_the_ranges_that_they_stand_for(
    first: int, size: int, length: int, data: st.DataObject
) -> None:
    ranges = [BatchRange(at, at + size) for at in range(first, first + length * size, size)]
    even = EvenRanges.of(ranges)
    assert even == EvenRanges(first, size, length)
    assert list(even) == ranges
    assert [even[row] for row in range(-length, length)] == ranges + ranges
    begin, end = data.draw(st.integers(-50, 50)), data.draw(st.integers(-50, 50))
    assert list(even[begin:end]) == ranges[begin:end]
    assert list(even[begin:end:2]) == ranges[begin:end:2]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [None, BatchRange(1, 2)],
        [BatchRange(1, 2), None],
        [BatchRange(1, 2), BatchRange(3, 4)],
        [BatchRange(1, 2), BatchRange(2, 4)],
        [BatchRange(4, 5), BatchRange(3, 4)],
    ],
)
def test_what_is_not_even_is_not_told_as_if_it_were(ranges: list[BatchRange | None]) -> None:
    assert EvenRanges.of(ranges) is None


@pytest.mark.parametrize(
    ("field", "numbers"),
    [("first", (-1, 1, 1)), ("size", (0, 0, 1)), ("length", (0, 1, -1)), ("length", (0, 2, 2**53))],
)
def test_ranges_that_no_run_has_cannot_be_made(field: str, numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match=field):
        EvenRanges(*numbers)
