"""The public call of the agent; `arguments` says what it takes and what each argument means.

A wrong call raises `AttachError` that names the argument and the remedy, on every rank alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import ParamSpec

from spikeguard.arguments import Arguments
from spikeguard.assembly import assemble
from spikeguard.guard import Guard

_P = ParamSpec("_P")


def _called_with(arguments: Callable[_P, Arguments]) -> Callable[_P, Guard]:
    """A function with the parameters and the docstring of `arguments`."""
    signature = inspect.signature(arguments)

    def attach(*args: _P.args, **kwargs: _P.kwargs) -> Guard:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"attach() {error}") from None
        return assemble(arguments(*args, **kwargs))

    attach.__doc__ = arguments.__doc__
    attach.__dict__["__signature__"] = signature.replace(return_annotation=Guard)
    return attach


attach = _called_with(Arguments)
