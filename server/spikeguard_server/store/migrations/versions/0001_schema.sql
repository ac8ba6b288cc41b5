-- A run, its attempts, their segments and the checkpoints to go back to. Rows that change with
-- every message carry no index on what changes and leave half of their page free, so that updates
-- are HOT.
CREATE TABLE projects (
    name text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT projects_pkey PRIMARY KEY (name)
);

CREATE TABLE runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    incidents integer NOT NULL,
    open_incident integer,
    last_message_at timestamptz NOT NULL,
    current_attempt integer,
    current_segment bigint,
    last_step bigint,
    position bigint,
    last_loss float8,
    last_grad_norm float8,
    last_z float8,
    own_z text,
    own_names text,
    tokens_per_second float8,
    followed_to bigint,
    CONSTRAINT runs_pkey PRIMARY KEY (run_id)
) WITH (fillfactor = 50);
CREATE INDEX runs_project_name_idx ON runs (project, name);
CREATE INDEX runs_created_at_run_id_idx ON runs (created_at, run_id);
CREATE INDEX runs_unended_idx ON runs (run_id) WHERE state <> 'ended';

CREATE TABLE run_tags (
    run_id uuid NOT NULL,
    tag text NOT NULL,
    CONSTRAINT run_tags_pkey PRIMARY KEY (run_id, tag),
    CONSTRAINT run_tags_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

CREATE TABLE attempts (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    id text NOT NULL,
    parent_attempt text,
    parent_segment bigint,
    parent_step bigint,
    started_at timestamptz NOT NULL,
    last_message_at timestamptz NOT NULL,
    alive_at timestamptz NOT NULL,
    ended_at timestamptz,
    end_reason text,
    lost boolean NOT NULL,
    last_sequence bigint NOT NULL,
    world_size bigint NOT NULL,
    capabilities text[] NOT NULL,
    agent_version text NOT NULL,
    tokens_per_step bigint,
    settings jsonb NOT NULL,
    links jsonb NOT NULL,
    dropped_samples bigint NOT NULL,
    CONSTRAINT attempts_pkey PRIMARY KEY (run_id, number),
    CONSTRAINT attempts_run_id_id_key UNIQUE (run_id, id),
    CONSTRAINT attempts_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
) WITH (fillfactor = 50);
CREATE INDEX attempts_dropped_idx ON attempts (dropped_samples) WHERE dropped_samples > 0;

CREATE TABLE segments (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    reason text NOT NULL,
    parent_attempt text,
    parent_segment bigint,
    parent_step bigint,
    position bigint NOT NULL,
    command text,
    opened_at timestamptz NOT NULL,
    first_step bigint,
    last_step bigint,
    week date NOT NULL,
    compacted_to bigint,
    CONSTRAINT segments_pkey PRIMARY KEY (run_id, attempt, segment),
    CONSTRAINT segments_attempts_fkey
        FOREIGN KEY (run_id, attempt) REFERENCES attempts (run_id, number)
) WITH (fillfactor = 50);
CREATE INDEX segments_week_idx ON segments (week);

CREATE TABLE targets (
    run_id uuid NOT NULL,
    name text NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    position bigint NOT NULL,
    medium text NOT NULL,
    saved_at timestamptz NOT NULL,
    deleted_at timestamptz,
    damage text,
    CONSTRAINT targets_pkey PRIMARY KEY (run_id, name),
    CONSTRAINT targets_attempts_fkey
        FOREIGN KEY (run_id, attempt) REFERENCES attempts (run_id, number)
);

-- What was measured: some steps of a segment a row, one array a signal. Partitioned by the week in
-- which the segment began, so that old ones go by whole tables.
CREATE TABLE weeks (
    starts date NOT NULL,
    dropped_at timestamptz,
    CONSTRAINT weeks_pkey PRIMARY KEY (starts)
);

CREATE TABLE chunks (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    first_step bigint NOT NULL,
    week date NOT NULL,
    last_step bigint NOT NULL,
    steps bigint[],
    loss float8[],
    loss_rank_max float8[],
    grad_norm float8[],
    grad_norm_at_step float8[],
    param_norm float8[],
    adam_v_norm float8[],
    update_norm float8[],
    update_norm_sampled float8[],
    lr float8[],
    tokens_per_second float8[],
    step_time float8[],
    update_dropped float8[],
    extra_names text[],
    extra_values float8[],
    even_first bigint,
    even_size bigint,
    batch_first bigint[],
    batch_end bigint[],
    CONSTRAINT chunks_pkey PRIMARY KEY (run_id, attempt, segment, first_step, week)
) PARTITION BY LIST (week);

CREATE TABLE layer_norms (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    signal text NOT NULL,
    week date NOT NULL,
    names text[] NOT NULL,
    norms float8[] NOT NULL,
    CONSTRAINT layer_norms_pkey PRIMARY KEY (run_id, attempt, segment, step, signal, week)
) PARTITION BY LIST (week);

-- Numbers that differ do not compress: they are stored as they are, each column apart.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY[
    'steps', 'loss', 'loss_rank_max', 'grad_norm', 'grad_norm_at_step', 'param_norm',
    'adam_v_norm', 'update_norm', 'update_norm_sampled', 'lr', 'tokens_per_second',
    'step_time', 'update_dropped', 'extra_values', 'batch_first', 'batch_end'
  ] LOOP
    EXECUTE format('ALTER TABLE chunks ALTER COLUMN %I SET STORAGE EXTERNAL', name);
  END LOOP;
END $$;

-- Every step as a row of its own, for people and for tests.
CREATE VIEW samples AS
SELECT p.run_id, p.attempt, p.segment, s.step, s.loss, s.loss_rank_max, s.grad_norm,
       s.grad_norm_at_step, s.param_norm, s.adam_v_norm, s.update_norm, s.update_norm_sampled,
       s.lr, s.tokens_per_second, s.step_time, s.update_dropped,
       p.extra_names,
       CASE WHEN p.extra_names IS NOT NULL THEN ARRAY(
           SELECT p.extra_values[(i - 1) * cardinality(p.extra_values)
                                 / cardinality(p.extra_names) + s.place]
           FROM generate_series(1, cardinality(p.extra_names)) AS i
       ) END AS extra_values,
       coalesce(s.batch_first, p.even_first + (s.place - 1) * p.even_size) AS batch_first,
       coalesce(s.batch_end, p.even_first + s.place * p.even_size) AS batch_end
FROM chunks p CROSS JOIN LATERAL unnest(
    coalesce(p.steps, ARRAY(SELECT generate_series(p.first_step, p.last_step))),
    p.loss, p.loss_rank_max, p.grad_norm, p.grad_norm_at_step, p.param_norm, p.adam_v_norm,
    p.update_norm, p.update_norm_sampled, p.lr, p.tokens_per_second, p.step_time,
    p.update_dropped, p.batch_first, p.batch_end
) WITH ORDINALITY AS s(
    step, loss, loss_rank_max, grad_norm, grad_norm_at_step, param_norm, adam_v_norm,
    update_norm, update_norm_sampled, lr, tokens_per_second, step_time, update_dropped,
    batch_first, batch_end, place
);
CREATE FUNCTION samples_between(run uuid, try integer, part bigint, first bigint, last bigint)
RETURNS SETOF samples LANGUAGE sql STABLE AS $$
SELECT p.run_id, p.attempt, p.segment, s.step, s.loss, s.loss_rank_max, s.grad_norm,
       s.grad_norm_at_step, s.param_norm, s.adam_v_norm, s.update_norm, s.update_norm_sampled,
       s.lr, s.tokens_per_second, s.step_time, s.update_dropped,
       p.extra_names,
       CASE WHEN p.extra_names IS NOT NULL THEN ARRAY(
           SELECT p.extra_values[(i - 1) * cardinality(p.extra_values)
                                 / cardinality(p.extra_names) + s.place]
           FROM generate_series(1, cardinality(p.extra_names)) AS i
       ) END AS extra_values,
       coalesce(s.batch_first, p.even_first + (s.place - 1) * p.even_size) AS batch_first,
       coalesce(s.batch_end, p.even_first + s.place * p.even_size) AS batch_end
FROM chunks p CROSS JOIN LATERAL unnest(
    coalesce(p.steps, ARRAY(SELECT generate_series(p.first_step, p.last_step))),
    p.loss, p.loss_rank_max, p.grad_norm, p.grad_norm_at_step, p.param_norm, p.adam_v_norm,
    p.update_norm, p.update_norm_sampled, p.lr, p.tokens_per_second, p.step_time,
    p.update_dropped, p.batch_first, p.batch_end
) WITH ORDINALITY AS s(
    step, loss, loss_rank_max, grad_norm, grad_norm_at_step, param_norm, adam_v_norm,
    update_norm, update_norm_sampled, lr, tokens_per_second, step_time, update_dropped,
    batch_first, batch_end, place
)
WHERE p.run_id = run AND p.attempt = try AND p.segment = part
AND p.last_step >= first AND p.first_step <= last AND s.step BETWEEN first AND last
$$;

-- The server's role owns nothing: partitions are made and dropped by functions of the owner's,
-- which do what is written here alone. The first week's are made now.
CREATE SCHEMA IF NOT EXISTS partitions;
CREATE FUNCTION partitions.make_partitions(week date) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE parent text; part text;
BEGIN
  IF week NOT BETWEEN current_date - 366 AND current_date + 366 THEN
    RAISE EXCEPTION 'no partition is made for %, more than a year from now', week;
  END IF;
  FOREACH parent IN ARRAY ARRAY['chunks', 'layer_norms'] LOOP
    part := parent || to_char(week, '_YYYYMMDD');
    EXECUTE format('CREATE TABLE partitions.%I (LIKE public.%I INCLUDING ALL)', part, parent);
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION partitions.%I FOR VALUES IN (%L)',
                   parent, part, week);
  END LOOP;
