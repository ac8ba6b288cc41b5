"""Whether the database takes writes, and whether it is a standby.

Law: reads only.
"""

from __future__ import annotations

import sqlalchemy as sql


def is_standby(connection: sql.Connection) -> bool:
    """Whether the database replays what another one wrote."""
    return bool(connection.execute(sql.select(sql.func.pg_is_in_recovery())).scalar_one())


def takes_no_writes(connection: sql.Connection) -> bool:
    """Whether a transaction begun now may not write: on a standby, or where that is set."""
    setting = sql.func.current_setting("transaction_read_only")
    return bool(connection.execute(sql.select(setting)).scalar_one() == "on")
