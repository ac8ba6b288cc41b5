"""What the audit's chain of digests adds to an entry.

Turns with the trigger that makes the chain and turns with one that gives an entry its number and
its time alone, on one real Postgres (durable), each turn on a run of its own: many entries in one
statement, which is Postgres' own work, and one a transaction with its commit.

    python -m benchmarks.audit_chain [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import sqlalchemy as sql

from benchmarks.ingest_servers import new_database, postgres
from benchmarks.machine import machine
from benchmarks.spread import Spread
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import migrate
from spikeguard_server.store.tables import core as tables

TOGETHER = 2000  # entries in one statement
ALONE = 100  # transactions of one entry
CHAINED, NUMBERED = "chained", "numbered"  # triggers
_NUMBERED = """
CREATE FUNCTION number_audit() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE last_number bigint;
BEGIN
  SELECT a.number INTO last_number FROM public.audit a
  WHERE a.run_id = NEW.run_id ORDER BY a.number DESC LIMIT 1;
  NEW.number := coalesce(last_number, 0) + 1;
  NEW.at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER numbered BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION number_audit();
"""


@dataclass
class Turns:
    """Microseconds an entry, turn by turn, in pairs."""

    chained: list[float] = field(default_factory=list)
    numbered: list[float] = field(default_factory=list)

    def shown(self) -> dict[str, str]:
        """Median and spread of both, and of what a pair's two differ by."""
        pairs = list(zip(self.chained, self.numbered, strict=True))
        return {
            "chained_us": str(Spread.of(self.chained)),
            "numbered_us": str(Spread.of(self.numbered)),
            "added_us": str(Spread.of([a - b for a, b in pairs])),
            "ratio": str(Spread.of([a / b for a, b in pairs])),
        }


def _entry(run_id: UUID) -> sql.Insert:
    return sql.insert(tables.audit).values(
        run_id=run_id, number=0, at=sql.func.now(), actor="Ada Lovelace", actor_kind="person",
        action="approve", subject="gpt-124m-7#3.1", before="proposed", after="approved",
        reason="approved revision 2 as shown (by the API from 10.0.0.7)", known_by="token",
    )  # fmt: skip


def _set_trigger(engine: sql.Engine, name: str) -> None:
    other = NUMBERED if name == CHAINED else CHAINED
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE audit DISABLE TRIGGER {other}")
        connection.exec_driver_sql(f"ALTER TABLE audit ENABLE TRIGGER {name}")


def _together_us(engine: sql.Engine) -> float:
    many = sql.func.generate_series(1, TOGETHER).table_valued("value")
    columns = _entry(uuid4()).compile().params
    values = sql.select(*(sql.literal(v) for v in columns.values()), sql.func.now())
    insert = sql.insert(tables.audit).from_select([*columns, "at"], values.select_from(many))
    with engine.begin() as connection:
        began = time.perf_counter()
        connection.execute(insert)
        return 1e6 * (time.perf_counter() - began) / TOGETHER


def _alone_us(engine: sql.Engine) -> float:
    run_id = uuid4()
    began = time.perf_counter()
    for _ in range(ALONE):
        with engine.begin() as connection:
            connection.execute(_entry(run_id))
    return 1e6 * (time.perf_counter() - began) / ALONE


def measure(engine: sql.Engine, turns: int) -> dict[str, Turns]:
    """Both triggers in turn, the first turn of each for warming up."""
    found = {"many in one statement": Turns(), "one with its commit": Turns()}
    for turn in range(turns + 1):
        for name in (CHAINED, NUMBERED):
            _set_trigger(engine, name)
            for what, took in zip(found, (_together_us(engine), _alone_us(engine)), strict=True):
                if turn > 0:
                    getattr(found[what], name).append(took)
    return found


def main() -> int:
    """Print the table or one JSON object."""
    parser = ArgumentParser(prog="python -m benchmarks.audit_chain", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 turns of each instead of 15")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with postgres("audit-chain") as (url, _):
        engine = open_engine(Settings(database_url=new_database(url, "chain")))
        migrate(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql(_NUMBERED)
        found = {what: t.shown() for what, t in measure(engine, 3 if options.quick else 15).items()}
        engine.dispose()
    if options.json:
        print(json.dumps({"machine": machine(), "rows": found}))
        return 0
    print(f"on {machine()}")
    for what, row in found.items():
        print(f"  {what:22} " + "  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
