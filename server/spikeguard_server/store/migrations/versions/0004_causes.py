"""What may have started an incident, and the layer that moved first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NAMES = postgresql.ARRAY(sa.Text)
FLOATS = postgresql.ARRAY(postgresql.DOUBLE_PRECISION)


def upgrade() -> None:
    for name, kind in (
        ("cause_names", NAMES),
        ("cause_confidences", FLOATS),
        ("cause_reasons", NAMES),
        ("layer_signal", sa.Text),
        ("layer_name", sa.Text),
        ("layer_step", sa.BigInteger),
        ("layer_ratio", postgresql.DOUBLE_PRECISION),
        ("layers_moved", sa.Integer),
        ("layers_known", sa.Integer),
    ):
        op.add_column("incidents", sa.Column(name, kind))
