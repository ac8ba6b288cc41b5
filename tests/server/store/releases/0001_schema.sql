SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE SCHEMA partitions;


CREATE FUNCTION partitions.drop_partition(parent text, week date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
  IF parent NOT IN ('chunks', 'rollups', 'layer_norms') THEN
    RAISE EXCEPTION 'no partitions of % are dropped', parent;
  END IF;
  EXECUTE format('DROP TABLE partitions.%I', parent || to_char(week, '_YYYYMMDD'));
END $$;


CREATE FUNCTION partitions.make_partitions(week date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE parent text; part text;
BEGIN
  FOREACH parent IN ARRAY ARRAY['chunks', 'rollups', 'layer_norms'] LOOP
    part := parent || to_char(week, '_YYYYMMDD');
    EXECUTE format('CREATE TABLE partitions.%I (LIKE public.%I INCLUDING ALL)', part, parent);
    EXECUTE format('ALTER TABLE public.%I ATTACH PARTITION partitions.%I FOR VALUES IN (%L)',
                   parent, part, week);
  END LOOP;
END $$;


CREATE FUNCTION public.chain_audit() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
DECLARE last_number bigint; last_digest bytea; content text;
BEGIN
  SELECT a.number, a.digest INTO last_number, last_digest FROM public.audit a
  WHERE a.run_id = NEW.run_id ORDER BY a.number DESC LIMIT 1;
  NEW.number := coalesce(last_number, 0) + 1;
  NEW.at := clock_timestamp();
  SELECT string_agg(format('%s=%s:%s', key, octet_length(value), value), E'\n'
                    ORDER BY key COLLATE "C")
  INTO content FROM jsonb_each_text(to_jsonb(NEW) - 'digest') WHERE value IS NOT NULL;
  NEW.digest := sha256(convert_to(
    concat('previous=', encode(last_digest, 'hex'), E'\n', content), 'UTF8'));
  RETURN NEW;
END $$;


CREATE FUNCTION public.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  RAISE EXCEPTION 'the audit is append-only: % refused', TG_OP
    USING ERRCODE = 'insufficient_privilege';
END $$;


SET default_tablespace = '';

CREATE TABLE public.chunks (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    first_step bigint NOT NULL,
    week date NOT NULL,
    last_step bigint NOT NULL,
    steps bigint[],
    loss double precision[],
    loss_rank_max double precision[],
    grad_norm double precision[],
    grad_norm_at_step double precision[],
    param_norm double precision[],
    adam_v_norm double precision[],
    update_norm double precision[],
    update_norm_sampled double precision[],
    lr double precision[],
    tokens_per_second double precision[],
    step_time double precision[],
    update_dropped double precision[],
    extra_names text[],
    extra_values double precision[],
    even_first bigint,
    even_size bigint,
    batch_first bigint[],
    batch_end bigint[]
)
PARTITION BY LIST (week);
ALTER TABLE ONLY public.chunks ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN loss SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN loss_rank_max SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN grad_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN grad_norm_at_step SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN param_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN adam_v_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN update_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN update_norm_sampled SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN lr SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN tokens_per_second SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN step_time SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN update_dropped SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN extra_values SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN batch_first SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.chunks ALTER COLUMN batch_end SET STORAGE EXTERNAL;


CREATE VIEW public.samples AS
 SELECT p.run_id,
    p.attempt,
    p.segment,
    s.step,
    s.loss,
    s.loss_rank_max,
    s.grad_norm,
    s.grad_norm_at_step,
    s.param_norm,
    s.adam_v_norm,
    s.update_norm,
    s.update_norm_sampled,
    s.lr,
    s.tokens_per_second,
    s.step_time,
    s.update_dropped,
    p.extra_names,
        CASE
            WHEN (p.extra_names IS NOT NULL) THEN ARRAY( SELECT p.extra_values[((((i.i - 1) * cardinality(p.extra_values)) / cardinality(p.extra_names)) + s.place)] AS extra_values
               FROM generate_series(1, cardinality(p.extra_names)) i(i))
            ELSE NULL::double precision[]
        END AS extra_values,
    COALESCE(s.batch_first, (p.even_first + ((s.place - 1) * p.even_size))) AS batch_first,
    COALESCE(s.batch_end, (p.even_first + (s.place * p.even_size))) AS batch_end
   FROM (public.chunks p
     CROSS JOIN LATERAL UNNEST(COALESCE(p.steps, ARRAY( SELECT generate_series(p.first_step, p.last_step) AS generate_series)), p.loss, p.loss_rank_max, p.grad_norm, p.grad_norm_at_step, p.param_norm, p.adam_v_norm, p.update_norm, p.update_norm_sampled, p.lr, p.tokens_per_second, p.step_time, p.update_dropped, p.batch_first, p.batch_end) WITH ORDINALITY s(step, loss, loss_rank_max, grad_norm, grad_norm_at_step, param_norm, adam_v_norm, update_norm, update_norm_sampled, lr, tokens_per_second, step_time, update_dropped, batch_first, batch_end, place));


CREATE FUNCTION public.samples_between(run uuid, try integer, part bigint, first bigint, last bigint) RETURNS SETOF public.samples
    LANGUAGE sql STABLE
    AS $$
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


SET default_table_access_method = heap;

CREATE TABLE partitions.chunks_20261123 (
    run_id uuid CONSTRAINT chunks_run_id_not_null NOT NULL,
    attempt integer CONSTRAINT chunks_attempt_not_null NOT NULL,
    segment bigint CONSTRAINT chunks_segment_not_null NOT NULL,
    first_step bigint CONSTRAINT chunks_first_step_not_null NOT NULL,
    week date CONSTRAINT chunks_week_not_null NOT NULL,
    last_step bigint CONSTRAINT chunks_last_step_not_null NOT NULL,
    steps bigint[],
    loss double precision[],
    loss_rank_max double precision[],
    grad_norm double precision[],
    grad_norm_at_step double precision[],
    param_norm double precision[],
    adam_v_norm double precision[],
    update_norm double precision[],
    update_norm_sampled double precision[],
    lr double precision[],
    tokens_per_second double precision[],
    step_time double precision[],
    update_dropped double precision[],
    extra_names text[],
    extra_values double precision[],
    even_first bigint,
    even_size bigint,
    batch_first bigint[],
    batch_end bigint[]
);
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN loss SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN loss_rank_max SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN grad_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN grad_norm_at_step SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN param_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN adam_v_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN update_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN update_norm_sampled SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN lr SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN tokens_per_second SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN step_time SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN update_dropped SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN extra_values SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN batch_first SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.chunks_20261123 ALTER COLUMN batch_end SET STORAGE EXTERNAL;


CREATE TABLE public.layer_norms (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    signal text NOT NULL,
    week date NOT NULL,
    names text[] NOT NULL,
    norms double precision[] NOT NULL
)
PARTITION BY LIST (week);


CREATE TABLE partitions.layer_norms_20261123 (
    run_id uuid CONSTRAINT layer_norms_run_id_not_null NOT NULL,
    attempt integer CONSTRAINT layer_norms_attempt_not_null NOT NULL,
    segment bigint CONSTRAINT layer_norms_segment_not_null NOT NULL,
    step bigint CONSTRAINT layer_norms_step_not_null NOT NULL,
    signal text CONSTRAINT layer_norms_signal_not_null NOT NULL,
    week date CONSTRAINT layer_norms_week_not_null NOT NULL,
    names text[] CONSTRAINT layer_norms_names_not_null NOT NULL,
    norms double precision[] CONSTRAINT layer_norms_norms_not_null NOT NULL
);


CREATE TABLE public.rollups (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    first_step bigint NOT NULL,
    week date NOT NULL,
    last_step bigint NOT NULL,
    count integer NOT NULL,
    steps bigint[],
    loss double precision[],
    loss_rank_max double precision[],
    grad_norm double precision[],
    grad_norm_at_step double precision[],
    param_norm double precision[],
    adam_v_norm double precision[],
    update_norm double precision[],
    update_norm_sampled double precision[],
    lr double precision[],
    tokens_per_second double precision[],
    step_time double precision[],
    update_dropped double precision[],
    extra_names text[],
    extra_values double precision[],
    even_first bigint,
    even_size bigint,
    batch_first bigint[],
    batch_end bigint[]
)
PARTITION BY LIST (week);
ALTER TABLE ONLY public.rollups ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN loss SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN loss_rank_max SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN grad_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN grad_norm_at_step SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN param_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN adam_v_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN update_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN update_norm_sampled SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN lr SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN tokens_per_second SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN step_time SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN update_dropped SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN extra_values SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN batch_first SET STORAGE EXTERNAL;
ALTER TABLE ONLY public.rollups ALTER COLUMN batch_end SET STORAGE EXTERNAL;


CREATE TABLE partitions.rollups_20261123 (
    run_id uuid CONSTRAINT rollups_run_id_not_null NOT NULL,
    attempt integer CONSTRAINT rollups_attempt_not_null NOT NULL,
    segment bigint CONSTRAINT rollups_segment_not_null NOT NULL,
    first_step bigint CONSTRAINT rollups_first_step_not_null NOT NULL,
    week date CONSTRAINT rollups_week_not_null NOT NULL,
    last_step bigint CONSTRAINT rollups_last_step_not_null NOT NULL,
    count integer CONSTRAINT rollups_count_not_null NOT NULL,
    steps bigint[],
    loss double precision[],
    loss_rank_max double precision[],
    grad_norm double precision[],
    grad_norm_at_step double precision[],
    param_norm double precision[],
    adam_v_norm double precision[],
    update_norm double precision[],
    update_norm_sampled double precision[],
    lr double precision[],
    tokens_per_second double precision[],
    step_time double precision[],
    update_dropped double precision[],
    extra_names text[],
    extra_values double precision[],
    even_first bigint,
    even_size bigint,
    batch_first bigint[],
    batch_end bigint[]
);
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN steps SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN loss SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN loss_rank_max SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN grad_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN grad_norm_at_step SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN param_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN adam_v_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN update_norm SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN update_norm_sampled SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN lr SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN tokens_per_second SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN step_time SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN update_dropped SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN extra_values SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN batch_first SET STORAGE EXTERNAL;
ALTER TABLE ONLY partitions.rollups_20261123 ALTER COLUMN batch_end SET STORAGE EXTERNAL;


CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);


CREATE TABLE public.approval_links (
    run_id uuid NOT NULL,
    id text NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    revision integer NOT NULL,
    channel text NOT NULL,
    person text,
    made_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    used_by text,
    used_from text
);


CREATE TABLE public.attempts (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    id text NOT NULL,
    parent_attempt text,
    parent_segment bigint,
    parent_step bigint,
    started_at timestamp with time zone NOT NULL,
    last_message_at timestamp with time zone NOT NULL,
    alive_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    end_reason text,
    lost boolean NOT NULL,
    last_sequence bigint NOT NULL,
    world_size bigint NOT NULL,
    capabilities text[] NOT NULL,
    agent_version text NOT NULL,
    tokens_per_step bigint,
    settings jsonb NOT NULL,
    dropped_samples bigint NOT NULL
)
WITH (fillfactor='50');


CREATE TABLE public.audit (
    run_id uuid NOT NULL,
    number bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    before text,
    after text,
    reason text,
    changes jsonb DEFAULT '[]'::jsonb NOT NULL,
    actor_kind text,
    token bigint,
    session bigint,
    known_by text,
    digest bytea
);


CREATE TABLE public.channels (
    project text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    target jsonb NOT NULL,
    rules jsonb NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    changed_by text NOT NULL
);


CREATE TABLE public.clock (
    id integer NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    ahead_s double precision NOT NULL
);


CREATE TABLE public.clock_jumps (
    number integer NOT NULL,
    before timestamp with time zone NOT NULL,
    after timestamp with time zone NOT NULL
);


CREATE TABLE public.command_revisions (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    number integer NOT NULL,
    at timestamp with time zone NOT NULL,
    verb text NOT NULL,
    arguments jsonb NOT NULL,
    reason text NOT NULL,
    policy_version integer NOT NULL,
    policy_scope text DEFAULT 'project'::text NOT NULL
);


CREATE TABLE public.commands (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    verb text NOT NULL,
    arguments jsonb NOT NULL,
    state text NOT NULL,
    revision integer NOT NULL,
    reason text NOT NULL,
    policy_version integer NOT NULL,
    policy_scope text DEFAULT 'project'::text NOT NULL,
    attempt integer NOT NULL,
    replaces integer,
    expires_at timestamp with time zone NOT NULL,
    expires_at_step bigint,
    proposed_at timestamp with time zone NOT NULL,
    decided_at timestamp with time zone,
    decided_by text,
    decided_step bigint,
    automatic boolean NOT NULL,
    approvals smallint DEFAULT '1'::smallint NOT NULL,
    first_approved_at timestamp with time zone,
    first_approved_by text,
    first_approved_token bigint,
    first_approved_known_by text,
    signature text,
    decision_reason text,
    delivered_at timestamp with time zone,
    finished_at timestamp with time zone,
    applied_step bigint,
    result text,
    end_reason text,
    judgement text
);


CREATE TABLE public.conversations (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    channel text NOT NULL,
    project text NOT NULL,
    pending text[] NOT NULL,
    version bigint NOT NULL,
    due_at timestamp with time zone,
    leased_until timestamp with time zone,
    failures integer NOT NULL,
    told integer NOT NULL,
    told_at timestamp with time zone,
    held_for text,
    over boolean NOT NULL
);


CREATE TABLE public.deleted_runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    deleted_at timestamp with time zone NOT NULL,
    attempts integer NOT NULL,
    incidents integer NOT NULL,
    detector_version bigint NOT NULL,
    curves_left boolean NOT NULL
);


