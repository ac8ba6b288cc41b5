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
    state text NOT NULL,  -- live, silent, ended
    attempts integer NOT NULL,  -- started so far
    incidents integer NOT NULL,  -- opened so far
    open_incident integer,
    last_message_at timestamptz NOT NULL,
    -- where the newest attempt stands
    current_attempt integer,
    current_segment bigint,
    last_step bigint,
    position bigint,  -- the next in the data order
    last_loss float8,
    last_grad_norm float8,
    last_z float8,  -- deviations of that loss above its trend
    own_z text,  -- the same of the user's own signals, as JSON, by name
    own_names text,  -- of all of these that came so far, as JSON
    tokens_per_second float8,
    followed_to bigint,  -- the last step that a closed incident still waits for
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
    number integer NOT NULL,  -- from 1 on, in the order of registration
    id text NOT NULL,  -- 16 hexadecimal digits
    parent_attempt text,
    parent_segment bigint,
    parent_step bigint,
    started_at timestamptz NOT NULL,
    last_message_at timestamptz NOT NULL,
    alive_at timestamptz NOT NULL,  -- when its newest record was made
    ended_at timestamptz,
    end_reason text,
    lost boolean DEFAULT false NOT NULL,  -- silent for so long that its orders count as unknown
    last_sequence bigint DEFAULT 0 NOT NULL,
    -- what it says of itself; the defaults until it does
    world_size bigint DEFAULT 1 NOT NULL,
    capabilities text[] DEFAULT '{}' NOT NULL,
    agent_version text DEFAULT 'unknown' NOT NULL,
    tokens_per_step bigint,
    settings jsonb DEFAULT '{}' NOT NULL,  -- text to text
    links jsonb DEFAULT '{}' NOT NULL,  -- name to address
    dropped_samples bigint DEFAULT 0 NOT NULL,  -- by declared gaps
    curves_dropped_at timestamptz,  -- it had been quiet for longer than samples are kept
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
    -- the parent's attempt is an id: it may never have reached us
    parent_attempt text,
    parent_segment bigint,
    parent_step bigint,
    position bigint NOT NULL,
    command text,
    first_step bigint,
    last_step bigint,
    compacted_to bigint,  -- no small chunks lie before it
    CONSTRAINT segments_pkey PRIMARY KEY (run_id, attempt, segment),
    CONSTRAINT segments_attempts_fkey
        FOREIGN KEY (run_id, attempt) REFERENCES attempts (run_id, number)
) WITH (fillfactor = 50);

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

-- What was measured: some steps of a segment a row, one array a signal.
CREATE TABLE chunks (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    first_step bigint NOT NULL,
    last_step bigint NOT NULL,
    -- an array is null where nobody measured
    steps bigint[],  -- null: every step from the first to the last
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
    extra_values float8[],  -- all steps of the first name, then of the second ...
    -- ranges of batches: that of step i is [even_first + i * even_size, + even_size), or
    even_first bigint,
    even_size bigint,
    batch_first bigint[],
    batch_end bigint[],
    CONSTRAINT chunks_pkey PRIMARY KEY (run_id, attempt, segment, first_step)
);

CREATE TABLE layer_norms (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    signal text NOT NULL,
    names text[] NOT NULL,
    norms float8[] NOT NULL,
    CONSTRAINT layer_norms_pkey PRIMARY KEY (run_id, attempt, segment, step, signal)
);

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

