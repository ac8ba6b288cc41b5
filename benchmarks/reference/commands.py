"""Every command of `spikeguard` with its arguments, options and exit codes."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.reference.table import table
from spikeguard_cli.command import EXITS
from spikeguard_cli.main import find_commands

HEAD = """# Commands

Every command of `spikeguard` with its arguments and options, as `spikeguard COMMAND --help` says
them.

Ids such as `gpt-7#3` and `gpt-7#3.1` want quotes: a shell takes `#` for a comment. Where no extra
is named, a command needs `cli`.

## Exit codes
"""
COMMON = """## Options of several commands

`--json` prints what the API answers. `--limit` counts the newest or most pressing first.
"""
SHARED_BY = 3  # commands from which an option counts as common


@dataclass(frozen=True, slots=True)
class Argument:
    """What `--help` says of one."""

    call: str  # `--limit` `N`, `DIR`
    meaning: str
    required: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A command, or a group of commands."""

    name: str
    summary: str
    level: int  # of its heading
    arguments: Sequence[Argument]
    below: Sequence[Section] = ()


def page() -> str:
    """The whole page."""
    sections = list(_sections())
    common = _shared(chain(*map(_arguments_of, sections)), SHARED_BY)
    codes = [(str(code), words) for code, words in EXITS.items()]
    parts = [HEAD, table(("code", "meaning"), codes), COMMON, _listed(sorted(common))]
    for section in sections:
        parts += _written(section, common)
    return "\n".join(parts)


def _sections() -> Iterator[Section]:
    for command in find_commands():
        parser = ArgumentParser(prog=f"spikeguard {command.name}", add_help=False)
        command.configure(parser)
        extra = command.extra or "none"
        more = "" if extra == "cli" else f" Extra: {f'`{extra}`' if command.extra else extra}."
        yield _section(parser, 2, f"{_sentence(command.summary)}{more}")


def _section(parser: ArgumentParser, level: int, summary: str) -> Section:
    own = [
        Argument(_call(one), _help(parser, one), one.required and bool(one.option_strings))
        for one in parser._actions
        if one.help != SUPPRESS and not isinstance(one, _SubParsersAction) and one.dest != "help"
    ]
    below = [
        _section(choice, level + 1, _sentence(words.get(name, "")))
        for one in parser._actions
        if isinstance(one, _SubParsersAction)
        for words in ({known.dest: known.help or "" for known in one._choices_actions},)
        for name, choice in one.choices.items()
    ]
    return Section(parser.prog, summary, level, own, below)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _arguments_of(section: Section) -> Iterable[Argument]:
    """Its own and those of the commands below it."""
    return chain(section.arguments, *(_arguments_of(one) for one in section.below))


def _shared(arguments: Iterable[Argument], by: int) -> set[tuple[str, str]]:
    """Call and meaning of the options that so many commands have."""
    counted = Counter((one.call, one.meaning) for one in arguments if one.call.startswith("`--"))
    return {one for one, times in counted.items() if times >= by}


def _written(section: Section, common: set[tuple[str, str]]) -> Iterator[str]:
    yield f"{'#' * section.level} `{section.name}`\n"
    yield f"{section.summary}\n"
    if inside := _shared(_arguments_of(section), 2) - common if section.below else set():
        yield f"Options of several of them:\n\n{_listed(sorted(inside))}"
    own = [one for one in section.arguments if (one.call, one.meaning) not in common]
    if own:
        yield _listed((_shown(one), one.meaning) for one in own)
    shared = [_shown(one, short=True) for one in section.arguments if one not in own]
    if shared:
        yield f"{'Also' if own else 'Takes'} {', '.join(shared)}.\n"
    for below in section.below:
        yield from _written(below, common | inside)


def _listed(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"- {call}: {meaning}\n" for call, meaning in rows)


def _shown(one: Argument, *, short: bool = False) -> str:
    call = one.call.partition(" ")[0] if short else one.call
    return f"{call}{' (required)' if one.required else ''}"


def _call(one: Action) -> str:
    """`--limit N`, `DIR`."""
    value = one.metavar if isinstance(one.metavar, str) else one.dest.upper()
    if one.choices is not None and one.metavar is None:
        value = "{" + ",".join(map(str, one.choices)) + "}"
    if not one.option_strings:
        return f"`{value}`" if one.nargs not in ("?", "*") else f"`[{value}]`"
    names = ", ".join(f"`{name}`" for name in one.option_strings)
    return names if one.nargs == 0 else f"{names} `{value}`"


def _help(parser: ArgumentParser, one: Action) -> str:
    """Its help, with the default where the help does not say it."""
    if not one.help:
        raise KeyError(f"{parser.prog}: {one.dest} has no help")
    said = parser._get_formatter()._expand_help(one)
    plain = one.default in (None, False, SUPPRESS, []) or one.nargs == 0
    return said if plain or "default" in said else f"{said} (default {one.default})"
