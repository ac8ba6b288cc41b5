"""Every command of `spikeguard` with its arguments, options and exit codes."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Mapping

from benchmarks.reference.table import table
from spikeguard_cli.command import EXITS, Command
from spikeguard_cli.main import find_commands

HEAD = """# Commands

Every command of `spikeguard` with its arguments and options, as `spikeguard COMMAND --help` says
them.

Ids such as `gpt-7#3` and `gpt-7#3.1` want quotes: a shell takes `#` for a comment.

`--json` prints one JSON document, as the API answers; long lists also take `--jsonl`, one object a
line as they come, and `watch --json` writes a line for each change. `--limit` counts entries, the
newest or most pressing first, and 0 lists all. `--since` takes a duration (`15min`, `24h`, `7d`
ago) or a time (`2026-03-14`, `2026-03-14T03:00Z`; UTC where it names no zone). An error is one line
on stderr and names what to type next.
"""
EXIT_CODES = "## Exit codes\n\nOf every command; one with codes of its own lists them.\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD, EXIT_CODES, _exits(EXITS)]
    for command in find_commands():
        parser = ArgumentParser(prog=f"spikeguard {command.name}", add_help=False)
        command.configure(parser)
        parts += [*_of_parser(parser, 2, command.summary, _installed_by(command))]
        if command.exits:
            parts += ["Exit codes of its own:\n", _exits(command.exits)]
    return "\n".join(parts)


def _installed_by(command: Command) -> str:
    return f" Needs the extra `{command.extra}`." if command.extra else ""


def _exits(codes: Mapping[int, str]) -> str:
    return table(("code", "meaning"), [(str(code), words) for code, words in codes.items()])


def _of_parser(parser: ArgumentParser, level: int, summary: str, more: str = "") -> Iterator[str]:
    """A command's section, and those of the commands below it."""
    yield f"{'#' * level} `{parser.prog}`\n"
    yield f"{summary[:1].upper()}{summary[1:]}.{more}\n"
    rows = [
        (_call(one), _help(parser, one), _default(one))
        for one in parser._actions
        if one.help != SUPPRESS and not isinstance(one, _SubParsersAction) and one.dest != "help"
    ]
    if rows:
        yield table(("argument", "meaning", "default"), rows)
    for one in parser._actions:
        if isinstance(one, _SubParsersAction):
            words = {choice.dest: choice.help or "" for choice in one._choices_actions}
            for name, below in one.choices.items():
                yield from _of_parser(below, level + 1, words.get(name, ""))


def _call(one: Action) -> str:
    """`--limit N`, `DIR`."""
    value = one.metavar if isinstance(one.metavar, str) else one.dest.upper()
    if one.choices is not None and one.metavar is None:
        value = "{" + ",".join(map(str, one.choices)) + "}"
    if not one.option_strings:
        return f"`{value}`" if one.nargs not in ("?", "*") else f"`[{value}]`"
    names = ", ".join(f"`{name}`" for name in one.option_strings)
    required = ", required" if one.required else ""
    return f"{names}{'' if one.nargs == 0 else f' `{value}`'}{required}"


def _help(parser: ArgumentParser, one: Action) -> str:
    if not one.help:
        raise KeyError(f"{parser.prog}: {one.dest} has no help")
    return parser._get_formatter()._expand_help(one)


def _default(one: Action) -> str:
    plain = one.default is None or one.default is False or one.default in (SUPPRESS, [], ())
    return "" if plain or one.nargs == 0 else f"`{one.default}`"
