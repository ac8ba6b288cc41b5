"""Tables in Markdown, and values as they stand in them.

What stands beside the fields and members of a class, read from its source.
"""

from __future__ import annotations

import ast
import inspect
import io
import math
import textwrap
import tokenize
from collections.abc import Sequence
from enum import StrEnum


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, with what would break its cells escaped."""
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *escaped))


def number(value: float) -> str:
    """`20,000`, `0.05`."""
    if value == math.inf:
        return "no limit"
    return f"{value:,.10g}"


def span(least: float, most: float | None) -> str:
    """`1 to 200`, `at least 0.1`."""
    if most is None or math.isinf(most):
        return f"at least {number(least)}"
    return f"{number(least)} to {number(most)}"


def shown(value: object) -> str:
    """A default as a person would type it; "" where nothing is set."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:.10g}"
        case str():
            return f"`{value}`" if value else ""
        case tuple():
            return ", ".join(map(_item, value))
    return ""


def members(kind: type[StrEnum]) -> str:
    """The words of a closed set."""
    return ", ".join(f"`{one.value}`" for one in kind)


def _item(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"`{value}`"


def comments_of(kind: type) -> dict[str, str]:
    """Field or member -> the comment on its own lines."""
    source = textwrap.dedent(inspect.getsource(kind))
    noted = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (body,) = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {
        name: noted[line]
        for node in body
        if (name := _name(node))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if line in noted
    }


def _name(node: ast.stmt) -> str | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return None


def meaning_of(kind: type, name: str) -> str:
    """The comment beside a field or member; raise `KeyError` where there is none."""
    try:
        return comments_of(kind)[name]
    except KeyError:
        raise KeyError(f"{kind.__name__}.{name} has no comment that says what it is") from None
