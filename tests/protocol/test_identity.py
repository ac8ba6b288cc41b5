"""Identities are checked when made and read back as they were written."""

from __future__ import annotations

import pytest

from spikeguard_protocol import CommandId, IncidentId, ProtocolError, Rollback, RunId
from spikeguard_protocol.paths import command_path


@pytest.mark.parametrize("text", ["gpt-1", "team/gpt-1", "a.b_c-d", "7"])
def test_a_run_reads_back_as_it_is_written(text: str) -> None:
    assert str(RunId.parse(text)) == text


@pytest.mark.parametrize("text", ["", "/x", "a/b/c", "-x", "a b", "a#b", "x" * 65, "default/"])
def test_a_name_that_cannot_be_a_run_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        RunId.parse(text)


@pytest.mark.parametrize("text", ["gpt-1#3", "team/gpt.1#12"])
def test_an_incident_reads_back_as_it_is_written(text: str) -> None:
    assert str(IncidentId.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["gpt-1", "gpt-1#", "gpt-1#0", "gpt-1#-1", "gpt-1#x", "#3", "gpt-1#" + "9" * 5_000]
)
def test_a_text_that_names_no_incident_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        IncidentId.parse(text)


def test_a_command_reads_back_as_it_is_written() -> None:
    command = CommandId.parse("team/gpt.1#12.2")
    assert (str(command), command.incident.number, command.number) == ("team/gpt.1#12.2", 12, 2)


def test_a_command_of_a_run_itself_names_no_incident() -> None:
    command = CommandId.parse("team/gpt.1#0.2")
    assert (str(command), command.of_run, command.number) == ("team/gpt.1#0.2", True, 2)
    assert command_path(command) == "/v1/runs/team/gpt.1/commands/2"
    assert not CommandId.parse("team/gpt.1#12.2").of_run


@pytest.mark.parametrize(
    "text",
    [
        "gpt.1#12",
        "gpt-1#1.0",
        "gpt-1#0.0",
        "#0.1",
        "gpt-1.2",
        "gpt-1#1.x",
        "gpt-1#1." + "9" * 5_000,
    ],
)
def test_a_text_that_names_no_command_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        CommandId.parse(text)


def test_a_rollback_with_half_a_learning_rate_change_cannot_be_made() -> None:
    with pytest.raises(ProtocolError, match="lr_steps"):
        Rollback("checkpoint-1", 1, None, 0.5, None)


@pytest.mark.parametrize("factor", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_learning_rate_is_never_raised_or_zeroed(factor: float) -> None:
    with pytest.raises(ProtocolError, match="lr_factor"):
        Rollback("checkpoint-1", 1, None, factor, 10)