CREATE TABLE public.deliveries (
    run_id uuid NOT NULL,
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    project text NOT NULL,
    incident integer,
    channel text,
    topics text[] NOT NULL,
    result text NOT NULL,
    reason text NOT NULL,
    took_ms double precision
);


ALTER TABLE public.deliveries ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.deliveries_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


CREATE TABLE public.detector_snapshots (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    state bytea NOT NULL,
    at_target boolean NOT NULL,
    CONSTRAINT detector_snapshots_size_check CHECK ((octet_length(state) <= 262144))
);


CREATE TABLE public.detector_states (
    run_id uuid NOT NULL,
    version bigint NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    state bytea NOT NULL,
    state_step bigint NOT NULL,
    anchor bigint NOT NULL,
    failures integer NOT NULL,
    CONSTRAINT detector_states_size_check CHECK ((octet_length(state) <= 262144))
)
WITH (fillfactor='50');
ALTER TABLE ONLY public.detector_states ALTER COLUMN state SET STORAGE MAIN;


CREATE TABLE public.escalations (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    level integer NOT NULL,
    began_at timestamp with time zone NOT NULL,
    next_at timestamp with time zone
);


CREATE TABLE public.incident_revisions (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    step bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    confidence double precision NOT NULL,
    reason text NOT NULL,
    peak_step bigint NOT NULL,
    peak_loss double precision,
    excess double precision,
    settled boolean NOT NULL
);


CREATE TABLE public.incident_samples (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    loss double precision,
    loss_rank_max double precision,
    grad_norm double precision,
    grad_norm_at_step double precision,
    param_norm double precision,
    adam_v_norm double precision,
    update_norm double precision,
    update_norm_sampled double precision,
    lr double precision,
    tokens_per_second double precision,
    step_time double precision,
    update_dropped double precision,
    extra_names text[],
    extra_values double precision[],
    batch_first bigint,
    batch_end bigint
);


CREATE TABLE public.incidents (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    state text NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    onset_step bigint NOT NULL,
    onset_first bigint,
    onset_end bigint,
    detected_step bigint NOT NULL,
    newest_step bigint NOT NULL,
    kind text NOT NULL,
    confidence double precision NOT NULL,
    reason text NOT NULL,
    peak_step bigint NOT NULL,
    peak_loss double precision,
    excess double precision,
    settled boolean NOT NULL,
    signal text NOT NULL,
    pre_loss double precision,
    trend_step bigint,
    trend_level double precision,
    trend_slope double precision,
    trend_scale double precision,
    trend_band double precision,
    dropped boolean NOT NULL,
    anomalous_step bigint,
    recurrences integer NOT NULL,
    first_peak_step bigint,
    recurred_attempt integer,
    recurred_segment bigint,
    recurred_step bigint,
    recurred_first bigint,
    recurred_end bigint,
    z_names text[] NOT NULL,
    z_values double precision[] NOT NULL,
    move_names text[] NOT NULL,
    move_steps bigint[] NOT NULL,
    cause_names text[],
    cause_confidences double precision[],
    cause_reasons text[],
    cause_first_steps bigint[],
    cause_last_steps bigint[],
    cause_ratios double precision[],
    cause_ranks integer[],
    layer_signal text,
    layer_name text,
    layer_step bigint,
    layer_ratio double precision,
    layers_moved integer,
    layers_known integer,
    closed_step bigint,
    outcome text,
    opened_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    revisions integer NOT NULL,
    commands integer NOT NULL,
    followed_to bigint,
    report_due_at timestamp with time zone,
    report_failures integer NOT NULL
)
WITH (fillfactor='50');


CREATE TABLE public.new_runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    token_id bigint,
    began_at timestamp with time zone NOT NULL
);


CREATE TABLE public.notices (
    run_id uuid NOT NULL,
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    topic text NOT NULL,
    incident integer,
    command integer
);


ALTER TABLE public.notices ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.notices_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


CREATE TABLE public.policies (
    project text NOT NULL,
    version integer NOT NULL,
    document jsonb NOT NULL,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL
);


CREATE TABLE public.precursors (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    signal text NOT NULL,
    value double precision NOT NULL,
    z double precision NOT NULL,
    at timestamp with time zone NOT NULL,
    incident integer
);


CREATE TABLE public.projects (
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL
);


CREATE TABLE public.reports (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    format text NOT NULL,
    body bytea NOT NULL,
    written_at timestamp with time zone NOT NULL
);


CREATE TABLE public.run_policies (
    run_id uuid NOT NULL,
    version integer NOT NULL,
    document jsonb,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL
);


CREATE TABLE public.runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    incidents integer NOT NULL,
    open_incident integer,
    last_message_at timestamp with time zone NOT NULL,
    current_attempt integer,
    current_segment bigint,
    last_step bigint,
    "position" bigint,
    last_loss double precision,
    last_grad_norm double precision,
    last_z double precision,
    own_z text,
    tokens_per_second double precision,
    followed_to bigint,
    archived_at timestamp with time zone
)
WITH (fillfactor='50');


CREATE TABLE public.segments (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    reason text NOT NULL,
    parent_attempt text,
    parent_segment bigint,
    parent_step bigint,
    "position" bigint NOT NULL,
    command text,
    opened_at timestamp with time zone NOT NULL,
    first_step bigint,
    last_step bigint,
    week date NOT NULL,
    rolled_to bigint
)
WITH (fillfactor='50');


CREATE TABLE public.shadow_decisions (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    command integer NOT NULL,
    verb text NOT NULL,
    revision integer NOT NULL,
    step bigint NOT NULL,
    cost_steps bigint NOT NULL,
    policy_version integer NOT NULL,
    policy_scope text DEFAULT 'project'::text NOT NULL,
    reason text NOT NULL,
    at timestamp with time zone NOT NULL
);


CREATE TABLE public.silences (
    project text NOT NULL,
    number integer NOT NULL,
    run text,
    incident integer,
    begins_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    reason text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    ended_by text
);


CREATE TABLE public.skipped_batches (
    run_id uuid NOT NULL,
    batch_first bigint NOT NULL,
    rank bigint NOT NULL,
    batch_end bigint NOT NULL,
    attempt text NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    command text,
    names text[] NOT NULL,
    names_cut bigint NOT NULL,
    told_at timestamp with time zone NOT NULL
);


CREATE TABLE public.targets (
    run_id uuid NOT NULL,
    name text NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    "position" bigint NOT NULL,
    medium text NOT NULL,
    saved_at timestamp with time zone NOT NULL,
    deleted_at timestamp with time zone
);


CREATE TABLE public.tokens (
    id bigint NOT NULL,
    hash bytea NOT NULL,
    role text NOT NULL,
    project text,
    run text,
    name text,
    person text,
    known_by text,
    parent bigint,
    made_with bigint,
    signed_in_at timestamp with time zone,
    subject text,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone
);


ALTER TABLE public.tokens ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.tokens_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


CREATE TABLE public.weeks (
    starts date NOT NULL,
    samples_dropped_at timestamp with time zone,
    rollups_dropped_at timestamp with time zone,
    layers_dropped_at timestamp with time zone
);


ALTER TABLE ONLY public.chunks ATTACH PARTITION partitions.chunks_20261123 FOR VALUES IN ('2026-11-23');


ALTER TABLE ONLY public.layer_norms ATTACH PARTITION partitions.layer_norms_20261123 FOR VALUES IN ('2026-11-23');


ALTER TABLE ONLY public.rollups ATTACH PARTITION partitions.rollups_20261123 FOR VALUES IN ('2026-11-23');


