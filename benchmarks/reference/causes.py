"""Every cause: what speaks for it, what it calls for, and what is left for the next morning."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from benchmarks.reference.source import comments_of, meaning_of
from benchmarks.reference.table import number, table
from spikeguard_core.diagnosis.cause import layers, ranking
from spikeguard_core.policy.remedies import (
    TITLES,
    Diagnosis,
    GoBack,
    Rate,
    Remedy,
    Skip,
    remedy_of,
)
from spikeguard_protocol import Cause, Kind

HEAD = """# Causes

What an incident can be put down to: what speaks for it, what is proposed, what to check before
approving, and what to do the next morning.

Confidence is the probability that it is this cause and no other. Below the one that a cause asks
for, the incident is handled as `unknown`. How causes are told apart:
[diagnosis](../diagnosis.md). Words in italics are filled in with what was measured.
"""
CALM = """In a recoverable incident, and in one of an outlier batch, nothing is commanded: only
what is for the next morning is left.
"""
READERS: tuple[ModuleType, ...] = tuple(
    dict.fromkeys(import_module(read.__module__) for read in ranking.READERS)
)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, CALM, _overview(), *map(_section, Diagnosis)])


def _overview() -> str:
    rows = []
    for one in Diagnosis:
        row = remedy_of(one, Kind.LINGERING)
        rows.append((f"[`{one.value}`](#{one.value})", row.title, _sure(row), _proposed(row)))
    return table(("cause", "in words", "confidence to act", "proposed"), rows)


def _section(one: Diagnosis) -> str:
    row = remedy_of(one, Kind.LINGERING)
    parts = [f"## `{one.value}`\n", f"{row.title[:1].upper()}{row.title[1:]}{_measured(one)}.\n"]
    parts += ["What speaks for it:\n", _listed(_clues(one))]
    parts += ["What is proposed:\n", _table(row)]
    said = (
        ("Before approving:\n", row.checks),
        ("The next morning:\n", row.follow_ups),
    )
    for title, texts in said:
        if found := [text for text in texts if text]:
            parts += [title, _listed(_filled(text) for text in dict.fromkeys(found))]
    return "\n".join(parts)


def _measured(one: Diagnosis) -> str:
    if one.value not in set(Cause):
        return ""
    comment = comments_of(Cause).get(Cause(one.value).name)
    words = TITLES[one].lower()
    return f" ({comment})" if comment and comment.lower().removeprefix("a ") != words else ""


def _sure(row: Remedy) -> str:
    return f"{row.sure:.0%}" if row.sure else "none"


def _proposed(row: Remedy) -> str:
    if row.back is GoBack.NO:
        return "no rollback: it is mended by hand"
    skipped = "" if row.skip is Skip.NOTHING else ", batches skipped"
    rate = "" if row.rate is Rate.KEEP else ", lower learning rate"
    return f"rollback{skipped}{rate}"


def _table(row: Remedy) -> str:
    rows = [
        ("why", _filled(" ".join(filter(None, (row.because, row.left_alone))))),
        ("rollback to", _choice(row.back)),
        ("batches skipped", _choice(row.skip)),
        ("learning rate", _choice(row.rate)),
    ]
    if row.again:
        rows.append(("once it came back with its batches", "they are skipped"))
    if row.stop_after is not None:
        times = "once" if row.stop_after == 1 else f"{number(row.stop_after)} times"
        rows.append((f"came back {times}", f"The run is stopped. {_filled(row.at_stop)}"))
    return table(("what", "how"), rows)


def _choice(word: StrEnum) -> str:
    return (
        f"`{word.value}`: {meaning_of(type(word), word.name)}"
        if word.value != "nothing"
        else "none"
    )


def _listed(texts: Iterator[str] | list[str]) -> str:
    return "".join(f"- {text}\n" for text in texts)


def _filled(text: str) -> str:
    """A sentence with its fields in italics."""
    named = re.sub(r"\{(\w+)[^}]*\}", lambda found: f"*{found[1].replace('_', ' ')}*", text)
    return named.replace("**", "* *")


def _clues(one: Diagnosis) -> list[str]:
    """What a proposal says for this cause: the reasons of its clues."""
    if one is Diagnosis.REPLICAS_APART:
        return ["ranks that should hold the same weights were compared, and do not"]
    if one is Diagnosis.UNKNOWN:
        return ["nothing that was measured tells the causes apart, or too little was measured"]
    found = [
        text
        for module in (*READERS, layers)
        for call, inside in _clue_calls(module)
        if _cause_of(call) == Cause(one.value).name and (text := _reason(call, inside, module))
    ]
    if not found:
        raise KeyError(f"no clue speaks for {one.value}")
    return list(dict.fromkeys(_filled(text) for text in found))


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(Path(inspect.getfile(module)).read_text())


def _clue_calls(module: ModuleType) -> Iterator[tuple[ast.Call, ast.FunctionDef]]:
    for inside in ast.walk(_tree(module)):
        if isinstance(inside, ast.FunctionDef):
            for node in ast.walk(inside):
                match node:
                    case ast.Call(
                        func=ast.Name(id="Clue"), args=[_, ast.UnaryOp(op=ast.USub()), *_]
                    ):
                        pass  # speaks against
                    case ast.Call(func=ast.Name(id="Clue"), args=[_, _, _, *_]):
                        yield node, inside


def _cause_of(call: ast.Call) -> str | None:
    match call.args[0]:
        case ast.Attribute(value=ast.Name(id="Cause"), attr=name):
            return name
    return None


def _reason(call: ast.Call, inside: ast.FunctionDef, module: ModuleType) -> str:
    """The template of a clue's reason, where it is a sentence of its own."""
    return _template(call.args[2], inside, module) or _first_line(inside)


def _first_line(inside: ast.FunctionDef) -> str:
    return (ast.get_docstring(inside) or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")


def _template(node: ast.expr, inside: ast.FunctionDef, module: ModuleType) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_part, parts))
        case ast.Name(id=name):
            return next((t for value in _assigned(name, inside)
                         if (t := _template(value, inside, module))), "")  # fmt: skip
        case ast.Call(func=ast.Name(id=name)) | ast.Attribute(attr=name):
            return _returned(name, module)
    return ""


def _assigned(name: str, inside: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(inside):
        match node:
            case ast.Assign(targets=[ast.Name(id=known)], value=value) if known == name:
                yield value


def _returned(name: str, module: ModuleType) -> str:
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    return _template(inner.value, node, module)
    return ""


def _part(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return f"{{{name}}}"
    return "…"