END $$;
CREATE FUNCTION partitions.drop_partitions(week date) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE parent text;
BEGIN
  FOREACH parent IN ARRAY ARRAY['chunks', 'layer_norms'] LOOP
    EXECUTE format('DROP TABLE partitions.%I', parent || to_char(week, '_YYYYMMDD'));
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION partitions.make_partitions, partitions.drop_partitions FROM PUBLIC;

INSERT INTO weeks (starts) SELECT date_trunc('week', now() AT TIME ZONE 'UTC')::date;
SELECT partitions.make_partitions(starts) FROM weeks;

-- What the detector of a run knows. Its bytes stay in the row, so that an update stays on its
-- page: by default a state of a few kB would move out of line.
CREATE TABLE detector_states (
    run_id uuid NOT NULL,
    version bigint NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    state bytea NOT NULL,
    state_step bigint NOT NULL,
    anchor bigint NOT NULL,
    failures integer NOT NULL,
    CONSTRAINT detector_states_pkey PRIMARY KEY (run_id),
    CONSTRAINT detector_states_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id),
    CONSTRAINT detector_states_size_check CHECK (octet_length(state) <= 262144)
) WITH (fillfactor = 50);
ALTER TABLE detector_states ALTER COLUMN state SET STORAGE MAIN;