INSERT INTO partitions.chunks_20261123 VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 1, '2026-11-23', 40, NULL, '{5.012,5.022,4.999,4.997,4.984,5,4.992,4.998,4.984,4.983,4.98,4.977,4.989,5.002,4.99,4.981,4.969,4.993,4.978,4.998,4.992,4.989,5.004,4.978,4.965,4.98,4.97,4.983,4.969,4.969,4.982,4.982,4.962,4.961,4.958,4.959,4.97,4.965,4.973,4.95}', NULL, '{1.0644092376577732,1.116908336808795,1.0047354019143653,1.0020427972396553,0.9410579124384664,1.0249837796567904,0.98720598557762,1.0186707584811994,0.9529621557985756,0.9523141495968331,0.9387963662143017,0.9277406155193382,0.9956990506890235,1.0609739968060121,1.0074742386407902,0.9631057189256278,0.910213964463092,1.0308019107684494,0.9612518579665762,1.0631375761446893,1.0389622584472311,1.026557547125948,1.1084993360369033,0.9775697364810418,0.9181638076847263,0.9994271632656687,0.9537167013333838,1.020086352012616,0.9560247252948693,0.9599259267473323,1.0243438480443043,1.030642340144039,0.9360715604831334,0.9347133938588555,0.9205490000863794,0.932156197589171,0.990918590334013,0.9661238732468802,1.0123136690101626,0.9009141397374485}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 0, 1, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 41, '2026-11-23', 80, NULL, '{4.964,4.967,4.983,4.957,4.965,4.973,4.958,4.959,4.973,4.955,4.962,4.964,4.945,4.964,4.979,4.971,4.97,4.951,4.96,4.95,4.942,4.959,4.945,4.938,4.944,4.96,4.965,4.948,4.946,4.955,4.941,4.958,4.943,4.952,4.934,4.926,4.945,4.943,4.946,4.938}', NULL, '{0.9734422622780059,0.9927954835211036,1.0749304225520435,0.9475540833350268,0.992072732114789,1.0385872848830517,0.9683339070000714,0.9746150432823917,1.0471382017458364,0.9606675185116827,1.0024047235366074,1.0165883601273706,0.9221173847135873,1.023287502406226,1.1034141876206036,1.062585040361308,1.0643668566536273,0.9703401665547408,1.018755152350536,0.9766670505577364,0.9362616935726128,1.0277195847306329,0.9607254394657625,0.9302617027353185,0.9645832981022096,1.0481968531452608,1.075980278155864,0.9937795445725629,0.9909883069056039,1.0352000038999467,0.9689077763471667,1.060145176332735,0.9890019439850782,1.0382772250083283,0.9489713340414826,0.9158564464145122,1.0134873821759118,1.0088549811968424,1.0283429130283877,0.9915891419385232}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 40, 1, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 81, '2026-11-23', 120, NULL, '{4.928,4.946,4.918,4.934,4.941,4.936,4.939,4.929,4.945,4.934,4.937,4.92,4.94,4.925,4.93,4.913,4.933,4.915,4.92,4.932,4.919,4.932,4.934,4.942,4.928,4.915,4.92,4.932,4.916,4.927,4.92,4.901,4.935,4.915,4.919,4.919,4.913,4.91,4.916,4.904}', NULL, '{0.94509160858835,1.0356381092120401,0.9014574040704214,0.9871743750680868,1.02151930135924,1.003238742262483,1.0196925788740812,0.9740813232617247,1.0596397463044767,1.0063295434349346,1.0266179338061125,0.9432699252870352,1.0497567623106736,0.975363477992939,1.0038312924364698,0.9249983781093791,1.0309244053944109,0.9415454536634468,0.9724888651129698,1.0335776663471141,0.9712766413469887,1.0413001086437788,1.0547200627417963,1.0981667877015748,1.0333971874399437,0.9736993393034203,1.0014582560978273,1.062722333844657,0.989753178017216,1.045384812184753,1.016120106509122,0.926456894957647,1.0987027242184286,1.001291890336501,1.0262805768865,1.0293330236540061,1.0018623025823092,0.9922952077892591,1.0281681003514207,0.9678117038228611}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 80, 1, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 121, '2026-11-23', 130, NULL, '{7.921,7.895,7.912,7.919,7.912,7.894,7.918,7.911,7.888,7.895}', NULL, '{1.0564917704474113,0.9327237940112996,1.0202114216612332,1.0611291083874594,1.028708532089331,0.9410270829649741,1.0672005272670781,1.0341673559749442,0.9251867520510187,0.9603536688823795}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 120, 1, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 131, '2026-11-23', 140, NULL, '{7.895,7.892,7.889,7.893,7.892,7.887,7.906,7.9,7.911,7.896}', NULL, '{0.9657470936708419,0.9563779678679662,0.9426643548723717,0.9668785718674451,0.9660622234304023,0.9455275224666237,1.0461514195825314,1.0190275393401742,1.077048520138472,1.0030216414821713}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 130, 1, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 141, '2026-11-23', 150, NULL, '{7.892,7.88,7.909,7.882,7.904,7.9,7.885,7.877,7.895,7.897}', NULL, '{0.9876933029716066,0.934439731559201,1.081221399959511,0.9478429740696179,1.062190739236772,1.046751554361132,0.9776002236320299,0.9415837092584309,1.0343398906427959,1.0475043570414564}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 140, 1, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 151, '2026-11-23', 160, NULL, '{7.882,7.896,7.889,7.891,7.873,7.862,7.877,7.868,7.869,7.887}', NULL, '{0.9739375672258678,1.0493431580866959,1.0198174789532632,1.0327862893711015,0.9456113154245169,0.8954816366136824,0.9727431969082215,0.9340245769245955,0.9411042188596852,1.0329149176183912}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5}', NULL, NULL, NULL, 150, 1, NULL, NULL);


INSERT INTO public.alembic_version VALUES
	('0001_schema');


INSERT INTO public.approval_links VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'ieRf5L6-yO-oK7wj', 1, 2, 1, 'team', 'Ada', '2026-11-23 21:17:31.417067+00', '2026-11-23 22:17:31.415632+00', NULL, NULL, NULL);


INSERT INTO public.attempts VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '00000000000000a1', NULL, NULL, NULL, '2026-11-23 21:17:31.065756+00', '2026-11-23 21:17:31.364299+00', '2026-11-23 21:17:31.264299+00', NULL, NULL, false, 8, 1, '{skip_batches,rollback,scale_lr,checkpoint_now,watch,stop}', '0.1', 4096, '{}', 0);


