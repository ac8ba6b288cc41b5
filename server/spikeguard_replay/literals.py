"""Numbers printed or pasted from Python: lists, tuples, dicts, arrays, assignments."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, Final

LONGEST: Final = 64 * 2**20  # characters that are looked at: the syntax tree is much larger
BEGINS: Final = re.compile(
    r"(?:[A-Za-z_]\w*(?:\[[\"']\w+[\"']\])?\s*=\s*)?(?:(?:np\.|numpy\.|torch\.)?(?:array|tensor|"
    r"deque|defaultdict)\()?[\[({]\s*(?:[-+.\d\[({'\"]|nan|inf|np\.|numpy|tensor|array|$)"
)
_GRAPH = re.compile(r",\s*grad_fn=<\w+>")
_PRINTED = re.compile(r"[\[\]\s\d.eE+naif-]+")  # as `print(array)` does, without commas


def python_values(text: str) -> Any | None:
    """What a text of Python literals holds: one value, a list of several, or a dict of the names
    that were given one. None where it is anything else; nothing of it is run.
    """
    text = _GRAPH.sub("", text.strip())
    if not BEGINS.match(text) or len(text) > LONGEST:
        return None
    if _PRINTED.fullmatch(text):
        text = re.sub(r"(?<=[\d.nf\]])\s+(?=[-+.\dni\[])", ",", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text).body
        named = {name: _value(one.value) for one in body if isinstance(one, ast.Assign)
                 for name in map(ast.unparse, one.targets)}  # fmt: skip
        plain = [_value(one.value) for one in body if isinstance(one, ast.Expr)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(named) + len(plain) < len(body) or (text[0] == "{" and len(body) > 1):
        return None  # code, or a record a line
    return named or (plain[0] if len(plain) == 1 else plain) or None


def _value(node: ast.expr) -> Any:
    """What an expression of literals stands for; raises `ValueError` for any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [_value(key) for key in node.keys if key is not None]
        return dict(zip(map(str, keys), map(_value, node.values), strict=True))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Call) and node.args:  # tensor(2.5, device='cuda:0'), array([…])
        return _value(node.args[-1] if ast.unparse(node.func) == "defaultdict" else node.args[0])
    return float(ast.unparse(node).rpartition(".")[2])  # nan, np.inf