-- What the detector of a run knows. Its bytes stay in the row, so that an update stays on its
-- page: by default a state of a few kB would move out of line.
CREATE TABLE detector_states (
    run_id uuid NOT NULL,
    version bigint NOT NULL,  -- counts the messages that moved the detector
    attempt integer NOT NULL,  -- the place the detector stands at
    segment bigint NOT NULL,
    step bigint NOT NULL,
    state bytea NOT NULL,  -- at `state_step`; the samples stored since lead on
    state_step bigint NOT NULL,
    anchor bigint NOT NULL,  -- the newest version that more than samples led to
    failures integer NOT NULL,  -- messages in a row that detection failed on
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

-- An incident with its revisions, and the precursors and samples around it. At most one of a run
-- is open.
CREATE TABLE incidents (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    state text NOT NULL,
    kind text NOT NULL,
    outcome text,
    cause text,  -- the likeliest
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    onset_step bigint NOT NULL,
    record json NOT NULL,  -- the rest of it as the domain has it, in the protocol's encoding
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    followed_to bigint,  -- samples are kept up to this step after the close
    reported_at timestamptz,  -- when what its post-mortem says changed last; null: it is open
    counted boolean DEFAULT false NOT NULL,  -- among the figures of closed incidents
    acknowledged_at timestamptz,  -- null: nobody looks at it
    acknowledged_by text,
    assignee text,
    CONSTRAINT incidents_pkey PRIMARY KEY (run_id, number),
    CONSTRAINT incidents_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX incidents_one_open_key ON incidents (run_id) WHERE state <> 'closed';
CREATE INDEX incidents_opened_at_run_id_number_idx ON incidents (opened_at, run_id, number);
CREATE INDEX incidents_uncounted_idx ON incidents (run_id, number)
    WHERE closed_at IS NOT NULL AND NOT counted;
CREATE INDEX incidents_closed_idx ON incidents (kind, outcome) WHERE outcome IS NOT NULL;

CREATE TABLE responses (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,  -- from 1 on, within the incident
    at timestamptz NOT NULL,
    person text NOT NULL,
    action text NOT NULL,  -- acknowledged, unacknowledged, assigned, unassigned, commented
    assignee text,
    text text,
    CONSTRAINT responses_pkey PRIMARY KEY (run_id, incident, number),
    CONSTRAINT responses_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);

CREATE TABLE notes (
    run_id uuid NOT NULL,
    number integer NOT NULL,  -- from 1 on, within the run
    source text NOT NULL,  -- person, attempt
    at timestamptz NOT NULL,
    actor text NOT NULL,
    began integer,  -- the attempt that began with it, of source attempt
    attempt integer,  -- the last step before it; null: the run had none
    segment bigint,
    step bigint NOT NULL,
    text text NOT NULL,
    reason text,
    changes jsonb NOT NULL,  -- field, before, after
    expected text,  -- lower, higher, none
    expected_size float8,  -- nats
    shown boolean NOT NULL,  -- False: a start that may turn out to have changed nothing
    due_step bigint,  -- when it is looked at next; null: never again
    judged_step bigint,
    effect float8,  -- of the loss above its trend, nats
    effect_error float8,  -- half width of its 95 % interval
    -- of a rollback: that kept and undone branch were compared on; null: held against the trend
    effect_batches integer,
    unknown text,  -- why there is no effect to tell
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

-- The steps whose samples outlive the run's others, for the sake of an incident.
CREATE TABLE incident_stretches (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    first_step bigint NOT NULL,
    last_step bigint NOT NULL,
    CONSTRAINT incident_stretches_pkey PRIMARY KEY (run_id, incident, attempt, segment),
    CONSTRAINT incident_stretches_incidents_fkey
        FOREIGN KEY (run_id, incident) REFERENCES incidents (run_id, number)
);
CREATE INDEX incident_stretches_segment_idx ON incident_stretches (run_id, attempt, segment);

CREATE VIEW incident_samples AS
SELECT k.incident, s.* FROM incident_stretches k JOIN samples s USING (run_id, attempt, segment)
WHERE s.step BETWEEN k.first_step AND k.last_step;

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

-- Commands from proposal to judgement, and the batches that ranks skipped.
CREATE TABLE commands (
    run_id uuid NOT NULL,
    incident integer NOT NULL,  -- 0: ordered of the run itself
    number integer NOT NULL,
    verb text NOT NULL,
    arguments jsonb NOT NULL,  -- as the protocol writes them
    state text NOT NULL,
    revision integer NOT NULL,
    reason text NOT NULL,
    cause text,  -- the diagnosis that it was put down to; null: to none
    policy_version integer NOT NULL,
    policy_scope text DEFAULT 'project' NOT NULL,  -- whose: project, run
    attempt integer NOT NULL,  -- the fence
    expires_at timestamptz NOT NULL,
    expires_at_step bigint,
    proposed_at timestamptz NOT NULL,
    proposed_by text,  -- a person; the policy leaves it out
    decided_at timestamptz,
    decided_by text,
    decided_step bigint,  -- where the run stood then, or when nobody had in time
    automatic boolean NOT NULL,  -- the policy decided, no person did
    decision_reason text,
    delivered_at timestamptz,
    finished_at timestamptz,
    applied_step bigint,
    result text,
    end_reason text,  -- why it ended without reaching the job
    judgement text,
    escalation integer DEFAULT 0 NOT NULL,  -- the level that was told since nobody answered
    escalates_at timestamptz,  -- when the next is told; null: everybody was
    CONSTRAINT commands_pkey PRIMARY KEY (run_id, incident, number),
    CONSTRAINT commands_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX commands_unfinished_idx ON commands (run_id, incident, number)
    WHERE state IN ('proposed', 'approved', 'delivered');
CREATE INDEX commands_verb_state_idx ON commands (verb, state);
CREATE INDEX commands_escalates_idx ON commands (escalates_at) WHERE escalates_at IS NOT NULL;
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
    policy_scope text DEFAULT 'project' NOT NULL,  -- whose: project, run
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
    detail text NOT NULL,  -- the record's JSON, which has words for what is not finite
    CONSTRAINT batch_details_pkey PRIMARY KEY (run_id, attempt, segment, step, rank),
    CONSTRAINT batch_details_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);

-- The policies of projects and of runs: a row, once written, never changes.
CREATE TABLE policies (
    project text NOT NULL,
    run_id uuid NOT NULL,  -- all zeros: the project's
    version integer NOT NULL,  -- the highest is in force
    document jsonb,  -- null, of a run: the project's again
    at timestamptz NOT NULL,
    actor text NOT NULL,
    CONSTRAINT policies_pkey PRIMARY KEY (project, run_id, version)
);

-- Notifications: who is told, what waits to be told, what was told, and the links that decide.
CREATE TABLE channels (
    project text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    target jsonb NOT NULL,  -- addresses and keys: shown to nobody
    rules jsonb NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    CONSTRAINT channels_pkey PRIMARY KEY (project, name)
);

CREATE TABLE silences (
    project text NOT NULL,
    number integer NOT NULL,
    run text,  -- null: every run of the project
    incident integer,  -- null: every one of the run
    begins_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT silences_pkey PRIMARY KEY (project, number)
);

CREATE TABLE deliveries (
    run_id uuid NOT NULL,  -- all zeros for a test, which belongs to none
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    at timestamptz NOT NULL,
    project text NOT NULL,
    incident integer,
    channel text,  -- null: there was none to tell
    topics text[] NOT NULL,
    result text NOT NULL,  -- sent, held, dropped, failed, given_up
    reason text NOT NULL,
    took_ms float8,
    CONSTRAINT deliveries_pkey PRIMARY KEY (run_id, id)
);
CREATE INDEX deliveries_project_at_idx ON deliveries (project, at);

CREATE TABLE conversations (
    run_id uuid NOT NULL,
    incident integer NOT NULL,  -- 0: of the run itself
    channel text NOT NULL,  -- empty: there was none to tell
    project text NOT NULL,
    pending text[] NOT NULL,  -- topics that wait to be told
    version bigint NOT NULL,  -- counts what was added to `pending`
    due_at timestamptz,  -- null: nothing waits
    leased_until timestamptz,  -- somebody is telling it now
    failures integer NOT NULL,  -- in a row
    given_up boolean NOT NULL,  -- a message was, and nothing has arrived on its channel since
    told integer NOT NULL,  -- messages that arrived
    told_at timestamptz,
    held_for text,  -- the reason that was last logged for waiting
    over boolean NOT NULL,
    CONSTRAINT conversations_pkey PRIMARY KEY (run_id, incident, channel),
    CONSTRAINT conversations_runs_fkey FOREIGN KEY (run_id) REFERENCES runs (run_id)
);
CREATE INDEX conversations_due_idx ON conversations (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE approval_links (
    run_id uuid NOT NULL,
    id text NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    revision integer NOT NULL,  -- the one that was shown
    channel text NOT NULL,
    person text,  -- in whose name it decides; null: whoever says so
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    used_by text,
    CONSTRAINT approval_links_pkey PRIMARY KEY (run_id, id),
    CONSTRAINT approval_links_commands_fkey
        FOREIGN KEY (run_id, incident, command) REFERENCES commands (run_id, incident, number)
);

-- Tokens and the sessions that were opened with them; of a secret its hash alone.
CREATE TABLE tokens (
    id bigint GENERATED ALWAYS AS IDENTITY NOT NULL,
    hash bytea NOT NULL,  -- SHA-256 of the secret
    role text NOT NULL,
    project text,  -- null: every project
    run text,  -- its name in that project, role agent only; null: every run
    name text,  -- what it is for
    person text,  -- who stands behind what is done with it
    known_by text,  -- of a session: KnownBy
    parent bigint,  -- the token that a session was opened with
    made_with bigint,  -- the grant that stands behind it
    signed_in_at timestamptz,  -- of a session: its person
    subject text,  -- the account at the identity provider that it stands for
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT tokens_pkey PRIMARY KEY (id),
    CONSTRAINT tokens_hash_key UNIQUE (hash)
);

-- The audit: append-only. Whoever inserts chooses neither number nor time.
CREATE TABLE audit (
    run_id uuid NOT NULL,  -- all zeros for what belongs to no run
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,  -- for people; programs read the three columns below
    project text,  -- of what belongs to no run
    incident integer,  -- 0: of the run itself
    command integer,
    before text,
    after text,
    reason text,
    changes jsonb DEFAULT '[]' NOT NULL,  -- field, before, after
    actor_kind text,  -- ActorKind
    token bigint,  -- the grant, not the session
    session bigint,
    known_by text,  -- KnownBy: how a person is known
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

-- What is left of the newest deletion under a name, and what counters had from deleted runs: a
-- counter never falls.
CREATE TABLE deleted_runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    deleted_at timestamptz NOT NULL,
    -- where a run goes on counting that begins under the name again: no id comes twice
    attempts integer NOT NULL,
    incidents integer NOT NULL,
    detector_version bigint NOT NULL,
    CONSTRAINT deleted_runs_pkey PRIMARY KEY (run_id)
);

CREATE TABLE deleted_totals (
    counter text NOT NULL,  -- closed, finished, dropped
    first text NOT NULL,  -- kind, or verb; empty for dropped samples
    second text NOT NULL,  -- outcome, or state; empty likewise
    count bigint NOT NULL,
    CONSTRAINT deleted_totals_pkey PRIMARY KEY (counter, first, second)
);
