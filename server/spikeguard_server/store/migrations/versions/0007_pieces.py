"""Samples in pieces, one array a signal, on shelves that can be dropped; roll-ups beside them."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SIGNALS = (
    "loss", "loss_rank_max", "grad_norm", "grad_norm_at_step", "param_norm", "adam_v_norm",
    "update_norm", "update_norm_sampled", "lr", "tokens_per_second", "step_time", "update_dropped",
)  # fmt: skip
PIECE = 1024  # steps
SHELVED = ("pieces", "rollups", "layer_norms")
WEEK = "date_trunc('week', {} AT TIME ZONE 'UTC')::date"

SHELVES = f"""
CREATE TABLE shelves (
    starts date NOT NULL,
    samples_dropped_at timestamptz, rollups_dropped_at timestamptz, layers_dropped_at timestamptz,
    CONSTRAINT shelves_pkey PRIMARY KEY (starts)
);
INSERT INTO shelves (starts)
SELECT {WEEK.format("now()")} UNION SELECT {WEEK.format("opened_at")} FROM segments;
ALTER TABLE segments ADD COLUMN shelf date, ADD COLUMN rolled_to bigint;
UPDATE segments SET shelf = {WEEK.format("opened_at")};
ALTER TABLE segments ALTER COLUMN shelf SET NOT NULL;
"""
CURVES = f"""
    steps bigint[], {", ".join(f"{name} float8[]" for name in SIGNALS)},
    extra_names text[], extra_values float8[],
    even_first bigint, even_size bigint, batch_first bigint[], batch_end bigint[]
"""
KEY = """
    run_id uuid NOT NULL, attempt integer NOT NULL, segment bigint NOT NULL,
    first_step bigint NOT NULL, shelf date NOT NULL, last_step bigint NOT NULL
"""
TABLES = f"""
CREATE TABLE pieces ({KEY}, {CURVES},
    CONSTRAINT pieces_pkey PRIMARY KEY (run_id, attempt, segment, first_step, shelf)
) PARTITION BY LIST (shelf);
CREATE TABLE rollups ({KEY}, count integer NOT NULL, {CURVES},
    CONSTRAINT rollups_pkey PRIMARY KEY (run_id, attempt, segment, first_step, shelf)
) PARTITION BY LIST (shelf);
ALTER TABLE layer_norms RENAME TO layer_norms_before;
ALTER TABLE layer_norms_before RENAME CONSTRAINT layer_norms_pkey TO layer_norms_before_pkey;
CREATE TABLE layer_norms (
    run_id uuid NOT NULL, attempt integer NOT NULL, segment bigint NOT NULL, step bigint NOT NULL,
    signal text NOT NULL, shelf date NOT NULL, names text[] NOT NULL, norms float8[] NOT NULL,
    CONSTRAINT layer_norms_pkey PRIMARY KEY (run_id, attempt, segment, step, signal, shelf)
) PARTITION BY LIST (shelf);
CREATE SCHEMA IF NOT EXISTS shelves;
"""
# Numbers that differ do not compress: they are stored as they are, each column apart.
AS_THEY_ARE = "".join(
    f"ALTER TABLE {table} ALTER COLUMN {name} SET STORAGE EXTERNAL;\n"
    for table in ("pieces", "rollups")
    for name in ("steps", *SIGNALS, "extra_values", "batch_first", "batch_end")
)
PARTITIONS = f"""
DO $$
DECLARE monday date; name text;
BEGIN
  FOR monday IN SELECT starts FROM shelves LOOP
    FOREACH name IN ARRAY ARRAY['{"', '".join(SHELVED)}'] LOOP
      EXECUTE format(
        'CREATE TABLE IF NOT EXISTS shelves.%I PARTITION OF public.%I FOR VALUES IN (%L)',
        name || to_char(monday, '_YYYYMMDD'), name, monday);
    END LOOP;
  END LOOP;
END $$;
"""
MOVE_LAYERS = f"""
INSERT INTO layer_norms (run_id, attempt, segment, step, signal, shelf, names, norms)
SELECT l.run_id, l.attempt, l.segment, l.step, l.signal,
       coalesce(s.shelf, {WEEK.format("now()")}), l.names, l.norms