INSERT INTO public.audit VALUES
	('00000000-0000-0000-0000-000000000000', 1, '2026-11-23 21:17:31.003764+00', 'me', 'token.created', 'token 1', NULL, 'agent, Ada', NULL, '[]', NULL, NULL, NULL, NULL, '\xa47f55f2669498286ccf01e6a6374aeb5ab9155d4c5c8aee30839248620b1068'),
	('00000000-0000-0000-0000-000000000000', 2, '2026-11-23 21:17:31.008492+00', 'me', 'token.created', 'token 2', NULL, 'admin, Ada', NULL, '[]', NULL, NULL, NULL, NULL, '\x98690bc0467b3df1b13b2a693f16ac57449c5d31d436b671a465cf1fe5fded34'),
	('00000000-0000-0000-0000-000000000000', 3, '2026-11-23 21:17:31.117089+00', 'Ada', 'policy.written', 'policy of default', 'policy 1', 'policy 2', NULL, '[{"after": 98.0, "field": "price_per_hour", "before": null}]', 'person', 2, NULL, 'token', '\x4afd14141df7c468ceb13f33dca54bf48a2063d7c1ecf767efb653f5500888ff'),
	('00000000-0000-0000-0000-000000000000', 4, '2026-11-23 21:17:31.143314+00', 'Ada', 'channel.created', 'channel team of default', NULL, NULL, NULL, '[{"after": 120.0, "field": "cooldown_s", "before": null}, {"after": true, "field": "enabled", "before": null}, {"after": "webhook", "field": "kind", "before": null}, {"after": ["divergent", "lingering", "outlier_batch", "recoverable"], "field": "kinds", "before": null}, {"after": 0, "field": "level", "before": null}, {"after": false, "field": "links", "before": null}, {"after": [], "field": "runs", "before": null}, {"after": "…", "field": "target.secret", "before": null}, {"after": "https://team.example/…", "field": "target.url", "before": null}, {"after": ["applied", "approved", "approved_once", "back", "closed", "ended", "escalated", "expired", "failed", "opened", "proposed", "recurred", "refused", "rejected", "renamed", "revised", "silent", "unknown", "withdrawn"], "field": "topics", "before": null}]', 'person', 2, NULL, 'token', '\x0600ebc2ffdb466562d2d09488f0ad156e6aa91dab6039f35fccdd7b21c30aa1'),
	('00000000-0000-0000-0000-000000000000', 5, '2026-11-23 21:17:31.160865+00', 'Ada', 'silence.created', 'silence 1 of default/*#*', NULL, 'in 0 s, for 3600 s', 'moving', '[]', 'person', 2, NULL, 'token', '\xb15acf0ef0d4b886ecda23416243baa6b67dfa96a97255e65557f9cebfe4948d'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '2026-11-23 21:17:31.178792+00', 'server', 'attempt.started', 'gpt', NULL, 'attempt 1', 'its first message came', '[]', 'server', NULL, NULL, NULL, '\x322834d67d79732ffc1aeb8566a18b039821eb09e070a3867da7839b76654cc8'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 2, '2026-11-23 21:17:31.239532+00', 'server', 'open', 'gpt#1', NULL, 'recoverable', 'loss is 106.9 deviations above trend; most such spikes heal', '[]', 'server', NULL, NULL, NULL, '\xb331a8d06d318d6c514f968e1e10ccc846438cf149cce3a7ab153d1c4fb558fa'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 3, '2026-11-23 21:17:31.275632+00', 'policy 2', 'propose', 'gpt#1.1', NULL, 'proposed', 'watch: Expected to heal by itself. Loss is 3 above trend at step 127, too early to say more. Look again at step 330.', '[]', 'policy', NULL, NULL, NULL, '\x794eaa4214c7ffd037e52720bd1bec3d352a11e70f2dbadf45c007660ca22d2d'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 4, '2026-11-23 21:17:31.279791+00', 'policy 2', 'approve', 'gpt#1.1', 'proposed', 'approved', 'automatic approval 1 of 1,000 in 24 hours by policy 2', '[]', 'policy', NULL, NULL, NULL, '\x2aa5a4ed2b6aab9a67c982f55535a4c958d6721b1173b135aaf990ac2dda363d'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 5, '2026-11-23 21:17:31.283901+00', 'server', 'deliver', 'gpt#1.1', 'approved', 'delivered', 'to attempt 1', '[]', 'server', NULL, NULL, NULL, '\xb0a9fb04b56be5276d89f332698e08ef66d318f8d64f99b4a468fad04b9643ad'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 6, '2026-11-23 21:17:31.373459+00', 'server', 'revise', 'gpt#1', 'recoverable', 'lingering', 'loss is 3 above trend at step 157 and has stopped falling', '[]', 'server', NULL, NULL, NULL, '\xff80410e32bbe960d848e24b358e0d8d6ce5d7b06849f34704bddff8ffa547d7'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 7, '2026-11-23 21:17:31.393518+00', 'policy 2', 'propose', 'gpt#1.2', NULL, 'proposed', 'rollback: Lingering (69%). Loss is 3 above trend at step 160 and has stopped falling.

The cause is not known: nothing that was measured tells it.

Go back to step-100 (disk, step 100, 21 steps before the onset), the newest from before it, and skip batches 119 to 123 (5) although the data is only 22% likely. It may come again.', '[]', 'policy', NULL, NULL, NULL, '\xf522eeeac980d578394b8adb95ce131ecf053086030ed8c3e7f5a00e2f985512'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 8, '2026-11-23 21:17:31.435886+00', 'Ada', 'policy.written', 'policy of gpt', 'policy 2', 'policy 1 of the run', NULL, '[{"after": 3.0, "field": "price_per_hour", "before": 98.0}]', 'person', 2, NULL, 'token', '\x6f1af5b385f1710cd41d0812cda7bdb44fb9bd1f157e6604665cbf9f683c20ef'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 9, '2026-11-23 21:17:31.484472+00', 'Ada', 'approve', 'gpt#1.2', 'proposed', 'approved', 'approved revision 1 as shown (by the API from 127.0.0.1)', '[]', 'person', 2, NULL, 'token', '\x61d0cb98dd2a0ccb01fe95e0bd5e5ab869f3328e7e3476c9dc37b9f72c13b37c');


INSERT INTO public.channels VALUES
	('default', 'team', 'webhook', '{"url": "https://team.example/hook", "secret": "of more than sixteen signs"}', '{"runs": [], "kinds": ["divergent", "lingering", "outlier_batch", "recoverable"], "level": 0, "links": false, "person": null, "topics": ["applied", "approved", "approved_once", "back", "closed", "ended", "escalated", "expired", "failed", "opened", "proposed", "recurred", "refused", "rejected", "renamed", "revised", "silent", "unknown", "withdrawn"], "enabled": true, "cooldown_s": 120.0}', '2026-11-23 21:17:31.142137+00', 'Ada');


INSERT INTO public.command_revisions VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 1, '2026-11-23 21:17:31.212579+00', 'watch', '{"type": "Watch", "steps": 200}', 'Expected to heal by itself. Loss is 3 above trend at step 127, too early to say more. Look again at step 330.', 2, 'project'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 2, 1, '2026-11-23 21:17:31.364299+00', 'rollback', '{"skip": {"end": 124, "type": "BatchRange", "first": 119}, "step": 100, "type": "Rollback", "target": "step-100", "lr_steps": null, "lr_factor": null}', 'Lingering (69%). Loss is 3 above trend at step 160 and has stopped falling.

The cause is not known: nothing that was measured tells it.

Go back to step-100 (disk, step 100, 21 steps before the onset), the newest from before it, and skip batches 119 to 123 (5) although the data is only 22% likely. It may come again.', 2, 'project');


INSERT INTO public.commands VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 'watch', '{"type": "Watch", "steps": 200}', 'delivered', 1, 'Expected to heal by itself. Loss is 3 above trend at step 127, too early to say more. Look again at step 330.', 2, 'project', 1, NULL, '2026-11-24 01:17:31.212579+00', 330, '2026-11-23 21:17:31.212579+00', '2026-11-23 21:17:31.212579+00', 'policy 2', 130, true, 1, NULL, NULL, NULL, NULL, NULL, 'automatic approval 1 of 1,000 in 24 hours by policy 2', '2026-11-23 21:17:31.212579+00', NULL, NULL, NULL, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 2, 'rollback', '{"skip": {"end": 124, "type": "BatchRange", "first": 119}, "step": 100, "type": "Rollback", "target": "step-100", "lr_steps": null, "lr_factor": null}', 'approved', 1, 'Lingering (69%). Loss is 3 above trend at step 160 and has stopped falling.

The cause is not known: nothing that was measured tells it.

Go back to step-100 (disk, step 100, 21 steps before the onset), the newest from before it, and skip batches 119 to 123 (5) although the data is only 22% likely. It may come again.', 2, 'project', 1, NULL, '2026-11-24 01:17:31.364299+00', 20160, '2026-11-23 21:17:31.364299+00', '2026-11-23 21:17:31.469406+00', 'Ada', 160, false, 1, NULL, NULL, NULL, NULL, NULL, 'approved revision 1 as shown', NULL, NULL, NULL, NULL, NULL, NULL);


INSERT INTO public.detector_snapshots VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 0, '\x7370696b6567756172642d6d6f6e69746f722031330a78016d51ed6ac420107c97fc5e827a49087d15119164b91e498cf5a3b41cf7ee5df301362db8ba99d91977a3945cf4c03be81ae8e1264034c06ac60474358386426c7b4b594f415c0b9c924c8be3e45bdd5ed032e08cc18d285e8b360bb8a0cf9c71100c5a6889ef76357911c21448197d42900aaa2a2f79660a18d834cf207782dacb9e3994da99a3e0404f6c7720e74dcdc8faac7fbe80d6065f36aa7a56f31a42f576caabbb37a3b6ab5ffec3b4893a44740597dc68225e1505aa8359dc8c63a131a359f4e755e38c27f872f5ec0b5d5c27b41a6df4abfb2ef0640312b1d1e52c79341df023a11d502fe6abd0e43174981ecefd6a2dd9e1ddd83b8e7a6b0723fad2d1a39b1f8309da101d0bbb83f88b1b3b054d8d5c7edc4bd1a3a81f7043c0c1', false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 100, '\x7370696b6567756172642d6d6f6e69746f722031330a7801ed59598fa34a96fe2ff90a53c1beb4d40f2c5eb08d0183175c2a95d80c060306b35fddff3e87ccbab7b2facebcb4466ab57a2ae534151f6789135f9c7322f2eb5792127092c3390617709ac2290627be100485735f089c810ff5fe9b8527013e80b138090f334cfdf826dfdffb788125709220701a20f20bc5ce022405ff9d9f489c2270166701e73ea441178c10dff0af5f9bba8df0aff00a4ee30cbcc5e13c7824ce2f90240e3a481a27199c04110e27799c04b7c559210532e0373dbb0e06290ea7781c264589380d8e90f3ac681aa7199c66719ac3691ea761aa22cec004499c810982450667589ce17086c719016744f00a67499ca57096c6597008fce67096c7590167c5d97f8ec43908133d878e037f21863cce093827e23c81f324ce53384fe33c83f32ccec374789c17705ec4058814890b142ed0b8c07cc3dfcce914b559a62f17f25695b43a19dca3655c2cade95894eca5d77a5366112d2c08f9acdea9b18804c7927efc930fd29609ce54c0d30b42dd95c7332520c2b196aeb1f3b7213fec254314cdf47a6b017f1dfd384aa297636da685b693474ede4b147a605e3d110b42222ff573033e1c2dd32d2f1a52c4c35e92cbd5c962ba17c8afed29da5891e4580b0fecd0470ce49bce14c975fafcc5bed2ae974d618860ffa77eb9ead6b6b392aca3b5f327141e180ef4bfdbb1d3e017ff8c25b7dcb26b06f04ffeffb4af87bb3df39019b0aff9f2e86dd60df89f7cc40ae62ff5ca7b5c405e68367b3751dd05a1dc0ffe6cd772acdd406443bc2021becca53cd6d92d81f806a9b023b7fbdeb1d48556cb83c782fe2998f4f90770c57d5f97397eebe6a60a240df23ffd533ee62cea10ffd1ecbb634983bc6edd5feb659dfd6ff67fe2b2ddcadc921317bff86fe5ea8350763ed8d7de7d7d0510ff4dcc86d29d82f812f6cec72e7c05f113aa1b0438d21ceb53fc58d43e050817e097929644a501799d7e9fd304fe614b337d5ebb05f827841bdd95f72ee84f9328b1db01f4a7d7b05d94a604f16d5e4fba7b0a80efa33450892d09f8cff5535c3fd9aabd5e3ad64ab3ce6a4e8ca0ff58cf9ceb0e603fdc489efc08203edbcdf29d3780cfbac76abd04fd1f6b16308ea5983027b6ea0077f20f5dbfcc1fb64aaf57c900ebeb26b26bf88e06feef1f1463c702f0539b752e970daccf4f5c6639db1d942dacef27fd6ff89b6494f9bc0ce94e90b002cc4214bbfec776643c14eb563c53abf4019fdd7ac7950ae2b5779f0afa6337cedf8d9e50dd13f3babebbd9e74750e51a8a458db8d18b297144bfa307f9c0b36327d6d952e50e0d35a276738b0c4fd59314f3530bad6e87a7d061e8de18422bd93a8a99c5fe366037d711a4266886ad831dba5e2af3d7f952af1648da1f48be6e0f19e0a8cb36dbd74a317b855af54d76d40057f9fb78b0af09f82f6c761977da5f617ea3a51da2a71b2169b754bb5bab67bc000b143e6de590009e34f7f33e9ae727f7925e628f07e0cf1bf13463db025c921cba8aa700494a8271039a42b01f6a9bea1446ebae5763b34125cfb4101f352a394d09405e746bb9963d88af24958397306485245d7ac994becdc03f4bd695cb71405daf74a44eb5d675c6b7394595ec1cffe586baeaddb807fdd24e0a53e5b94292216134967677d07f3824d7d5989f3b462942c42e750efcff13c7a4dd6a6fa1c7eaf159ff1b542081c5050e17a0ec08b820e222818b242e52b848e322838b2c2e72b8c8e32254a5b92c41d57aa36d6b155f2f2a30f39d81610dccdda6ab394bf6c0cca2c58a216b21337fdab99f981750f7037f191130b73d6073c60379dd24b773f600e67e6c5163029c5997971ab2b76399ce7bb67d020e4c0eceb9cdc3ce79beef420ff0396bce190d70bee8d1fec47180ff7d66b909b4ac21f141946ed44c5ec38555e83ea6710696c0865d7b5801f887b9bb0151fa1863611556164f13d8fec163d27b72be545937f64972e451536c91ee5c495abaa5198f7162aebc6aa7dd77584366ed826236185ab6ed813a9228a945a237474170ef61d7532ac69df4c3f58e2ecfc8d6faa84d78e1ef6fdf7002ffca7c61188a63498ae51891a0a1ee135f3856603892a32896a70816aa32f345a47952a449683528418482fd5fd07630024fb01ccd831c4592d034c0d8fca1088a02a52441f3044d7f8cff650cba02e872a02f791b2f8f85b9b2726142755b1ed5531f48963e3453e2be620992d34a5c0d8659c84745140ff651d1a5b56516ba8b4acaec1f12673e4e8b602b2b99aa338ba7686fe29db514391b13efa9354861d2a9db892dd5a3ba216ef1525008c3527b9bbb1d092666a5ca95a7a055d62aa16a124b49d941b2ac4da8f6d1da3f0db214f13b2a6556de62218f092d29cb7d6659ba5d789abe5bca4b49efccaa7e0dbbc551e1b535b7ac35e960edb4bb59f0d32b594a408b1fcc8304ac3ace1972ad9941fd813c7d34763ce4df5850b7e5f14241fe7eaf13905aa13e94ba746fd722b06cee3d8e98f9009c78afe9d1aff561ea4287e12e50bf805f50c7b01058befea8b914c87f244ce401cbcf16d3bc5811eaebbe636f79259060ff67fe56b1b9cfd834501f3fb6863ed72fa678d72503cb21f783afc111eacf47cd6c6117be4143f9bef4f3f27ffb8617ede30103ef5fc0142089c8d12ccd0319681afac49928ef2074705fbffe1ff579f83f915efed30bf3bf557a8564f183585fbffd41b2df7ec77f7b8b6b2ffc5e9475fef6b7af5f6fdee3f59f7aceb19bdde6c1acc97a122be1348a024109a6202a799993e78b8e50ec34fd16a35d55789ecffefe35545dc75e91e5ac6f874d86eea6d420e97abbd722861a1fb3d1ca3619c948e885597177541f2d829f8245e563c6c424be62b77d37fa6c269385ce1bc8b1b7e6fe9917812f72f96d3d4e47aa35e9d7b50fdd67bc6610e6d667273b42c7826459395d4fc999e978b7519c6db3d808e8c15f994e17f8e74e383d2ed38a38dd3b73288df292de334f47b7639fe531bae4a9486ea792ada1f29ae4bac364b5349e113ac866d750b4dff8e8f87053ac0eae4a379cc3d1080f16f85ff054202c0fe1431579cf0ec4d8f28a6eb2c4ea36f2c2d646eb6ef0273b4a72553cd39dba5a62f7c824fa463c606bce57d046bce846256a2f1fbbea85125fd315d9719753b36458b45ba1a15ef071ef75712d2a713c2db6de39e944a6cf6f21bfd0321435c31a7b60545b8b4cc91abbc555f13b4ae88cc8748a0b85f27e90039244af54dca90d954becb9ee8622399477ded114742c3d7e75dddccb099da745baaed779dc31c1a2379bf6b4a910d3dd5c251b4fcf09a33d23e463a685f6c108dc87b6a8cf3a6a5030647bdacd54c1c4b0f59a7cad880eed6ccdabdaec1920c2608ac5291e5a47e0746fb9ac13bb33b9746b68c346d80ac83f8662aba7c7a2168d66e56da43e72cc9ebf5f5aedb883f6c2adf9b4496fc16b876ead1c106587f9265dabcd250a62ce469b633cb50c25bf6ae1941cfae7a9f0ee10ffd3f268632b2f464b4fd01d3282f90bd1fde4f8c865d98e1fee5da4a7f7728b2225b88d2b832a1d6c7d7b58816c8f7137ac93cd59beb11c81ce94475c872887f6e7956e96aa3fb5a9d94fb7bdc9848457a12ade436f654b4d2dd01b6c64a442d999623a3c167aac961af26375115eeda880639e8689e8b218e58e0aa562659db86a444f95f46cb1684a471cc9e478a34b8eebd031aef8daf2990a41a96f7af2a1084197ec048c3af8f9d93adf3b8c3efa14c6a74c803029dc2b749ab7b5a05bbcf70042d91d1a342154b123e9a226b7995aabc646154e9796992a9b038aa65223122fee1ca3625795e3495f548ee0ea7ed0921576eab0801ea7db457339b453a6551b1374ed20cf33ed4b2c1a6137c98c131ed641f942762ee9c24a0a0a1555aed175e24d193a410f516c5d3d6e8144378e3827563a1529faebc6edc97634e950de389120f91a62f6d7abb8aada478dbc8df6dcbb36e59bcc6630068e96e11c3396c114c5e1eac58b7226c6b94bde6d93789c4f37863f71394ae5957a7bd075b3437dac5e86c1d8561dbf1831338ace4f01c151542253c106ffb19515ac0b67bcc0167ec25d4ab786738a710a74c9a89c2c15ef514e67017b2fbbc97fa89bb48faa236295523f18595dec8444bbad2969c39d4cda6936b9b92aea15cab5d5362f5bd88228d0f6d02859d767374e7ce167e481c6909f2cb291a276c924ea77bbb0141abb76e32a3a2757a5e2b728730d456e8e4a3689f149d9aacbe08c75d3564b307ab9d87040817fea9c836d3b9b3aa9fb878389e580cedb3559998878ecaf44846d7444676eea48b72cafc549b7873d5ddd1b73648af6185ca87586d2d79dd5d65d0e9911d324aec40cafe9fac7a25cb425bd8d1115de5c213576b92f2a53def701b9ef4c22a43aeb5188be810c8352d246ef8a091dc5e31e117bafed861773e7fd3edbc0f9e919b27ca396a50a0707fc4ddeaf94cd8b3e049388e466aa0279bb03968dab73ac6190a1eda750f9c52e7afa98bb3f184b7f1a1fa618fa093d76836ba3ba5a989af3f2135568d2c4605e633e7523ab258cce065b0941c097bd158f4f1f452d911ce966dc74d38518cf54b4e5ef486adb04196d93aac88db65c5a70aba9c3f2cb05baee66eb21dff1654777184874f339072e2ee1a0439284c0d302c7903c1c4be0daf20b3cf114c7093447d234dc2f425f4a720c4b513c47b2223537abf379e8cfd6969dc5059ea48559126e470163e1659e23289aa3199e9cef75e78bd9f7930d04ea7fee8c678df301177f6f56befdfed10ccf03f3e78f26e7b7b747f97acd3dcdff77c8ffb2abab7fb30ef9d75ef85fc81bc27deacbb02379474032c95ceec5ba37fbd8a3b3abdab50ca2fb33d277ce827750de99e6960ee9d614f79425cbd5709350a028e14a0d68c1114c9eea14e545772695b96bb96f9a56408adc5f199bb20415d314374dec780dad0abf268387277612da1dcee9158b1efc240ad1233f8e9ba93705ec9cd96bf61231a8d4dbc7cedf18605fab9ee79d99de7a934b3c2e61971b5342abcba4bd929000fdb9d1b9f9caef2061467b42806e0bfcf7a3cc3d98f94150c58d5c056317a62f53b07985bfb50ff02f1f976c311e5c905fa4c4e2709068b890994c77ac9e47d07fa9af49beed6b7e12e2a6e00ddb747a93bd388cb46e5630ffe54d1f79ebda082a32d59e7c1e14d49a637cd8d5683f2209d1f7940a4782e2273484bb267f59a83719b8c34bb7e73c22903798e1a37a62207f217268d0c6756b72a2ce9b51bc06fffa5c6f3aedbe113e32e44fde7cf79aefaf267ace79072ee0207bbeb5cfd06ba23f4f587f1dfdfef2f2e7230a3fc978a1977feffe51e6e9d530fcc751ed87a247fd49ae813fc414dfa3a2a9cbe7f869bc2d5e1100eff07b4efc431852e4f75754b5511144df736ff824334fe3fb2bbb3f9fbfb8d61641e21571147e7f77276aa2fab3c63a7a3eee81f7faee01dc7c52f703f8ebb85764afef90abff2170bf7fc37ffbfddb7f03b26561aa', true);


