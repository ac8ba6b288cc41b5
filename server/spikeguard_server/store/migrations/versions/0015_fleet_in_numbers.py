"""What the fleet's page counts over all of history, in indexes alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "incidents_closed_idx", "incidents", ["kind", "outcome", "detected_step", "onset_step"],
        postgresql_where=sa.text("outcome IS NOT NULL"),
    )  # fmt: skip
    op.create_index("commands_verb_state_idx", "commands", ["verb", "state"])
    op.create_index(
        "commands_automatic_idx", "commands", ["decided_at"], postgresql_where=sa.text("automatic")
    )
    op.create_index(
        "attempts_dropped_idx", "attempts", ["dropped_samples"],
        postgresql_where=sa.text("dropped_samples > 0"),
    )  # fmt: skip