FROM layer_norms_before l LEFT JOIN segments s USING (run_id, attempt, segment);
DROP TABLE layer_norms_before;
"""
GROUP = f"run_id, attempt, segment, step / {PIECE}"
MOVE_SAMPLES = f"""
WITH own AS (
    SELECT s.run_id, s.attempt, s.segment, s.step / {PIECE} AS block, n.name, s.step,
           s.extra_values[array_position(s.extra_names, n.name)] AS value
    FROM samples s
    JOIN (SELECT DISTINCT {GROUP} AS block, unnest(extra_names) AS name FROM samples) n
      ON (n.run_id, n.attempt, n.segment, n.block)
       = (s.run_id, s.attempt, s.segment, s.step / {PIECE})
), extras AS (
    SELECT run_id, attempt, segment, block, array_agg(DISTINCT name ORDER BY name) AS names,
           array_agg(value ORDER BY name, step) AS values
    FROM own GROUP BY run_id, attempt, segment, block
), gathered AS (
    SELECT {GROUP} AS block, min(step) AS first_step, max(step) AS last_step,
           CASE WHEN max(step) - min(step) + 1 > count(*) THEN array_agg(step ORDER BY step) END
               AS steps,
           {
    ", ".join(
        f"CASE WHEN count({name}) > 0 THEN array_agg({name} ORDER BY step) END AS {name}"
        for name in (*SIGNALS, "batch_first", "batch_end")
    )
}
    FROM samples GROUP BY {GROUP}
)
INSERT INTO pieces (run_id, attempt, segment, first_step, shelf, last_step, steps,
                    {", ".join(SIGNALS)}, extra_names, extra_values, batch_first, batch_end)
SELECT g.run_id, g.attempt, g.segment, g.first_step, coalesce(s.shelf, {WEEK.format("now()")}),
       g.last_step, g.steps, {", ".join(f"g.{name}" for name in SIGNALS)},
       e.names, e.values, g.batch_first, g.batch_end
FROM gathered g
LEFT JOIN extras e USING (run_id, attempt, segment, block)
LEFT JOIN segments s ON (s.run_id, s.attempt, s.segment) = (g.run_id, g.attempt, g.segment);
DROP TABLE samples;
"""
EACH = f"""
SELECT p.run_id, p.attempt, p.segment, s.step, {", ".join(f"s.{name}" for name in SIGNALS)},
       p.extra_names,
       CASE WHEN p.extra_names IS NOT NULL THEN ARRAY(
           SELECT p.extra_values[(i - 1) * cardinality(p.extra_values)
                                 / cardinality(p.extra_names) + s.place]
           FROM generate_series(1, cardinality(p.extra_names)) AS i
       ) END AS extra_values,
       coalesce(s.batch_first, p.even_first + (s.place - 1) * p.even_size) AS batch_first,
       coalesce(s.batch_end, p.even_first + s.place * p.even_size) AS batch_end
FROM pieces p CROSS JOIN LATERAL unnest(
    coalesce(p.steps, ARRAY(SELECT generate_series(p.first_step, p.last_step))),
    {", ".join(f"p.{name}" for name in SIGNALS)}, p.batch_first, p.batch_end
) WITH ORDINALITY AS s(step, {", ".join(SIGNALS)}, batch_first, batch_end, place)
"""
VIEW = f"""
CREATE VIEW samples AS {EACH};
CREATE FUNCTION samples_between(run uuid, try integer, part bigint, first bigint, last bigint)
RETURNS SETOF samples LANGUAGE sql STABLE AS $$
{EACH}
WHERE p.run_id = run AND p.attempt = try AND p.segment = part
AND p.last_step >= first AND p.first_step <= last AND s.step BETWEEN first AND last
$$;
"""


def upgrade() -> None:
    for statement in (SHELVES, TABLES, AS_THEY_ARE, PARTITIONS, MOVE_LAYERS, MOVE_SAMPLES, VIEW):
        op.execute(statement)
