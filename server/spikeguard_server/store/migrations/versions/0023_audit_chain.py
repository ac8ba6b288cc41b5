"""A digest chain for each run's audit entries, and partitions made and dropped by functions.

With both the server needs no ownership: see decision 23.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

# Whoever inserts chooses neither number nor time. `docs/protocol.md` describes what is digested.
CHAIN = """
CREATE FUNCTION chain_audit() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE last_number bigint; last_digest bytea; content text;
BEGIN
  SELECT a.number, a.digest INTO last_number, last_digest FROM public.audit a
  WHERE a.run_id = NEW.run_id ORDER BY a.number DESC LIMIT 1;
  NEW.number := coalesce(last_number, 0) + 1;
  NEW.at := clock_timestamp();
  SELECT string_agg(format('%s=%s:%s', key, octet_length(value), value), E'\\n'
                    ORDER BY key COLLATE "C")
  INTO content FROM jsonb_each_text(to_jsonb(NEW) - 'digest') WHERE value IS NOT NULL;
  NEW.digest := sha256(convert_to(
    concat('previous=', encode(last_digest, 'hex'), E'\\n', content), 'UTF8'));
  RETURN NEW;
END $$;
CREATE TRIGGER chained BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION chain_audit();
"""
BEGIN = """
INSERT INTO audit (run_id, number, at, actor, actor_kind, action, subject, reason)
SELECT '00000000-0000-0000-0000-000000000000', 0, now(), 'server', 'server', 'audit.chained',
       count(*)::text, 'so many entries are older than the digests'
FROM audit HAVING count(*) > 0;
"""
# The caller needs neither the tables nor the schema; their owner does what is written here alone.
PARTITIONS = """
CREATE FUNCTION shelves.make_partitions(week date) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE parent text; part text;
BEGIN
  FOREACH parent IN ARRAY ARRAY['pieces', 'rollups', 'layer_norms'] LOOP
    part := parent || to_char(week, '_YYYYMMDD');
    EXECUTE format('CREATE TABLE shelves.%I (LIKE public.%I INCLUDING ALL)', part, parent);
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION shelves.%I FOR VALUES IN (%L)',
                   parent, part, week);
  END LOOP;
END $$;
CREATE FUNCTION shelves.drop_partition(parent text, week date) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF parent NOT IN ('pieces', 'rollups', 'layer_norms') THEN
    RAISE EXCEPTION 'no partitions of % are dropped', parent;
  END IF;
  EXECUTE format('DROP TABLE shelves.%I', parent || to_char(week, '_YYYYMMDD'));
END $$;
REVOKE EXECUTE ON FUNCTION shelves.make_partitions, shelves.drop_partition FROM PUBLIC;
"""


def upgrade() -> None:
    op.add_column("audit", sa.Column("digest", sa.LargeBinary))
    for statement in (CHAIN, BEGIN, PARTITIONS):
        op.execute(statement)
