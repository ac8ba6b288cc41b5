"""Identities are checked when made and read back as they were written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spikeguard_protocol import CommandId, IncidentId, ProtocolError, Rollback, RunId
from spikeguard_protocol.paths import command_path

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
