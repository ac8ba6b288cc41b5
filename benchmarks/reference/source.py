"""What stands beside the fields and members of a class, read from its source."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize


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
