"""Bodies about people's responses to an incident."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from spikeguard_server.access.person_names import LONGEST
from spikeguard_server.http.bodies.run_shapes import Shape

MAX_COMMENT = 2000  # characters
Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_COMMENT)
]


class AssigneeWanted(Shape):
    """Whose an incident is to be."""

    assignee: str | None = Field(
        min_length=1, max_length=LONGEST, description="a person's name; null: nobody's"
    )


class CommentWanted(Shape):
    """What a person says of an incident."""

    text: Text = Field(description="what was found, done or is to be done")
