"""No decision reads what was written for people: causes and references have columns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import spikeguard_server

ROOT = Path(spikeguard_server.__file__).parent
DISPLAYED = frozenset(
    {"reason", "subject", "judgement", "result", "end_reason", "decision_reason", "sentence"}
)
PARSING = frozenset(
    {
        *("startswith", "endswith", "partition", "rpartition", "split", "rsplit", "find", "rfind"),
        *("index", "count", "contains", "like", "ilike", "regexp_match"),
    }
)
# The agent's own closed set of words for why it ended; an account at an identity provider.
KNOWN = frozenset({"ingest/records.py", "ingest/receive.py", "store/identity_subjects.py"})


def displayed(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in DISPLAYED


def readings(tree: ast.AST) -> Iterator[int]:
    """Lines that look for something in a text for people, or compare one."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        parses = isinstance(called, ast.Attribute) and called.attr in PARSING
        if parses and isinstance(called, ast.Attribute) and displayed(called.value):
            yield called.lineno
        if isinstance(node, ast.Compare):
            sides = zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False)
            for operator, left, right in sides:
                looked_into = isinstance(operator, ast.In | ast.NotIn) and displayed(right)
                equal = isinstance(operator, ast.Eq | ast.NotEq) and displayed(left)
                if looked_into or (equal and not isinstance(right, ast.Attribute)):
                    yield node.lineno


def test_no_decision_reads_display_text() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path.relative_to(ROOT)) not in KNOWN
        for line in readings(ast.parse(path.read_text()))
    ]
    assert found == [], "give it a column or a field"


def test_what_reads_display_text_is_found() -> None:
    wrong = """
past.state in EXECUTED and cause in past.reason
row.subject.rpartition("#")
A.subject.startswith("gpt")
if command.judgement == "it came back": pass
"""
    assert sorted(readings(ast.parse(wrong))) == [2, 3, 4, 5]
