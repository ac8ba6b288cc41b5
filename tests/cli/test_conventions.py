"""What is the same at every command: `--json`, `--limit`, `--since`, exit codes, errors.

Walks over the parsers of all commands that are installed, so that a new one keeps to it too.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, _SubParsersAction
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spikeguard_cli.command import NO_SERVER, NOT_ALLOWED
from spikeguard_cli.main import find_commands, main, parser_of
from spikeguard_cli.options import chosen, entry_count, since

NEVER_ENDS = {"spikeguard serve", "spikeguard demo"}  # until it is stopped
NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)


def leaves(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    """Every command that can be typed."""
    below = [one for one in parser._actions if isinstance(one, _SubParsersAction)]
    for one in below:
        for each in one.choices.values():
            yield from leaves(each)
    if not below:
        yield parser


COMMANDS = {one.prog: one for one in leaves(parser_of(find_commands()))}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_options_that_mean_the_same(name: str) -> None:
    options = {word: one for one in COMMANDS[name]._actions for word in one.option_strings}
    assert "--json" in options or name in NEVER_ENDS
    if "--limit" in options:
        assert options["--limit"].type is entry_count
        assert options["--limit"].help == "how many entries; 0 for all"
    if "--since" in options:
        assert options["--since"].type is since
        assert "--limit" in options


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_typed_wrong_says_what_to_type(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split()[1:], "--no-such-option"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"Next: `{name} --help`\n")


ASKING = (
    ("runs",), ("incidents",), ("show", "gpt-1#3"), ("show", "gpt-1"),
    ("open", "gpt-1"), ("watch", "gpt-1"), ("note", "gpt-1"), ("run", "gpt-1"),
    ("ack", "gpt-1#3"), ("open", "--sign-in"),
    ("approve", "gpt-1#3"), ("reject", "gpt-1#3", "--reason", "x"),
    ("postmortem", "gpt-1#3"), ("audit",), ("audit", "gpt-1"),
    ("channels", "list"),
    ("delete", "gpt-1", "--yes", "--reason", "x"), ("token", "list"), ("policy", "show"),
    ("login", "--server", "http://127.0.0.1:9", "--name", "ada"),
)  # fmt: skip


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_a_server_that_is_gone_and_a_login_that_is_missing_have_codes_of_their_own(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "token").write_text("x")
    if words[0] == "login":
        words = (*words, "--token-file", str(tmp_path / "token"))
    monkeypatch.setenv("SPIKEGUARD_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("SPIKEGUARD_TOKEN", "x")
    monkeypatch.setenv("SPIKEGUARD_CREDENTIALS", str(tmp_path / "none.json"))
    assert main(words) == NO_SERVER
    assert "Next: `spikeguard login --server http://127.0.0.1:9`" in capsys.readouterr().err
    if words[0] in ("login", "token"):
        return  # the first needs no login; the other takes the database without one
    monkeypatch.delenv("SPIKEGUARD_TOKEN")
    assert main(words) == NOT_ALLOWED
    assert "Run `spikeguard login --server URL`" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "at"), [
    ("24h", datetime(2026, 3, 13, 12, tzinfo=UTC)),
    ("15min", datetime(2026, 3, 14, 11, 45, tzinfo=UTC)),
    ("2026-03-14", datetime(2026, 3, 14, tzinfo=UTC)),
    ("2026-03-14T03:00Z", datetime(2026, 3, 14, 3, tzinfo=UTC)),
])  # fmt: skip
def test_since_takes_a_duration_or_a_time(text: str, at: datetime) -> None:
    assert since(text, lambda: NOON) == at


@pytest.mark.parametrize("text", ["yesterday", "", "0h", "9999999d", "-1h"])
def test_a_since_that_is_none_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"write|dates"):
        since(text, lambda: NOON)


def test_limit_counts_what_since_leaves() -> None:
    listed = [{"at": f"2026-03-{day:02}T00:00:00Z"} for day in (14, 13, 12, 11)]
    options = COMMANDS["spikeguard audit"].parse_args(["--since", "2026-03-12", "--limit", "2"])
    assert list(chosen(options, listed, "at")) == listed[:2]
    options.limit = 0
    assert list(chosen(options, listed, "at")) == listed[:3]
    options.since = None
    assert list(chosen(options, listed, "at")) == listed
