"""JSON documents: `trainer_state.json`, lists of objects, objects of lists (Keras's history); the
same as Python prints it: lists, tuples, dicts, arrays, assignments."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from spikeguard_cli.command import CommandFailed
from spikeguard_replay.log import Table
from spikeguard_replay.names import HELD_OUT, LIKE, LOSS, STEP, canonical

LONGEST: Final = 64 * 2**20  # characters that are looked at: the syntax tree is much larger
BEGINS: Final = re.compile(
    r"(?:[A-Za-z_]\w*(?:\[[\"']\w+[\"']\])?\s*=\s*)?(?:(?:np\.|numpy\.|torch\.)?(?:array|tensor|"
    r"deque|defaultdict)\()?[\[({]\s*(?:[-+.\d\[({'\"]|nan|inf|np\.|numpy|tensor|array|$)"
)
_GRAPH = re.compile(r",\s*grad_fn=<\w+>")
_PRINTED = re.compile(r"[\[\]\s\d.eE+naif-]+")  # as `print(array)` does, without commas
FEWEST = 3  # numbers that are a log
_NEXT_OBJECT = re.compile(r"\}(\s*\n\s*)\{")
SINCE_1970 = 1e9  # seconds: more is a time of day
SUMMARY = "train_runtime"  # Hugging Face's entry about the whole run, no measurement of its step


def flat(record: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Names and cells of a record; nested names are joined by `/`, a list gives its only cell."""
    for name, cell in record.items():
        if isinstance(cell, dict) and depth < 6:
            yield from flat(cell, f"{before}{name}/", depth + 1)
        elif isinstance(cell, list) and (len(cell) == 1 or (name == "step" and cell)):
            cell = cell[-1]  # of several steps, as DLLogger writes them, the innermost
        if not isinstance(cell, dict | list):
            yield before + name, cell


def records_in(document: Any) -> list[Any] | None:
    """The longest list of records in a document, however deep; None where there is none."""
    if isinstance(document, list):
        records = any(isinstance(one, dict) for one in document)
        return document if records else _unnamed(document)
    if not isinstance(document, dict):
        return None
    if by_step := _by_step(document):
        return by_step
    lists = {name: one for name, one in document.items() if isinstance(one, list) and one}
    flat_lists = {n: one for n, one in lists.items() if not isinstance(one[0], dict | list | str)}
    if flat_lists:
        most = len(max(flat_lists.values(), key=lambda one: len(one)))
        losses = [
            len(one)
            for name, one in flat_lists.items()
            if LIKE[LOSS].search(canonical(name)) and not HELD_OUT.search(canonical(name))
        ]
        length = max(losses, default=most)
        rows = zip(*(one for one in flat_lists.values() if len(one) == length), strict=True)
        named = [name for name, one in flat_lists.items() if len(one) == length]
        if length >= (2 if len(named) > 1 else FEWEST) and (len(named) > 1 or losses):
            return [dict(zip(named, row, strict=True)) for row in rows]
    inner = [records_in(one) for one in document.values()]
    return max((one for one in inner if one), key=len, default=None)


def _by_step(document: dict[str, Any]) -> list[Any] | None:
    """Records under their steps, or columns by the number of the row, as pandas writes them."""
    inner = [one for one in document.values() if isinstance(one, dict)]
    if len(inner) < len(document) or not inner:
        return None
    rows = document
    if all(one.keys() == inner[0].keys() for one in inner) and _are_counts(inner[0]):
        rows = {row: {name: one[row] for name, one in document.items()} for row in inner[0]}
    if not _are_counts(rows):
        return None
    return [{"index": int(row), **rows[row]} for row in sorted(rows, key=int)]


def _are_counts(names: Collection[str]) -> bool:
    return len(names) >= FEWEST and all(map(str.isdecimal, names))


def _unnamed(rows: list[Any]) -> list[dict[str, Any]] | None:
    """Bare numbers, or lists of as many each, with their columns numbered.

    Three of which the first are times of day are what TensorBoard's page downloads.
    """
    cells = [one if isinstance(one, list) else [one] for one in rows]
    numbers = all(isinstance(cell, int | float | None) for row in cells for cell in row)
    if len(rows) < FEWEST or not numbers or len({len(row) for row in cells}) != 1:
        return None
    called = [f"column {n}" for n in range(1, len(cells[0]) + 1)]
    if len(called) == 3 and all(row[0] is not None and row[0] > SINCE_1970 for row in cells):
        called = ["wall_time", STEP, "value"]
    return [dict(zip(called, row, strict=True)) for row in cells]


def read_document(name: str, text: str) -> Table:
    """The records of a JSON document; raises `CommandFailed`."""
    try:
        records = records_in(_values_in(text))
    except (ValueError, RecursionError) as error:
        raise CommandFailed(
            f"{name}: not JSON: {error}. Was it cut off? What the job printed can be read too"
        ) from None
    return records_table(name, records)


def _values_in(text: str) -> Any:
    """A JSON value, or the list of several objects that follow each other."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if (values := python_values(text)) is not None:
            return values
        if (several := _NEXT_OBJECT.sub(r"},\1{", text)) == text:
            raise
        return json.loads(f"[{several}]")


def records_table(name: str, records: list[Any] | None) -> Table:
    """Records as rows; raises `CommandFailed` where there are none."""
    if records is None:
        raise CommandFailed(
            f"{name}: no list of records in it, such as "
            '[{"step": 1, "loss": 2.5}, …] or {"log_history": […]}'
        )
    table = Table()
    for number, record in enumerate(records):
        if isinstance(record, dict) and SUMMARY not in record:
            table.add(number, dict(flat(record)))
    return table


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
