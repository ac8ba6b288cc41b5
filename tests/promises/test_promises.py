"""Every promise of docs/promises.md has a test that exists, and a break that can be made."""

from __future__ import annotations

import ast

import pytest

from tests.promises.breaks import BREAKS, ROOT, Promise, broken, promises


def test_every_promise_has_one_break_and_no_break_is_left_over() -> None:
    names = [promise.name for promise in promises()]
    assert len(names) == len(set(names)) > 50
    assert set(names) == BREAKS.keys()


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise.name)
def test_the_test_of_a_promise_exists(promise: Promise) -> None:
    file, _, name = promise.test.partition("::")
    defined = {
        node.name
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert name in defined


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_finds_its_place_once_and_leaves_a_program(name: str) -> None:
    """Where it fails: the code has changed; write the break anew and run it with `--only`."""
    made = broken(BREAKS[name], (ROOT / BREAKS[name].file).read_text())
    if BREAKS[name].file.endswith(".py"):
        compile(made, BREAKS[name].file, "exec")