INSERT INTO public.detector_states VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 8, 1, 0, 160, '\x7370696b6567756172642d6d6f6e69746f722031330a7801ed59598fa34a96fe2ff90a53c1beb4d40f2c5eb08d0183175c2a95d80c060306b35fddff3e87ccbab7b2facebcb4466ab57a2ae534151f6789135f9c7322f2eb5792127092c3390617709ac2290627be100485735f089c810ff5fe9b8527013e80b138090f334cfdf826dfdffb788125709220701a20f20bc5ce022405ff9d9f489c2270166701e73ea441178c10dff0af5f9bba8df0aff00a4ee30cbcc5e13c7824ce2f90240e3a481a27199c04110e27799c04b7c559210532e0373dbb0e06290ea7781c264589380d8e90f3ac681aa7199c66719ac3691ea761aa22cec004499c810982450667589ce17086c719016744f00a67499ca57096c6597008fce67096c7590167c5d97f8ec43908133d878e037f21863cce093827e23c81f324ce53384fe33c83f32ccec374789c17705ec4058814890b142ed0b8c07cc3dfcce914b559a62f17f25695b43a19dca3655c2cade95894eca5d77a5366112d2c08f9acdea9b18804c7927efc930fd29609ce54c0d30b42dd95c7332520c2b196aeb1f3b7213fec254314cdf47a6b017f1dfd384aa297636da685b693474ede4b147a605e3d110b42222ff573033e1c2dd32d2f1a52c4c35e92cbd5c962ba17c8afed29da5891e4580b0fecd0470ce49bce14c975fafcc5bed2ae974d618860ffa77eb9ead6b6b392aca3b5f327141e180ef4bfdbb1d3e017ff8c25b7dcb26b06f04ffeffb4af87bb3df39019b0aff9f2e86dd60df89f7cc40ae62ff5ca7b5c405e68367b3751dd05a1dc0ffe6cd772acdd406443bc2021becca53cd6d92d81f806a9b023b7fbdeb1d48556cb83c782fe2998f4f90770c57d5f97397eebe6a60a240df23ffd533ee62cea10ffd1ecbb634983bc6edd5feb659dfd6ff67fe2b2ddcadc921317bff86fe5ea8350763ed8d7de7d7d0510ff4dcc86d29d82f812f6cec72e7c05f113aa1b0438d21ceb53fc58d43e050817e097929644a501799d7e9fd304fe614b337d5ebb05f827841bdd95f72ee84f9328b1db01f4a7d7b05d94a604f16d5e4fba7b0a80efa33450892d09f8cff5535c3fd9aabd5e3ad64ab3ce6a4e8ca0ff58cf9ceb0e603fdc489efc08203edbcdf29d3780cfbac76abd04fd1f6b16308ea5983027b6ea0077f20f5dbfcc1fb64aaf57c900ebeb26b26bf88e06feef1f1463c702f0539b752e970daccf4f5c6639db1d942dacef27fd6ff89b6494f9bc0ce94e90b002cc4214bbfec776643c14eb563c53abf4019fdd7ac7950ae2b5779f0afa6337cedf8d9e50dd13f3babebbd9e74750e51a8a458db8d18b297144bfa307f9c0b36327d6d952e50e0d35a276738b0c4fd59314f3530bad6e87a7d061e8de18422bd93a8a99c5fe366037d711a4266886ad831dba5e2af3d7f952af1648da1f48be6e0f19e0a8cb36dbd74a317b855af54d76d40057f9fb78b0af09f82f6c761977da5f617ea3a51da2a71b2169b754bb5bab67bc000b143e6de590009e34f7f33e9ae727f7925e628f07e0cf1bf13463db025c921cba8aa700494a8271039a42b01f6a9bea1446ebae5763b34125cfb4101f352a394d09405e746bb9963d88af24958397306485245d7ac994becdc03f4bd695cb71405daf74a44eb5d675c6b7394595ec1cffe586baeaddb807fdd24e0a53e5b94292216134967677d07f3824d7d5989f3b462942c42e750efcff13c7a4dd6a6fa1c7eaf159ff1b542081c5050e17a0ec08b820e222818b242e52b848e322838b2c2e72b8c8e32254a5b92c41d57aa36d6b155f2f2a30f39d81610dccdda6ab394bf6c0cca2c58a216b21337fdab99f981750f7037f191130b73d6073c60379dd24b773f600e67e6c5163029c5997971ab2b76399ce7bb67d020e4c0eceb9cdc3ce79beef420ff0396bce190d70bee8d1fec47180ff7d66b909b4ac21f141946ed44c5ec38555e83ea6710696c0865d7b5801f887b9bb0151fa1863611556164f13d8fec163d27b72be545937f64972e451536c91ee5c495abaa5198f7162aebc6aa7dd77584366ed826236185ab6ed813a9228a945a237474170ef61d7532ac69df4c3f58e2ecfc8d6faa84d78e1ef6fdf7002ffca7c61188a63498ae51891a0a1ee135f3856603892a32896a70816aa32f345a47952a449683528418482fd5fd07630024fb01ccd831c4592d034c0d8fca1088a02a52441f3044d7f8cff650cba02e872a02f791b2f8f85b9b2726142755b1ed5531f48963e3453e2be620992d34a5c0d8659c84745140ff651d1a5b56516ba8b4acaec1f12673e4e8b602b2b99aa338ba7686fe29db514391b13efa9354861d2a9db892dd5a3ba216ef1525008c3527b9bbb1d092666a5ca95a7a055d62aa16a124b49d941b2ac4da8f6d1da3f0db214f13b2a6556de62218f092d29cb7d6659ba5d789abe5bca4b49efccaa7e0dbbc551e1b535b7ac35e960edb4bb59f0d32b594a408b1fcc8304ac3ace1972ad9941fd813c7d34763ce4df5850b7e5f14241fe7eaf13905aa13e94ba746fd722b06cee3d8e98f9009c78afe9d1aff561ea4287e12e50bf805f50c7b01058befea8b914c87f244ce401cbcf16d3bc5811eaebbe636f79259060ff67fe56b1b9cfd834501f3fb6863ed72fa678d72503cb21f783afc111eacf47cd6c6117be4143f9bef4f3f27ffb8617ede30103ef5fc0142089c8d12ccd0319681afac49928ef2074705fbffe1ff579f83f915efed30bf3bf557a8564f183585fbffd41b2df7ec77f7b8b6b2ffc5e9475fef6b7af5f6fdee3f59f7aceb19bdde6c1acc97a122be1348a024109a6202a799993e78b8e50ec34fd16a35d55789ecffefe35545dc75e91e5ac6f874d86eea6d420e97abbd722861a1fb3d1ca3619c948e885597177541f2d829f8245e563c6c424be62b77d37fa6c269385ce1bc8b1b7e6fe9917812f72f96d3d4e47aa35e9d7b50fdd67bc6610e6d667273b42c7826459395d4fc999e978b7519c6db3d808e8c15f994e17f8e74e383d2ed38a38dd3b73288df292de334f47b7639fe531bae4a9486ea792ada1f29ae4bac364b5349e113ac866d750b4dff8e8f87053ac0eae4a379cc3d1080f16f85ff054202c0fe1431579cf0ec4d8f28a6eb2c4ea36f2c2d646eb6ef0273b4a72553cd39dba5a62f7c824fa463c606bce57d046bce846256a2f1fbbea85125fd315d9719753b36458b45ba1a15ef071ef75712d2a713c2db6de39e944a6cf6f21bfd0321435c31a7b60545b8b4cc91abbc555f13b4ae88cc8748a0b85f27e90039244af54dca90d954becb9ee8622399477ded114742c3d7e75dddccb099da745baaed779dc31c1a2379bf6b4a910d3dd5c251b4fcf09a33d23e463a685f6c108dc87b6a8cf3a6a5030647bdacd54c1c4b0f59a7cad880eed6ccdabdaec1920c2608ac5291e5a47e0746fb9ac13bb33b9746b68c346d80ac83f8662aba7c7a2168d66e56da43e72cc9ebf5f5aedb883f6c2adf9b4496fc16b876ead1c106587f9265dabcd250a62ce469b633cb50c25bf6ae1941cfae7a9f0ee10ffd3f268632b2f464b4fd01d3282f90bd1fde4f8c865d98e1fee5da4a7f7728b2225b88d2b832a1d6c7d7b58816c8f7137ac93cd59beb11c81ce94475c872887f6e7956e96aa3fb5a9d94fb7bdc9848457a12ade436f654b4d2dd01b6c64a442d999623a3c167aac961af26375115eeda880639e8689e8b218e58e0aa562659db86a444f95f46cb1684a471cc9e478a34b8eebd031aef8daf2990a41a96f7af2a1084197ec048c3af8f9d93adf3b8c3efa14c6a74c803029dc2b749ab7b5a05bbcf70042d91d1a342154b123e9a226b7995aabc646154e9796992a9b038aa65223122fee1ca3625795e3495f548ee0ea7ed0921576eab0801ea7db457339b453a6551b1374ed20cf33ed4b2c1a6137c98c131ed641f942762ee9c24a0a0a1555aed175e24d193a410f516c5d3d6e8144378e3827563a1529faebc6edc97634e950de389120f91a62f6d7abb8aada478dbc8df6dcbb36e59bcc6630068e96e11c3396c114c5e1eac58b7226c6b94bde6d93789c4f37863f71394ae5957a7bd075b3437dac5e86c1d8561dbf1831338ace4f01c151542253c106ffb19515ac0b67bcc0167ec25d4ab786738a710a74c9a89c2c15ef514e67017b2fbbc97fa89bb48faa236295523f18595dec8444bbad2969c39d4cda6936b9b92aea15cab5d5362f5bd88228d0f6d02859d767374e7ce167e481c6909f2cb291a276c924ea77bbb0141abb76e32a3a2757a5e2b728730d456e8e4a3689f149d9aacbe08c75d3564b307ab9d87040817fea9c836d3b9b3aa9fb878389e580cedb3559998878ecaf44846d7444676eea48b72cafc549b7873d5ddd1b73648af6185ca87586d2d79dd5d65d0e9911d324aec40cafe9fac7a25cb425bd8d1115de5c213576b92f2a53def701b9ef4c22a43aeb5188be810c8352d246ef8a091dc5e31e117bafed861773e7fd3edbc0f9e919b27ca396a50a0707fc4ddeaf94cd8b3e049388e466aa0279bb03968dab73ac6190a1eda750f9c52e7afa98bb3f184b7f1a1fa618fa093d76836ba3ba5a989af3f2135568d2c4605e633e7523ab258cce065b0941c097bd158f4f1f452d911ce966dc74d38518cf54b4e5ef486adb04196d93aac88db65c5a70aba9c3f2cb05baee66eb21dff1654777184874f339072e2ee1a0439284c0d302c7903c1c4be0daf20b3cf114c7093447d234dc2f425f4a720c4b513c47b2223537abf379e8cfd6969dc5059ea48559126e470163e1659e23289aa3199e9cef75e78bd9f7930d04ea7fee8c678df301177f6f56befdfed10ccf03f3e78f26e7b7b747f97acd3dcdff77c8ffb2abab7fb30ef9d75ef85fc81bc27deacbb02379474032c95ceec5ba37fbd8a3b3abdab50ca2fb33d277ce827750de99e6960ee9d614f79425cbd5709350a028e14a0d68c1114c9eea14e545772695b96bb96f9a56408adc5f199bb20415d314374dec780dad0abf268387277612da1dcee9158b1efc240ad1233f8e9ba93705ec9cd96bf61231a8d4dbc7cedf18605fab9ee79d99de7a934b3c2e61971b5342abcba4bd929000fdb9d1b9f9caef2061467b42806e0bfcf7a3cc3d98f94150c58d5c056317a62f53b07985bfb50ff02f1f976c311e5c905fa4c4e2709068b890994c77ac9e47d07fa9af49beed6b7e12e2a6e00ddb747a93bd388cb46e5630ffe54d1f79ebda082a32d59e7c1e14d49a637cd8d5683f2209d1f7940a4782e2273484bb267f59a83719b8c34bb7e73c22903798e1a37a62207f217268d0c6756b72a2ce9b51bc06fffa5c6f3aedbe113e32e44fde7cf79aefaf267ace79072ee0207bbeb5cfd06ba23f4f587f1dfdfef2f2e7230a3fc978a1977feffe51e6e9d530fcc751ed87a247fd49ae813fc414dfa3a2a9cbe7f869bc2d5e1100eff07b4efc431852e4f75754b5511144df736ff824334fe3fb2bbb3f9fbfb8d61641e21571147e7f77276aa2fab3c63a7a3eee81f7faee01dc7c52f703f8ebb85764afef90abff2170bf7fc37ffbfddb7f03b26561aa', 100, 1, 0);