CREATE TABLE detector_snapshots (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    state bytea NOT NULL,
    at_target boolean NOT NULL,
    CONSTRAINT detector_snapshots_pkey PRIMARY KEY (run_id, attempt, segment, step),
    CONSTRAINT detector_snapshots_segments_fkey FOREIGN KEY (run_id, attempt, segment)
        REFERENCES segments (run_id, attempt, segment),
    CONSTRAINT detector_snapshots_size_check CHECK (octet_length(state) <= 262144)
);

-- An incident with its revisions, the precursors and samples around it, and its post-mortem. At
-- most one of a run is open.
CREATE TABLE incidents (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    state text NOT NULL,
    kind text NOT NULL,
    outcome text,
    cause text,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    onset_step bigint NOT NULL,
    record json NOT NULL,
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    revisions integer NOT NULL,
    commands integer NOT NULL,
    followed_to bigint,
    report_due_at timestamptz,
    reported_at timestamptz,
    report_failures integer NOT NULL,
    CONSTRAINT incidents_pkey PRIMARY KEY (run_id, number),
    CONSTRAINT incidents_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX incidents_one_open_key ON incidents (run_id) WHERE state <> 'closed';
CREATE INDEX incidents_opened_at_run_id_number_idx ON incidents (opened_at, run_id, number);
CREATE INDEX incidents_report_due_idx ON incidents (report_due_at) WHERE report_due_at IS NOT NULL;
CREATE INDEX incidents_closed_idx ON incidents (kind, outcome) WHERE outcome IS NOT NULL;

CREATE TABLE responders (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    acknowledged_at timestamptz,
    acknowledged_by text,
    assignee text,
    CONSTRAINT responders_pkey PRIMARY KEY (run_id, incident),
    CONSTRAINT responders_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);
CREATE INDEX responders_assignee_idx ON responders (assignee) WHERE assignee IS NOT NULL;

CREATE TABLE responses (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    at timestamptz NOT NULL,
    person text NOT NULL,
    action text NOT NULL,
    assignee text,
    text text,
    CONSTRAINT responses_pkey PRIMARY KEY (run_id, incident, number),
    CONSTRAINT responses_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);

CREATE TABLE notes (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    source text NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    began integer,
    attempt integer,
    segment bigint,
    step bigint NOT NULL,
    text text NOT NULL,
    reason text,
    changes jsonb NOT NULL,
    expected text,
    expected_size float8,
    shown boolean NOT NULL,
    due_step bigint,
    judged_at timestamptz,
    judged_step bigint,
    effect float8,
    effect_error float8,
    effect_batches integer,
    unknown text,
    CONSTRAINT notes_pkey PRIMARY KEY (run_id, number),
    CONSTRAINT notes_run_id_began_key UNIQUE (run_id, began),
    CONSTRAINT notes_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX notes_due_idx ON notes (run_id) WHERE due_step IS NOT NULL;

CREATE TABLE incident_revisions (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    step bigint NOT NULL,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    confidence float8 NOT NULL,
    reason text NOT NULL,
    CONSTRAINT incident_revisions_pkey PRIMARY KEY (run_id, incident, number),
    CONSTRAINT incident_revisions_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);

CREATE TABLE incident_samples (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    loss float8,
    loss_rank_max float8,
    grad_norm float8,
    grad_norm_at_step float8,
    param_norm float8,
    adam_v_norm float8,
    update_norm float8,
    update_norm_sampled float8,
    lr float8,
    tokens_per_second float8,
    step_time float8,
    update_dropped float8,
    extra_names text[],
    extra_values float8[],
    batch_first bigint,
    batch_end bigint,
    CONSTRAINT incident_samples_pkey PRIMARY KEY (run_id, incident, attempt, segment, step),
    CONSTRAINT incident_samples_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);

CREATE TABLE precursors (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    signal text NOT NULL,
    value float8 NOT NULL,
    z float8 NOT NULL,
    at timestamptz NOT NULL,
    incident integer,
    CONSTRAINT precursors_pkey PRIMARY KEY (run_id, attempt, segment, step, signal),
    CONSTRAINT precursors_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX precursors_run_id_incident_idx ON precursors (run_id, incident);

CREATE TABLE reports (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    format text NOT NULL,
    body bytea NOT NULL,
    written_at timestamptz NOT NULL,
    drawn_at timestamptz NOT NULL,
    CONSTRAINT reports_pkey PRIMARY KEY (run_id, incident, format),
    CONSTRAINT reports_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);

-- Commands from proposal to judgement, and the batches that ranks skipped.
CREATE TABLE commands (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    verb text NOT NULL,
    arguments jsonb NOT NULL,
    state text NOT NULL,
    revision integer NOT NULL,
    reason text NOT NULL,
    cause text,
    policy_version integer NOT NULL,
    policy_scope text DEFAULT 'project' NOT NULL,
    attempt integer NOT NULL,
    replaces integer,
    expires_at timestamptz NOT NULL,
    expires_at_step bigint,
    proposed_at timestamptz NOT NULL,
    proposed_by text,
    decided_at timestamptz,
    decided_by text,
    decided_step bigint,
    automatic boolean NOT NULL,
    decision_reason text,
    delivered_at timestamptz,
    finished_at timestamptz,
    applied_step bigint,
    result text,
    end_reason text,
    judgement text,
    CONSTRAINT commands_pkey PRIMARY KEY (run_id, incident, number),
    CONSTRAINT commands_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX commands_unfinished_idx ON commands (run_id, incident, number)
    WHERE state IN ('proposed', 'approved', 'delivered');
CREATE INDEX commands_verb_state_idx ON commands (verb, state);
CREATE INDEX commands_automatic_idx ON commands (decided_at) WHERE automatic;

CREATE TABLE command_revisions (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    number integer NOT NULL,
    at timestamptz NOT NULL,
    verb text NOT NULL,
    arguments jsonb NOT NULL,
    reason text NOT NULL,
    policy_version integer NOT NULL,
    policy_scope text DEFAULT 'project' NOT NULL,
    CONSTRAINT command_revisions_pkey PRIMARY KEY (run_id, incident, command, number),
    CONSTRAINT command_revisions_commands_fkey
        FOREIGN KEY (run_id, incident, command) REFERENCES commands (run_id, incident, number)
);

-- What lay in the batches near an onset, as the agent told it: `detail` is the record's JSON, in
-- which a loss that is not finite is a word. Rows that no incident is near go with the next ones.
CREATE TABLE batch_details (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    rank bigint NOT NULL,
    detail text NOT NULL,
    CONSTRAINT batch_details_pkey PRIMARY KEY (run_id, attempt, segment, step, rank),
    CONSTRAINT batch_details_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

-- The policies of projects and of runs: a row, once written, never changes.
CREATE TABLE policies (
    project text NOT NULL,
    version integer NOT NULL,
    document jsonb NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    CONSTRAINT policies_pkey PRIMARY KEY (project, version)
);

CREATE TABLE run_policies (
    run_id uuid NOT NULL,
    version integer NOT NULL,
    document jsonb,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    CONSTRAINT run_policies_pkey PRIMARY KEY (run_id, version),
    CONSTRAINT run_policies_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

-- Notifications: who is told, what waits to be told, what was told, and the links that decide.
CREATE TABLE channels (
    project text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    target jsonb NOT NULL,
    rules jsonb NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    CONSTRAINT channels_pkey PRIMARY KEY (project, name)
);

CREATE TABLE silences (
    project text NOT NULL,
    number integer NOT NULL,
    run text,
    incident integer,
    begins_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    ended_by text,
    CONSTRAINT silences_pkey PRIMARY KEY (project, number)
);

CREATE TABLE notices (
    run_id uuid NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    at timestamptz NOT NULL,
    topic text NOT NULL,
    incident integer,
    command integer,
    CONSTRAINT notices_pkey PRIMARY KEY (run_id, id),
    CONSTRAINT notices_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

CREATE TABLE conversations (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    channel text NOT NULL,
    project text NOT NULL,
    pending text[] NOT NULL,
    version bigint NOT NULL,
    due_at timestamptz,
    leased_until timestamptz,
    failures integer NOT NULL,
    given_up boolean NOT NULL,
    told integer NOT NULL,
    told_at timestamptz,
    held_for text,
    over boolean NOT NULL,
    CONSTRAINT conversations_pkey PRIMARY KEY (run_id, incident, channel),
    CONSTRAINT conversations_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX conversations_due_idx ON conversations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX conversations_silent_idx ON conversations (run_id) WHERE incident = 0 AND NOT over;

CREATE TABLE deliveries (
    run_id uuid NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    at timestamptz NOT NULL,
    project text NOT NULL,
    incident integer,
    channel text,
    topics text[] NOT NULL,
    result text NOT NULL,
    reason text NOT NULL,
    took_ms float8,
    CONSTRAINT deliveries_pkey PRIMARY KEY (run_id, id)
);
CREATE INDEX deliveries_project_at_idx ON deliveries (project, at);

CREATE TABLE approval_links (
    run_id uuid NOT NULL,
    id text NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    revision integer NOT NULL,
    channel text NOT NULL,
    person text,
    made_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    used_by text,
    used_from text,
    CONSTRAINT approval_links_pkey PRIMARY KEY (run_id, id),
    CONSTRAINT approval_links_commands_fkey
        FOREIGN KEY (run_id, incident, command) REFERENCES commands (run_id, incident, number)
);

CREATE TABLE escalations (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    level integer NOT NULL,
    began_at timestamptz NOT NULL,
    next_at timestamptz,
    CONSTRAINT escalations_pkey PRIMARY KEY (run_id, incident, command),
    CONSTRAINT escalations_commands_fkey
        FOREIGN KEY (run_id, incident, command) REFERENCES commands (run_id, incident, number)
);
CREATE INDEX escalations_next_idx ON escalations (next_at) WHERE next_at IS NOT NULL;

-- Tokens and the sessions that were opened with them; of a secret its hash alone.
CREATE TABLE tokens (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    hash bytea NOT NULL,
    role text NOT NULL,
    project text,
    run text,
    name text,
    person text,
    known_by text,
    parent bigint,
    made_with bigint,
    signed_in_at timestamptz,
    subject text,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT tokens_pkey PRIMARY KEY (id),
    CONSTRAINT tokens_hash_key UNIQUE (hash)
);

-- The audit: append-only. Whoever inserts chooses neither number nor time.
CREATE TABLE audit (
    run_id uuid NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    project text,
    incident integer,
    command integer,
    before text,
    after text,
    reason text,
    changes jsonb DEFAULT '[]' NOT NULL,
    actor_kind text,
    token bigint,
    session bigint,
    known_by text,
    CONSTRAINT audit_pkey PRIMARY KEY (run_id, number)
);
CREATE INDEX audit_at_idx ON audit (at);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % refused', TG_OP
    USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE FUNCTION number_audit() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT coalesce(max(a.number), 0) + 1 INTO NEW.number FROM public.audit a
  WHERE a.run_id = NEW.run_id;
  NEW.at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER numbered BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION number_audit();

-- What is left of deleted runs, and what counters had from them.
CREATE TABLE deleted_runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    deleted_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    incidents integer NOT NULL,
    detector_version bigint NOT NULL,
    curves_left boolean NOT NULL,
    CONSTRAINT deleted_runs_pkey PRIMARY KEY (run_id)
);
CREATE INDEX deleted_runs_curves_left_idx ON deleted_runs (run_id) WHERE curves_left;

CREATE TABLE deleted_totals (
    counter text NOT NULL,
    first text NOT NULL,
    second text NOT NULL,
    count bigint NOT NULL,
    CONSTRAINT deleted_totals_pkey PRIMARY KEY (counter, first, second)
);
