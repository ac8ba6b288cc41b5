"""The columns of an incident that say what may have started it.

Law: part of the table `incidents` and of its laws.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql

Float = postgresql.DOUBLE_PRECISION
Names = postgresql.ARRAY(sql.Text)


def explained() -> list[sql.Column[Any]]:
    """The ranking of the causes, and the layer that moved first."""
    return [
        sql.Column("cause_names", Names),  # the likeliest first
        sql.Column("cause_confidences", postgresql.ARRAY(Float)),
        sql.Column("cause_reasons", Names),  # of each, a sentence a line
        sql.Column("cause_against", Names),  # of each what speaks against it, the same
        sql.Column("cause_first_steps", postgresql.ARRAY(sql.BigInteger)),  # where each shows
        sql.Column("cause_last_steps", postgresql.ARRAY(sql.BigInteger)),
        sql.Column("cause_ratios", postgresql.ARRAY(Float)),  # of a rate that rose
        sql.Column("cause_ranks", postgresql.ARRAY(sql.Integer)),
        sql.Column("cause_rates", postgresql.ARRAY(Float)),  # before it rose
        sql.Column("layer_signal", sql.Text),  # of the layer that moved first
        sql.Column("layer_name", sql.Text),
        sql.Column("layer_step", sql.BigInteger),
        sql.Column("layer_ratio", Float),  # to its usual norm
        sql.Column("layers_moved", sql.Integer),  # at that step
        sql.Column("layers_known", sql.Integer),
    ]