INSERT INTO public.incident_revisions VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 122, '2026-11-23 21:17:31.212579+00', 'recoverable', 0.55, 'loss is 106.9 deviations above trend; most such spikes heal', 121, 7.921, 2.9708499758407045, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 2, 123, '2026-11-23 21:17:31.212579+00', 'recoverable', 0.55, 'loss is 3 above trend at step 123, 2 steps after its last rise', 121, 7.921, 2.9881497713092013, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 3, 127, '2026-11-23 21:17:31.212579+00', 'recoverable', 0.6726778205950985, 'loss is 3 above trend at step 127, too early to say more', 121, 7.921, 2.988742176556473, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 4, 131, '2026-11-23 21:17:31.306919+00', 'recoverable', 0.6108250261934052, 'loss is 3 above trend at step 131, too early to say more', 121, 7.921, 2.9734645586462385, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 5, 147, '2026-11-23 21:17:31.336242+00', 'recoverable', 0.5601928215523884, 'loss is 3 above trend at step 147, too early to say more', 121, 7.921, 2.973168280537468, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 6, 151, '2026-11-23 21:17:31.364299+00', 'recoverable', 0.5, 'loss is 3 above trend at step 151 and has stopped falling', 121, 7.921, 2.9781975301759784, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 7, 157, '2026-11-23 21:17:31.364299+00', 'lingering', 0.6321205588285577, 'loss is 3 above trend at step 157 and has stopped falling', 121, 7.921, 2.965687928577995, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 8, 160, '2026-11-23 21:17:31.364299+00', 'lingering', 0.6907518070666562, 'loss is 3 above trend at step 160 and has stopped falling', 121, 7.921, 2.95764965896315, false);


