"""Whether the database takes writes, whether it is a standby, and how far behind its primary.

Law: reads only.
"""

from __future__ import annotations

import sqlalchemy as sql

# Where all that was received is applied and more is awaited, the last transaction's age says only
# that the primary rests. Who is no superuser sees the receiver's row, and of it the pid alone.
_LAG = sql.text("""
    SELECT CASE
        WHEN NOT pg_is_in_recovery() THEN NULL
        WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)
            AND pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0.0
        ELSE coalesce(
            extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 'infinity'
        )
    END::float8
""")


def is_standby(connection: sql.Connection) -> bool:
    """Whether the database replays what another one wrote."""
    return bool(connection.execute(sql.select(sql.func.pg_is_in_recovery())).scalar_one())


def takes_no_writes(connection: sql.Connection) -> bool:
    """Whether a transaction begun now may not write: on a standby, or where that is set."""
    setting = sql.func.current_setting("transaction_read_only")
    return bool(connection.execute(sql.select(setting)).scalar_one() == "on")


def lag_s(connection: sql.Connection) -> float | None:
    """Seconds that a standby is behind; None where the database is none."""
    found: float | None = connection.execute(_LAG).scalar_one()
    return found