INSERT INTO public.incident_samples VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 1, 5.012, NULL, 1.0644092376577732, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 0, 1),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 2, 5.022, NULL, 1.116908336808795, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 1, 2),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 3, 4.999, NULL, 1.0047354019143653, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 2, 3),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 4, 4.997, NULL, 1.0020427972396553, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 3, 4),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 5, 4.984, NULL, 0.9410579124384664, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 4, 5),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 6, 5, NULL, 1.0249837796567904, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 5, 6),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 7, 4.992, NULL, 0.98720598557762, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 6, 7),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 8, 4.998, NULL, 1.0186707584811994, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 7, 8),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 9, 4.984, NULL, 0.9529621557985756, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 8, 9),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 10, 4.983, NULL, 0.9523141495968331, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 9, 10),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 11, 4.98, NULL, 0.9387963662143017, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 10, 11),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 12, 4.977, NULL, 0.9277406155193382, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 11, 12),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 13, 4.989, NULL, 0.9956990506890235, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 12, 13),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 14, 5.002, NULL, 1.0609739968060121, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 13, 14),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 15, 4.99, NULL, 1.0074742386407902, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 14, 15),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 16, 4.981, NULL, 0.9631057189256278, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 15, 16),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 17, 4.969, NULL, 0.910213964463092, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 16, 17),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 18, 4.993, NULL, 1.0308019107684494, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 17, 18),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 19, 4.978, NULL, 0.9612518579665762, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 18, 19),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 20, 4.998, NULL, 1.0631375761446893, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 19, 20),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 21, 4.992, NULL, 1.0389622584472311, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 20, 21),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 22, 4.989, NULL, 1.026557547125948, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 21, 22),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 23, 5.004, NULL, 1.1084993360369033, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 22, 23),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 24, 4.978, NULL, 0.9775697364810418, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 23, 24),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 25, 4.965, NULL, 0.9181638076847263, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 24, 25),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 26, 4.98, NULL, 0.9994271632656687, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 25, 26),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 27, 4.97, NULL, 0.9537167013333838, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 26, 27),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 28, 4.983, NULL, 1.020086352012616, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 27, 28),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 29, 4.969, NULL, 0.9560247252948693, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 28, 29),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 30, 4.969, NULL, 0.9599259267473323, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 29, 30),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 31, 4.982, NULL, 1.0243438480443043, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 30, 31),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 32, 4.982, NULL, 1.030642340144039, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 31, 32),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 33, 4.962, NULL, 0.9360715604831334, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 32, 33),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 34, 4.961, NULL, 0.9347133938588555, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 33, 34),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 35, 4.958, NULL, 0.9205490000863794, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 34, 35),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 36, 4.959, NULL, 0.932156197589171, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 35, 36),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 37, 4.97, NULL, 0.990918590334013, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 36, 37),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 38, 4.965, NULL, 0.9661238732468802, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 37, 38),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 39, 4.973, NULL, 1.0123136690101626, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 38, 39),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 40, 4.95, NULL, 0.9009141397374485, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 39, 40),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 41, 4.964, NULL, 0.9734422622780059, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 40, 41),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 42, 4.967, NULL, 0.9927954835211036, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 41, 42),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 43, 4.983, NULL, 1.0749304225520435, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 42, 43),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 44, 4.957, NULL, 0.9475540833350268, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 43, 44),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 45, 4.965, NULL, 0.992072732114789, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 44, 45),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 46, 4.973, NULL, 1.0385872848830517, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 45, 46),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 47, 4.958, NULL, 0.9683339070000714, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 46, 47),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 48, 4.959, NULL, 0.9746150432823917, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 47, 48),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 49, 4.973, NULL, 1.0471382017458364, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 48, 49),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 50, 4.955, NULL, 0.9606675185116827, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 49, 50),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 51, 4.962, NULL, 1.0024047235366074, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 50, 51),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 52, 4.964, NULL, 1.0165883601273706, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 51, 52),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 53, 4.945, NULL, 0.9221173847135873, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 52, 53),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 54, 4.964, NULL, 1.023287502406226, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 53, 54),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 55, 4.979, NULL, 1.1034141876206036, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 54, 55),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 56, 4.971, NULL, 1.062585040361308, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 55, 56),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 57, 4.97, NULL, 1.0643668566536273, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 56, 57),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 58, 4.951, NULL, 0.9703401665547408, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 57, 58),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 59, 4.96, NULL, 1.018755152350536, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 58, 59),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 60, 4.95, NULL, 0.9766670505577364, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 59, 60),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 61, 4.942, NULL, 0.9362616935726128, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 60, 61),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 62, 4.959, NULL, 1.0277195847306329, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 61, 62),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 63, 4.945, NULL, 0.9607254394657625, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 62, 63),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 64, 4.938, NULL, 0.9302617027353185, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 63, 64),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 65, 4.944, NULL, 0.9645832981022096, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 64, 65),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 66, 4.96, NULL, 1.0481968531452608, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 65, 66),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 67, 4.965, NULL, 1.075980278155864, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 66, 67),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 68, 4.948, NULL, 0.9937795445725629, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 67, 68),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 69, 4.946, NULL, 0.9909883069056039, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 68, 69),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 70, 4.955, NULL, 1.0352000038999467, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 69, 70),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 71, 4.941, NULL, 0.9689077763471667, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 70, 71),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 72, 4.958, NULL, 1.060145176332735, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 71, 72),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 73, 4.943, NULL, 0.9890019439850782, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 72, 73),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 74, 4.952, NULL, 1.0382772250083283, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 73, 74),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 75, 4.934, NULL, 0.9489713340414826, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 74, 75),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 76, 4.926, NULL, 0.9158564464145122, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 75, 76),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 77, 4.945, NULL, 1.0134873821759118, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 76, 77),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 78, 4.943, NULL, 1.0088549811968424, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 77, 78),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 79, 4.946, NULL, 1.0283429130283877, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 78, 79),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 80, 4.938, NULL, 0.9915891419385232, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 79, 80),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 81, 4.928, NULL, 0.94509160858835, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 80, 81),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 82, 4.946, NULL, 1.0356381092120401, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 81, 82),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 83, 4.918, NULL, 0.9014574040704214, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 82, 83),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 84, 4.934, NULL, 0.9871743750680868, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 83, 84),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 85, 4.941, NULL, 1.02151930135924, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 84, 85),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 86, 4.936, NULL, 1.003238742262483, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 85, 86),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 87, 4.939, NULL, 1.0196925788740812, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 86, 87),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 88, 4.929, NULL, 0.9740813232617247, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 87, 88),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 89, 4.945, NULL, 1.0596397463044767, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 88, 89),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 90, 4.934, NULL, 1.0063295434349346, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 89, 90),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 91, 4.937, NULL, 1.0266179338061125, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 90, 91),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 92, 4.92, NULL, 0.9432699252870352, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 91, 92),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 93, 4.94, NULL, 1.0497567623106736, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 92, 93),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 94, 4.925, NULL, 0.975363477992939, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 93, 94),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 95, 4.93, NULL, 1.0038312924364698, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 94, 95),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 96, 4.913, NULL, 0.9249983781093791, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 95, 96),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 97, 4.933, NULL, 1.0309244053944109, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 96, 97),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 98, 4.915, NULL, 0.9415454536634468, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 97, 98),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 99, 4.92, NULL, 0.9724888651129698, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 98, 99),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 100, 4.932, NULL, 1.0335776663471141, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 99, 100);
INSERT INTO public.incident_samples VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 101, 4.919, NULL, 0.9712766413469887, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 100, 101),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 102, 4.932, NULL, 1.0413001086437788, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 101, 102),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 103, 4.934, NULL, 1.0547200627417963, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 102, 103),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 104, 4.942, NULL, 1.0981667877015748, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 103, 104),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 105, 4.928, NULL, 1.0333971874399437, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 104, 105),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 106, 4.915, NULL, 0.9736993393034203, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 105, 106),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 107, 4.92, NULL, 1.0014582560978273, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 106, 107),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 108, 4.932, NULL, 1.062722333844657, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 107, 108),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 109, 4.916, NULL, 0.989753178017216, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 108, 109),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 110, 4.927, NULL, 1.045384812184753, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 109, 110),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 111, 4.92, NULL, 1.016120106509122, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 110, 111),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 112, 4.901, NULL, 0.926456894957647, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 111, 112),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 113, 4.935, NULL, 1.0987027242184286, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 112, 113),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 114, 4.915, NULL, 1.001291890336501, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 113, 114),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 115, 4.919, NULL, 1.0262805768865, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 114, 115),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 116, 4.919, NULL, 1.0293330236540061, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 115, 116),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 117, 4.913, NULL, 1.0018623025823092, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 116, 117),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 118, 4.91, NULL, 0.9922952077892591, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 117, 118),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 119, 4.916, NULL, 1.0281681003514207, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 118, 119),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 120, 4.904, NULL, 0.9678117038228611, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 119, 120),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 121, 7.921, NULL, 1.0564917704474113, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 120, 121),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 122, 7.895, NULL, 0.9327237940112996, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 121, 122),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 123, 7.912, NULL, 1.0202114216612332, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 122, 123),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 124, 7.919, NULL, 1.0611291083874594, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 123, 124),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 125, 7.912, NULL, 1.028708532089331, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 124, 125),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 126, 7.894, NULL, 0.9410270829649741, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 125, 126),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 127, 7.918, NULL, 1.0672005272670781, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 126, 127),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 128, 7.911, NULL, 1.0341673559749442, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 127, 128),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 129, 7.888, NULL, 0.9251867520510187, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 128, 129),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 130, 7.895, NULL, 0.9603536688823795, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 129, 130),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 131, 7.895, NULL, 0.9657470936708419, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 130, 131),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 132, 7.892, NULL, 0.9563779678679662, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 131, 132),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 133, 7.889, NULL, 0.9426643548723717, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 132, 133),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 134, 7.893, NULL, 0.9668785718674451, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 133, 134),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 135, 7.892, NULL, 0.9660622234304023, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 134, 135),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 136, 7.887, NULL, 0.9455275224666237, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 135, 136),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 137, 7.906, NULL, 1.0461514195825314, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 136, 137),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 138, 7.9, NULL, 1.0190275393401742, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 137, 138),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 139, 7.911, NULL, 1.077048520138472, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 138, 139),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 140, 7.896, NULL, 1.0030216414821713, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 139, 140),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 141, 7.892, NULL, 0.9876933029716066, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 140, 141),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 142, 7.88, NULL, 0.934439731559201, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 141, 142),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 143, 7.909, NULL, 1.081221399959511, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 142, 143),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 144, 7.882, NULL, 0.9478429740696179, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 143, 144),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 145, 7.904, NULL, 1.062190739236772, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 144, 145),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 146, 7.9, NULL, 1.046751554361132, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 145, 146),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 147, 7.885, NULL, 0.9776002236320299, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 146, 147),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 148, 7.877, NULL, 0.9415837092584309, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 147, 148),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 149, 7.895, NULL, 1.0343398906427959, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 148, 149),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 150, 7.897, NULL, 1.0475043570414564, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 149, 150),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 151, 7.882, NULL, 0.9739375672258678, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 150, 151),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 152, 7.896, NULL, 1.0493431580866959, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 151, 152),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 153, 7.889, NULL, 1.0198174789532632, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 152, 153),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 154, 7.891, NULL, 1.0327862893711015, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 153, 154),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 155, 7.873, NULL, 0.9456113154245169, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 154, 155),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 156, 7.862, NULL, 0.8954816366136824, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 155, 156),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 157, 7.877, NULL, 0.9727431969082215, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 156, 157),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 158, 7.868, NULL, 0.9340245769245955, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 157, 158),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 159, 7.869, NULL, 0.9411042188596852, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 158, 159),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 0, 160, 7.887, NULL, 1.0329149176183912, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, NULL, 159, 160);


INSERT INTO public.incidents VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 'open', 1, 0, 121, 120, 121, 122, 160, 'lingering', 0.6907518070666562, 'loss is 3 above trend at step 160 and has stopped falling', 121, 7.921, 2.95764965896315, false, 'loss', 4.924756997393403, 120, 4.924756997393403, -0.00030598791791164683, 0.02426547804445132, 3, false, 160, 0, NULL, NULL, NULL, NULL, NULL, NULL, '{loss,grad_norm}', '{123.44480307656355,1.2998522170436062}', '{loss}', '{121}', '{unknown,bad_batch,lr_too_high,stale_second_moment,weight_corruption,rare_tokens,layer_fault,non_finite_source,loss_scale_overflow,stalled_weights}', '{0.5216352672172666,0.19189889059920404,0.11639256071325768,0.07059565663505493,0.04281843019170641,0.02597069071203503,0.02597069071203503,0.0021318041113590966,0.001293004554040737,0.001293004554040737}', '{"nothing that was measured tells the causes apart","the loss rose by 123 standard deviations within step 121","","","","","","","",""}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-23 21:17:31.212579+00', NULL, 8, 2, NULL, NULL, 0);


INSERT INTO public.new_runs VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'default', NULL, '2026-11-23 21:17:31.165756+00');


INSERT INTO public.notices OVERRIDING SYSTEM VALUE VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '2026-11-23 21:17:31.24113+00', 'opened', 1, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 2, '2026-11-23 21:17:31.276276+00', 'proposed', 1, 1),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 3, '2026-11-23 21:17:31.280384+00', 'approved', 1, 1),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 4, '2026-11-23 21:17:31.374061+00', 'renamed', 1, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 5, '2026-11-23 21:17:31.394141+00', 'proposed', 1, 2),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 6, '2026-11-23 21:17:31.485547+00', 'approved', 1, 2);


INSERT INTO public.policies VALUES
	('default', 2, '{"rules": [], "halted": false, "version": 2, "approval": {"stop": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "watch": {"mode": "auto", "budget": 1000, "approvals": 1, "cooldown_s": 0.0}, "rollback": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "scale_lr": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "skip_batches": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "checkpoint_now": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}}, "currency": "USD", "lr_steps": 500, "remedies": {}, "detection": {}, "few_steps": 20, "skip_most": 500, "calm_steps": 5, "escalation": [], "lr_factors": [0.5, 0.3333333333333333], "near_steps": 50, "skip_share": 0.05, "watch_steps": 200, "expires_in_s": 14400.0, "margin_steps": 2, "few_skip_most": 20, "act_confidence": 0.6, "few_skip_least": 5, "most_rollbacks": 3, "patience_steps": 20, "price_per_hour": 98.0, "ask_again_steps": 200, "sure_confidence": 0.85, "expires_after_steps": 20000, "health_horizon_steps": 100, "optimizer_back_share": 0.25, "optimizer_back_steps": 1000, "lingering_patience_share": 0.1, "lingering_patience_steps": 150}', '2026-11-23 21:17:31.113178+00', 'Ada');


INSERT INTO public.projects VALUES
	('default', '2026-11-23 21:17:31.165756+00');


INSERT INTO public.run_policies VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '{"rules": [], "halted": false, "version": 1, "approval": {"stop": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "watch": {"mode": "auto", "budget": 1000, "approvals": 1, "cooldown_s": 0.0}, "rollback": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "scale_lr": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "skip_batches": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "checkpoint_now": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}}, "currency": "USD", "lr_steps": 500, "remedies": {}, "detection": {}, "few_steps": 20, "skip_most": 500, "calm_steps": 5, "escalation": [], "lr_factors": [0.5, 0.3333333333333333], "near_steps": 50, "skip_share": 0.05, "watch_steps": 200, "expires_in_s": 14400.0, "margin_steps": 2, "few_skip_most": 20, "act_confidence": 0.6, "few_skip_least": 5, "most_rollbacks": 3, "patience_steps": 20, "price_per_hour": 3.0, "ask_again_steps": 200, "sure_confidence": 0.85, "expires_after_steps": 20000, "health_horizon_steps": 100, "optimizer_back_share": 0.25, "optimizer_back_steps": 1000, "lingering_patience_share": 0.1, "lingering_patience_steps": 150}', '2026-11-23 21:17:31.43252+00', 'Ada');


INSERT INTO public.runs VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'default', 'gpt', '2026-11-23 21:17:31.165756+00', 'live', 1, 1, 1, '2026-11-23 21:17:31.364299+00', 1, 0, 160, 160, 7.887, 1.0329149176183912, 122.51222567670982, NULL, NULL, NULL, NULL);


INSERT INTO public.segments VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 'start', NULL, NULL, NULL, 0, NULL, '2026-11-23 21:17:31.165756+00', 1, 160, '2026-11-23', NULL);


INSERT INTO public.silences VALUES
	('default', 1, NULL, NULL, '2026-11-23 21:17:31.159691+00', '2026-11-23 22:17:31.159691+00', 'moving', '2026-11-23 21:17:31.159692+00', 'Ada', NULL);


INSERT INTO public.targets VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'step-100', 1, 0, 100, 100, 'disk', '2026-11-23 21:17:31.203296+00', NULL);


INSERT INTO public.tokens OVERRIDING SYSTEM VALUE VALUES
	(1, '\xf08428bd9a77f673a2f274c056959899a968dcc13223a5e3e37b4ee3121bb719', 'agent', NULL, NULL, NULL, 'Ada', NULL, NULL, NULL, NULL, NULL, '2026-11-23 21:17:30.99455+00', 'me', '2027-11-23 21:17:30.99455+00', NULL),
	(2, '\xf21a7411fce6f8520b1e97af311383237859fba34f69cb964109ae35d4b0189d', 'admin', NULL, NULL, NULL, 'Ada', NULL, NULL, NULL, NULL, NULL, '2026-11-23 21:17:31.005311+00', 'me', NULL, NULL);


INSERT INTO public.weeks VALUES
	('2026-11-23', NULL, NULL, NULL);


SELECT pg_catalog.setval('public.deliveries_id_seq', 1, false);


SELECT pg_catalog.setval('public.notices_id_seq', 6, true);


SELECT pg_catalog.setval('public.tokens_id_seq', 2, true);


ALTER TABLE ONLY public.chunks
    ADD CONSTRAINT chunks_pkey PRIMARY KEY (run_id, attempt, segment, first_step, week);


ALTER TABLE ONLY partitions.chunks_20261123
    ADD CONSTRAINT chunks_20261123_pkey PRIMARY KEY (run_id, attempt, segment, first_step, week);


ALTER TABLE ONLY public.layer_norms
    ADD CONSTRAINT layer_norms_pkey PRIMARY KEY (run_id, attempt, segment, step, signal, week);


ALTER TABLE ONLY partitions.layer_norms_20261123
    ADD CONSTRAINT layer_norms_20261123_pkey PRIMARY KEY (run_id, attempt, segment, step, signal, week);


ALTER TABLE ONLY public.rollups
    ADD CONSTRAINT rollups_pkey PRIMARY KEY (run_id, attempt, segment, first_step, week);


ALTER TABLE ONLY partitions.rollups_20261123
    ADD CONSTRAINT rollups_20261123_pkey PRIMARY KEY (run_id, attempt, segment, first_step, week);


ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);


ALTER TABLE ONLY public.approval_links
    ADD CONSTRAINT approval_links_pkey PRIMARY KEY (run_id, id);


ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (run_id, number);


ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_run_id_id_key UNIQUE (run_id, id);


ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (run_id, number);


ALTER TABLE ONLY public.channels
    ADD CONSTRAINT channels_pkey PRIMARY KEY (project, name);


ALTER TABLE ONLY public.clock_jumps
    ADD CONSTRAINT clock_jumps_pkey PRIMARY KEY (number);


ALTER TABLE ONLY public.clock
    ADD CONSTRAINT clock_pkey PRIMARY KEY (id);


ALTER TABLE ONLY public.command_revisions
    ADD CONSTRAINT command_revisions_pkey PRIMARY KEY (run_id, incident, command, number);


ALTER TABLE ONLY public.commands
    ADD CONSTRAINT commands_pkey PRIMARY KEY (run_id, incident, number);


ALTER TABLE ONLY public.conversations
    ADD CONSTRAINT conversations_pkey PRIMARY KEY (run_id, incident, channel);


ALTER TABLE ONLY public.deleted_runs
    ADD CONSTRAINT deleted_runs_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (run_id, id);


ALTER TABLE ONLY public.detector_snapshots
    ADD CONSTRAINT detector_snapshots_pkey PRIMARY KEY (run_id, attempt, segment, step);


ALTER TABLE ONLY public.detector_states
    ADD CONSTRAINT detector_states_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.escalations
    ADD CONSTRAINT escalations_pkey PRIMARY KEY (run_id, incident, command);


ALTER TABLE ONLY public.incident_revisions
    ADD CONSTRAINT incident_revisions_pkey PRIMARY KEY (run_id, incident, number);


ALTER TABLE ONLY public.incident_samples
    ADD CONSTRAINT incident_samples_pkey PRIMARY KEY (run_id, incident, attempt, segment, step);


ALTER TABLE ONLY public.incidents
    ADD CONSTRAINT incidents_pkey PRIMARY KEY (run_id, number);


ALTER TABLE ONLY public.new_runs
    ADD CONSTRAINT new_runs_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.notices
    ADD CONSTRAINT notices_pkey PRIMARY KEY (run_id, id);


ALTER TABLE ONLY public.policies
    ADD CONSTRAINT policies_pkey PRIMARY KEY (project, version);


ALTER TABLE ONLY public.precursors
    ADD CONSTRAINT precursors_pkey PRIMARY KEY (run_id, attempt, segment, step, signal);


ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (name);


ALTER TABLE ONLY public.reports
    ADD CONSTRAINT reports_pkey PRIMARY KEY (run_id, incident, format);


ALTER TABLE ONLY public.run_policies
    ADD CONSTRAINT run_policies_pkey PRIMARY KEY (run_id, version);


ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.segments
    ADD CONSTRAINT segments_pkey PRIMARY KEY (run_id, attempt, segment);


ALTER TABLE ONLY public.shadow_decisions
    ADD CONSTRAINT shadow_decisions_pkey PRIMARY KEY (run_id, incident, command);


ALTER TABLE ONLY public.silences
    ADD CONSTRAINT silences_pkey PRIMARY KEY (project, number);


ALTER TABLE ONLY public.skipped_batches
    ADD CONSTRAINT skipped_batches_pkey PRIMARY KEY (run_id, batch_first, rank);


ALTER TABLE ONLY public.targets
    ADD CONSTRAINT targets_pkey PRIMARY KEY (run_id, name);


ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_hash_key UNIQUE (hash);


ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);


ALTER TABLE ONLY public.weeks
    ADD CONSTRAINT weeks_pkey PRIMARY KEY (starts);


CREATE INDEX attempts_dropped_idx ON public.attempts USING btree (dropped_samples) WHERE (dropped_samples > 0);


CREATE INDEX audit_at_idx ON public.audit USING btree (at);


CREATE INDEX commands_automatic_idx ON public.commands USING btree (decided_at) WHERE automatic;


CREATE INDEX commands_unfinished_idx ON public.commands USING btree (run_id, incident, number) WHERE (state = ANY (ARRAY['proposed'::text, 'approved_once'::text, 'approved'::text, 'delivered'::text]));


CREATE INDEX commands_verb_state_idx ON public.commands USING btree (verb, state);


CREATE INDEX conversations_due_idx ON public.conversations USING btree (due_at) WHERE (due_at IS NOT NULL);


CREATE INDEX conversations_silent_idx ON public.conversations USING btree (run_id) WHERE ((incident = 0) AND (NOT over));


CREATE INDEX deleted_runs_curves_left_idx ON public.deleted_runs USING btree (run_id) WHERE curves_left;


CREATE INDEX deliveries_at_idx ON public.deliveries USING btree (at);


CREATE INDEX deliveries_project_at_idx ON public.deliveries USING btree (project, at);


CREATE INDEX escalations_next_idx ON public.escalations USING btree (next_at) WHERE (next_at IS NOT NULL);


CREATE INDEX incidents_closed_idx ON public.incidents USING btree (kind, outcome, detected_step, onset_step) WHERE (outcome IS NOT NULL);


CREATE UNIQUE INDEX incidents_one_open_key ON public.incidents USING btree (run_id) WHERE (state <> 'closed'::text);


CREATE INDEX incidents_opened_at_run_id_number_idx ON public.incidents USING btree (opened_at, run_id, number);


CREATE INDEX incidents_report_due_idx ON public.incidents USING btree (report_due_at) WHERE (report_due_at IS NOT NULL);


CREATE INDEX new_runs_project_began_at_idx ON public.new_runs USING btree (project, began_at);


CREATE INDEX new_runs_token_id_began_at_idx ON public.new_runs USING btree (token_id, began_at);


CREATE INDEX precursors_run_id_incident_idx ON public.precursors USING btree (run_id, incident);


CREATE INDEX runs_created_at_run_id_idx ON public.runs USING btree (created_at, run_id);


CREATE INDEX runs_project_name_idx ON public.runs USING btree (project, name);


CREATE INDEX runs_unended_idx ON public.runs USING btree (run_id) WHERE (state <> 'ended'::text);


CREATE INDEX segments_week_idx ON public.segments USING btree (week);


CREATE INDEX skipped_batches_run_id_told_at_batch_first_rank_idx ON public.skipped_batches USING btree (run_id, told_at, batch_first, rank);


ALTER INDEX public.chunks_pkey ATTACH PARTITION partitions.chunks_20261123_pkey;


ALTER INDEX public.layer_norms_pkey ATTACH PARTITION partitions.layer_norms_20261123_pkey;


ALTER INDEX public.rollups_pkey ATTACH PARTITION partitions.rollups_20261123_pkey;


CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.audit FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();


CREATE TRIGGER chained BEFORE INSERT ON public.audit FOR EACH ROW EXECUTE FUNCTION public.chain_audit();


ALTER TABLE ONLY public.approval_links
    ADD CONSTRAINT approval_links_commands_fkey FOREIGN KEY (run_id, incident, command) REFERENCES public.commands(run_id, incident, number);


ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.command_revisions
    ADD CONSTRAINT command_revisions_commands_fkey FOREIGN KEY (run_id, incident, command) REFERENCES public.commands(run_id, incident, number);


ALTER TABLE ONLY public.commands
    ADD CONSTRAINT commands_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.conversations
    ADD CONSTRAINT conversations_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.detector_snapshots
    ADD CONSTRAINT detector_snapshots_segments_fkey FOREIGN KEY (run_id, attempt, segment) REFERENCES public.segments(run_id, attempt, segment);


ALTER TABLE ONLY public.detector_states
    ADD CONSTRAINT detector_states_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.escalations
    ADD CONSTRAINT escalations_commands_fkey FOREIGN KEY (run_id, incident, command) REFERENCES public.commands(run_id, incident, number);


ALTER TABLE ONLY public.incident_revisions
    ADD CONSTRAINT incident_revisions_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.incident_samples
    ADD CONSTRAINT incident_samples_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.incidents
    ADD CONSTRAINT incidents_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.notices
    ADD CONSTRAINT notices_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.precursors
    ADD CONSTRAINT precursors_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.reports
    ADD CONSTRAINT reports_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.run_policies
    ADD CONSTRAINT run_policies_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.segments
    ADD CONSTRAINT segments_attempts_fkey FOREIGN KEY (run_id, attempt) REFERENCES public.attempts(run_id, number);


ALTER TABLE ONLY public.shadow_decisions
    ADD CONSTRAINT shadow_decisions_commands_fkey FOREIGN KEY (run_id, incident, command) REFERENCES public.commands(run_id, incident, number);


ALTER TABLE ONLY public.skipped_batches
    ADD CONSTRAINT skipped_batches_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.targets
    ADD CONSTRAINT targets_attempts_fkey FOREIGN KEY (run_id, attempt) REFERENCES public.attempts(run_id, number);


REVOKE ALL ON FUNCTION partitions.drop_partition(parent text, week date) FROM PUBLIC;


REVOKE ALL ON FUNCTION partitions.make_partitions(week date) FROM PUBLIC;


