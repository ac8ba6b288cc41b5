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
  IF week NOT BETWEEN current_date - 366 AND current_date + 366 THEN
    RAISE EXCEPTION 'no partition is made for %, more than a year from now', week;
  END IF;
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
    links jsonb NOT NULL,
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


CREATE TABLE public.batch_details (
    run_id uuid NOT NULL,
    attempt integer NOT NULL,
    segment bigint NOT NULL,
    step bigint NOT NULL,
    rank bigint NOT NULL,
    detail text NOT NULL
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
    proposed_by text,
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
    given_up boolean NOT NULL,
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


CREATE TABLE public.deleted_totals (
    counter text NOT NULL,
    first text NOT NULL,
    second text NOT NULL,
    count bigint NOT NULL
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


CREATE TABLE public.followups (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    rule text,
    text text NOT NULL,
    state text NOT NULL,
    owner text,
    revision integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    changed_by text NOT NULL
);


CREATE TABLE public.incident_figures (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    project text NOT NULL,
    written_at timestamp with time zone NOT NULL,
    detection_steps bigint NOT NULL,
    detection_s double precision,
    decision_s double precision,
    decided_by text,
    recovery_steps bigint,
    recovery_s double precision,
    outcome text,
    lost_steps bigint NOT NULL,
    lost_s double precision,
    lost_money double precision,
    saved_steps bigint NOT NULL,
    saved_s double precision,
    saved_money double precision,
    currency text NOT NULL
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
    cause_against text[],
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
    reported_at timestamp with time zone,
    report_failures integer NOT NULL
)
WITH (fillfactor='50');


CREATE TABLE public.new_runs (
    run_id uuid NOT NULL,
    project text NOT NULL,
    token_id bigint,
    began_at timestamp with time zone NOT NULL
);


CREATE TABLE public.notes (
    run_id uuid NOT NULL,
    number integer NOT NULL,
    source text NOT NULL,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL,
    began integer,
    attempt integer,
    segment bigint,
    step bigint NOT NULL,
    text text NOT NULL,
    reason text,
    changes jsonb NOT NULL,
    expected text,
    expected_size double precision,
    shown boolean NOT NULL,
    due_step bigint,
    judged_at timestamp with time zone,
    judged_step bigint,
    effect double precision,
    effect_error double precision,
    unknown text
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
    written_at timestamp with time zone NOT NULL,
    drawn_at timestamp with time zone NOT NULL
);


CREATE TABLE public.responders (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    acknowledged_at timestamp with time zone,
    acknowledged_by text,
    assignee text,
    assigned_at timestamp with time zone,
    assigned_by text
);


CREATE TABLE public.responses (
    run_id uuid NOT NULL,
    incident integer NOT NULL,
    number integer NOT NULL,
    at timestamp with time zone NOT NULL,
    person text NOT NULL,
    action text NOT NULL,
    assignee text,
    text text
);


CREATE TABLE public.run_policies (
    run_id uuid NOT NULL,
    version integer NOT NULL,
    document jsonb,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL
);


CREATE TABLE public.run_tags (
    run_id uuid NOT NULL,
    tag text NOT NULL
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
    own_names text,
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
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'Pt27OS4yBtDKWj5b', 1, 2, 1, 'team', 'Ada', '2026-11-25 22:50:16.267789+00', '2026-11-25 23:50:16.260594+00', NULL, NULL, NULL);


INSERT INTO public.attempts VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '00000000000000a1', NULL, NULL, NULL, '2026-11-25 22:50:15.137768+00', '2026-11-25 22:50:16.067944+00', '2026-11-25 22:50:15.967944+00', NULL, NULL, false, 8, 1, '{skip_batches,rollback,scale_lr,checkpoint_now,watch,stop}', '0.1', 4096, '{}', '{}', 0);


INSERT INTO public.audit VALUES
	('00000000-0000-0000-0000-000000000000', 1, '2026-11-25 22:50:14.18804+00', 'me', 'token.created', 'token 1', NULL, 'agent, Ada', NULL, '[]', NULL, NULL, NULL, NULL, '\x5fe913950401b12ea9f4c6fff4f73bea6c41bbf4a950d93bd9cff18beb8a3954'),
	('00000000-0000-0000-0000-000000000000', 2, '2026-11-25 22:50:14.212276+00', 'me', 'token.created', 'token 2', NULL, 'admin, Ada', NULL, '[]', NULL, NULL, NULL, NULL, '\x59f87bc3093b7e581f2a58d1877ea1c99e4bacd5b0e373a6b45d901558885d01'),
	('00000000-0000-0000-0000-000000000000', 3, '2026-11-25 22:50:14.940027+00', 'Ada', 'policy.written', 'policy of default', 'policy 1', 'policy 2', NULL, '[{"after": 98.0, "field": "price_per_hour", "before": null}]', 'person', 2, NULL, 'token', '\x1f2c8fa25baadcc329303e8d4efcb49c1ba7f3309db2c5426ea34d64a42d3303'),
	('00000000-0000-0000-0000-000000000000', 4, '2026-11-25 22:50:15.118261+00', 'Ada', 'channel.created', 'channel team of default', NULL, NULL, NULL, '[{"after": ["decisions", "results", "runs", "spikes"], "field": "about", "before": null}, {"after": 120.0, "field": "cooldown_s", "before": null}, {"after": true, "field": "enabled", "before": null}, {"after": "webhook", "field": "kind", "before": null}, {"after": ["divergent", "lingering", "outlier_batch", "recoverable"], "field": "kinds", "before": null}, {"after": 0, "field": "level", "before": null}, {"after": false, "field": "links", "before": null}, {"after": [], "field": "runs", "before": null}, {"after": "none", "field": "target.picture", "before": null}, {"after": "…", "field": "target.secret", "before": null}, {"after": "https://team.example/…", "field": "target.url", "before": null}]', 'person', 2, NULL, 'token', '\xe551885adf64095f8ef59367394404685fcf1764e26e39a3f36c75d2499c02ac'),
	('00000000-0000-0000-0000-000000000000', 5, '2026-11-25 22:50:15.219145+00', 'Ada', 'silence.created', 'silence 1 of default/*#*', NULL, 'in 0 s, for 3600 s', 'moving', '[]', 'person', 2, NULL, 'token', '\x97386b972aea5b21625d3273eabeb90e22d0b9ed1c187fc5cdd8dca493293a9b'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '2026-11-25 22:50:15.29288+00', 'server', 'attempt.started', 'gpt', NULL, 'attempt 1', 'its first message came', '[]', 'server', NULL, NULL, NULL, '\x1715c723c92394f3cc53b77243db743bc7dfe6ca73bb619cc8b3b6042d15f27c'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 2, '2026-11-25 22:50:15.504449+00', 'server', 'open', 'gpt#1', NULL, 'recoverable', 'loss is 106.9 deviations above trend; most such spikes heal', '[]', 'server', NULL, NULL, NULL, '\xc8eb2dee1348f31168b3928bb071a2eee64e200618b5643987f6a6d007c28426'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 3, '2026-11-25 22:50:15.627934+00', 'policy 2', 'propose', 'gpt#1.1', NULL, 'proposed', 'watch: Expected to heal by itself. Loss is 3 above trend at step 127, too early to say more. Look again at step 330.', '[]', 'policy', NULL, NULL, NULL, '\xa64076e41fc94bab19cc03353441b6b9a1c1788680be6f1418fcd60bf397ff1a'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 4, '2026-11-25 22:50:15.648704+00', 'policy 2', 'approve', 'gpt#1.1', 'proposed', 'approved', 'automatic approval 1 of 1,000 in 24 hours by policy 2', '[]', 'policy', NULL, NULL, NULL, '\x5b8a80a8e9a9af64d8295dbfc8e28377769bdf54c9d7b1b5fe626800954942a3'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 5, '2026-11-25 22:50:15.675156+00', 'server', 'deliver', 'gpt#1.1', 'approved', 'delivered', 'to attempt 1', '[]', 'server', NULL, NULL, NULL, '\x4a579d700ceaa5791746641118266ebb24dbe8fd22eddb7eb19d29765997628f'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 6, '2026-11-25 22:50:16.090534+00', 'server', 'revise', 'gpt#1', 'recoverable', 'lingering', 'loss is 3 above trend at step 157 and has stopped falling', '[]', 'server', NULL, NULL, NULL, '\x63c6224bd80b226f893ea741d75b33263b6e30fff62f9f3531fb2754151b9bcf'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 7, '2026-11-25 22:50:16.153749+00', 'policy 2', 'propose', 'gpt#1.2', NULL, 'proposed', 'rollback: Lingering (69%). Loss is 3 above trend at step 160 and has stopped falling.

The cause is not known: nothing that was measured tells it.

Go back to step-100 (disk, step 100, 21 steps before the onset), the newest target from before it, and skip batches 119 to 123 (5) although the data is only 22% likely. It may come again.', '[]', 'policy', NULL, NULL, NULL, '\xcf81a376910fba6b4392c63d4cd4f046769895613aab254762806a02b78beae5'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 8, '2026-11-25 22:50:16.323667+00', 'Ada', 'policy.written', 'policy of gpt', 'policy 2', 'policy 1 of the run', NULL, '[{"after": 3.0, "field": "price_per_hour", "before": 98.0}]', 'person', 2, NULL, 'token', '\x87d2eee7ec41d141b01d556e8aaa96352c285571c5d421d4c6d772e8aa55c811'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 9, '2026-11-25 22:50:16.484491+00', 'Ada', 'approve', 'gpt#1.2', 'proposed', 'approved', 'approved revision 1 as shown (by the API from 127.0.0.1)', '[]', 'person', 2, NULL, 'token', '\x8f99c3d447bc7073f5326d0f8811b4a027393fa0f1a05e53bcd7a1a8a991c03d');


INSERT INTO public.channels VALUES
	('default', 'team', 'webhook', '{"url": "https://team.example/hook", "secret": "of more than sixteen signs", "picture": "none"}', '{"runs": [], "about": ["decisions", "results", "runs", "spikes"], "kinds": ["divergent", "lingering", "outlier_batch", "recoverable"], "level": 0, "links": false, "person": null, "enabled": true, "cooldown_s": 120.0}', '2026-11-25 22:50:15.115308+00', 'Ada');


INSERT INTO public.command_revisions VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 1, '2026-11-25 22:50:15.414108+00', 'watch', '{"type": "Watch", "steps": 200}', 'Expected to heal by itself. Loss is 3 above trend at step 127, too early to say more. Look again at step 330.', 2, 'project'),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 2, 1, '2026-11-25 22:50:16.067944+00', 'rollback', '{"skip": {"end": 124, "type": "BatchRange", "first": 119}, "step": 100, "type": "Rollback", "target": "step-100", "lr_steps": null, "lr_factor": null}', 'Lingering (69%). Loss is 3 above trend at step 160 and has stopped falling.

The cause is not known: nothing that was measured tells it.

Go back to step-100 (disk, step 100, 21 steps before the onset), the newest target from before it, and skip batches 119 to 123 (5) although the data is only 22% likely. It may come again.', 2, 'project');


INSERT INTO public.commands VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 'watch', '{"type": "Watch", "steps": 200}', 'delivered', 1, 'Expected to heal by itself. Loss is 3 above trend at step 127, too early to say more. Look again at step 330.', 2, 'project', 1, NULL, '2026-11-26 02:50:15.414108+00', 330, '2026-11-25 22:50:15.414108+00', NULL, '2026-11-25 22:50:15.414108+00', 'policy 2', 130, true, 1, NULL, NULL, NULL, NULL, NULL, 'automatic approval 1 of 1,000 in 24 hours by policy 2', '2026-11-25 22:50:15.414108+00', NULL, NULL, NULL, NULL, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 2, 'rollback', '{"skip": {"end": 124, "type": "BatchRange", "first": 119}, "step": 100, "type": "Rollback", "target": "step-100", "lr_steps": null, "lr_factor": null}', 'approved', 1, 'Lingering (69%). Loss is 3 above trend at step 160 and has stopped falling.

The cause is not known: nothing that was measured tells it.

Go back to step-100 (disk, step 100, 21 steps before the onset), the newest target from before it, and skip batches 119 to 123 (5) although the data is only 22% likely. It may come again.', 2, 'project', 1, NULL, '2026-11-26 02:50:16.067944+00', 20160, '2026-11-25 22:50:16.067944+00', NULL, '2026-11-25 22:50:16.424274+00', 'Ada', 160, false, 1, NULL, NULL, NULL, NULL, NULL, 'approved revision 1 as shown', NULL, NULL, NULL, NULL, NULL, NULL);


INSERT INTO public.detector_snapshots VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 0, '\x7370696b6567756172642d6d6f6e69746f722031340a78016d51ff6ac320107e97fc7d04e39a50f62a12449a5b576a8c5333364adf7d9fb601970dd4dc7d3feecea854278fd40d341ce8482f92e481442b84a4a11574c096e5ec111db1c1f5d4b51d49242f884411e62c1bbae2c0b7959009a88bab0722a0cf8acc00ef24d21ca194a09e7af003ba41929dc847522a8595498dd43479a92d1a49905bad25f5203073ae99f7383e98a7e0896e18e46fc646def24745742ad5045a6dfedb9db00abc3ba0ba357689b179ddeccd399849bb25ccff61da241d13fb8a5bfd6412ef1d15aaa399bde5a9f298c9ccfa73eff12600deb5b6a1f2a5e5ca4eb34b61f1df15bebac8200a5ddf255f4d47fe58d99d58cfe6abf2e46be878bd78ff6bb4d59dde8d3bf3a4cb389c38d415037b7b3999a80de854957b127f71e3ae516390dd8fbb8f7894f1075834c98f', false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 100, '\x7370696b6567756172642d6d6f6e69746f722031340a7801ed59598fa34a96fe2ff90a53c1beb4d40f2c5eb08d0183175c2a95d80c060306b35fddff3e87ccbab7b2facebcb4466ab57a32451ac789b3c617e79c88fcfa95a4049ce4708ec1059ca6708ac1892f0441e1dc170267e0a1deffb2f026c003341627bf9038055f687823de27cedf6606f29d033ebf50308d80d9ef5c2c8c10307f9e3153609ca4e0ebfc06a2089cc559a073a00da6cc9cf0fd1bfef56b53b711fe15a6802e06081cce8399e23c8124719041820d0c4e020b87933c4e822fe22c90021e70869efd01851487533c0e9e52224e8321e4ec2a4de33483d32c4e7338cde334f82fe20c784de20c780d1a199c617186c3191e67049c11c12a9c257196c2591a67c120b09bc3591e67059c1567fb3912e72076f41c4f0eec85c0f23827e09c88f304ce93384fe13c8df30cceb3380feef0382fe0bc880b10291217285ca07181f986bf99d3296ab34c5f2ee4ad2a697532b847cbb8585ad3b128d94baff5a6cc225a5810f259bd536311098e25fdf8910fd29609ce54c0d30b42dd95c7332520c2b196aeb1f3b7213fec254314cdf47a6b81fe3afa7194442fc7da4c0b6d278f9cbc9728f4c0bc7a221684445eeae7066c385aa65b5e34a48887bd2497ab93c5742fe05fdb53b4b122c9b1161ee8a18f18f0379d2992ebf4f98b7ea55d2f9bc21041ff4ff972d5ad6d672559476be74f283c301cc87fd763a7c12ff6194b6eb965d70cd03fd9ff53bf1eeef6cc436640bfe6cba3b75937607ff2112bf05fea95f7b800bfd06cf66ea2ba0b42b91ffc59afe558bb81c8867841427c994b79acb35b02f10d5261476ef7bd63a90bad96078f05f95330e9f32fd015f77d5de6f8ad9b9b2a9034f0ffb44ff9f059d421fea3d977c792067eddbabfd6cb3afbdff4ffa4cb762b734b4e5cfc62bf95ab0f42d9f9a05f7bb7f51540fc37311b4a770ae24bd83b1fbbf015c44fa86e10e04873ac4ff16351fb14205c40bf94b4242a0df0ebf4bb4f13d8872dcdf479ed16609f106e7457debb203f4da2c46e07909f5ec376519a12c4b7793de9ee29007d1fa5814a6c49a0ff5c3fc5f593addaeba563ad34ebace6c408f28ff58cb9ee00fac38de4c98f00e2b3dd2cdf7103f459f658ad9720ff63cd02c6b114137c62ab0ee84efe21eb17ff61abf47a950cb0be6e22bb86ef6860fffe4131762c003eb559e672d9c0fafca4cb2c67bb83b285f5fd24ff0d7f938c329f9721dd091256805a8862d7ffd88e8c8762dd8a6768953ed067b3dee94a05f1dabb4f05fdb11be7cf464fa8ee89795ddfddecf323a8720dc5a246dce8c59438a2dfd1837ce0d9b113eb6ca97287861a51bbb94586a7ea498af9a98556b7c353e830746f0ca1956c1dc5cc627f1bb09beb08521334c3d6c10e5d2f95f9eb7ca9570b24ed0f245fb7870ce8a8cb36dbd74a317b855af54d76d480aef2f7f1605f13b05fd8ec32eeb4bf827fa3a51da2a71b2169b754bb5bab67bc000b143e6de590003d69eee77d34fb27f7925e628f07d09f37e269c6b605744972e82a9e02242909c60d680a417fa86daa5318adbb5e8dcd06953cd3427cd4a8e43425007ed1ade55af620be92540e5ec290159274e92553fa3603fb2c59572ec70175bdd2913ad55ad799becd29aa64e7f82f37d455efc63dc8977652982acf15920c09a3b1b4bb83fcc321b9aec6fcdc314a112276a97360ff9f744cdaadf6167aac1e9fe5bf410512585ce07001ca8e800b222e12b848e222858b342e32b8c8e222878b3c2e42559acb1254ad37dab656f1f5a20232df1118d680dc6dba9ab3640fc82c5aac18b21632f3a79dfb097901753ff097110172db0336673ce0d74d723b670f40eec7163526a033ebf25243f6762cd379cfb64fa0039283736ef3b0739eefbbd003fa9c35e78c0674bee8d1fec47140fffb8c7213605943e28328dda819bc860babd07db8710694c0865d7b5801f40f757703a2f431c6c22aac2c9e26b0fd83c7a4f7e47ca9b26eec93e4c8a3a6d822ddb992b4744b331ee3c45c79d54ebbefb086ccda05c56c30b46cdb03752451528b446f8e82e0dec3aea7548c3be987eb1d5d9e91adf5519bf0c2dfdfbee104fe95f9c23014c79214cb31224143dd27be70acc0702447512c4f112c5465e68b48f3a44893d06a50820805fbbfa0ed60049e60399a073e8a24a169985b14782882a2402849d03c41d31fe37f19d38adbbdb837e3dc1e40e7030dcadb78792ccc95950b13aadbf2a89efa40b2f4a19912f7154b90a556e26a30cc423e2aa278b08f8a2ead2db3d05d545266ff9038f3715a045b59c9549d593c457b13efaca5c8d998784fad410a934edd4e6ca91ed50d718b9782421896dadbdced4830312b55ae3c05adb256095593584aca0e92656d42b58fd6fe6990a588df5129b3f2160b794c684959ee33cbd2edc2d3f4dd525e4a7a6756f56bd82d8e0aafadb965ad49076ba7ddcd829f5ec952027cfc80206462d571ce9074cd0c0a1124eca3b1e32111c782ba2d8f170a12f97bc1801c0b85a2d4a57bbb16016e731372c4cc07d089f7e21efd5a28a62e7418ee02850c8006050d0b01eeeb8fe24b01ff47e6441ec0fd6c31cd8b15a1d0ee3bf696570209fa7f2672159b1b8e4d0385f2638fe87321638a775932c01d8a00d81a1ca1107d14cf16b6e31b7496ef189871f0ed1b5eb48f070cbc7f0064002d2247b3340fa8a069681867c4bc13a1957b7bc36fdee315fdc1f4f5ebff510388ff1379e73fbd62ff5be55d481e3f80f6f5db1fa0fbed77fcb7b7b8f6c2ef4559e76f7ffbfaf5035cff990720bbd96d1ecc9aac27b1124ea3281094600aa292973979bee808c54ed36f31da5585e7f9ecef5f43d575ec1559cefa76d864e86e4a0d92aeb77b2d62a8f1311bad6c93918c845e98157747f5d122f82958543e664c4ce22b76db77a3cf663259e8bc811c7b6bee9f7911f82297dfd6e374a45a937e5dfbd07dc66b06616e7d76b223b432489695d3f5949c998e771bc5d9368b8d801efc95e974817fee84d3e332ad88d3bd3387d2282fe93df374743bf6591ea34b9e8ae4762ad91a4ab249ae3b4c564be319a1836c760d45fb8d8f8e0f37c5eae0aa74c3391c8df06081fd054f05c2f2103e5491f7ec408c2dafe8264bac6e232f6c6db4ee067fb2a32457c533dda9ab25768f4ca26fc403b6e67c056dc48b6e54a2f6f2b1ab5e28f1355d911d7739354b8645bb151aea051ff75e17d7a212c7d362eb9d934e64fafc16f20b2d435133acb10746b5b5c894acb15b5c15bfa384ce884ca7b85028ef07392049f44ac59dda50b9c49eeb6e28924379e71d4d41c7d2e357d7cdbd9cd0795aa4eb7a9dc71d132c7ab3694f9b0a31ddcd55b2f1f49c30da33423e665ae82b8cc07d688bfaaca3060543b6a7dd4c154c0c5bafc9d78ae8d0ced6bcaacd9e01220ca6589ce2a175044ef796cb3ab13b934bb786366c84ad80fc6328b67a7a2c6ad16856de46ea23c7ecf9fba5d58e3be83bdc9a4f9bf416bc76e8d6ca015176986fd2b5da5ca220e66cb439c653cb50f2ab164ec9a17f9e0aef0ef13f2d8f36b6f262b4f404dd2123f05f88ee27c7472ecb76fc70ef223dbd975b1429c16d5c1954e960ebdbc30a647b8cbb619d6ccef28de50874a63ce23a4439f445af74b354fda94dcd7ebaed4d2624bc0a55f11e9a2e5b6a6a81de60232315cace14d3e1b1d063b5d4901fab8bf06a47059cff344c4497c528775428152bebc455237aaaa4678b45533ae24826c71b5d725c878e71c5d796cf54084a7fd3930f4508ba642760d4c1cfcfd6f9de61f4d1a7303e65028449e15ea1d3bcad05dde2bd0700caeed0a009a18a1d491735b9cdd45a3536aa70bab4cc54d91c4034951a917871e71815bbaa1c4ffaa2720457f78396acb0538705f438dd2e9acba19d32adda98a06b07799e695f62d108bb49669cf0b00eca17b2734917565250a8a8728dae136fcad0097a8862ebea710b24ba71c439b1d2a948d15f376e4fb6a34987f2c68904c9d710b3bf5ec555d53e6ae46db4e7deb529df6436833170b40c079cb10ca6280e572f5e943331ce5df26e9bc4e37cba31fc89cb512aafd4db83ae9b1dea63f5320cc6b6eaf8c5889951747e0a08cea812990a36d88fadac605d38e305b6f0132e59ba351c608c53a04b46e564a9788f723a0bd87bd94dfe43dda47d541d11ab94fac1c8ea622724da6d4d491bee64d24eb3c9cd5551af50aeadb679d9c2164481b687c6c9ba3ebb71e20b3f230f3486fc64918d14b54b2651bfdb85a5d0d8b51b57d139b92a15bf45996b28727354b2498c4fca565d0667ac9bb65a82d1cbc5860308fc5307206cdbd9d449dd3f1c4c2c0774deaec9ca44c4637f25226ca3233a735347ba65792d4eba3dece9eade982353b4c7e042ad3394beeeacb6ee72c88c9826712566784dd73f16e5a22de96d8ca8f0e60aa9b1cb7d5199f2be0fc87d671221d5598f42f40d64189492367a574ce8281ef788d87b6d37bc983beff7d9060e56cf90e51bb52c553851e06ff27ea56c5ef421984424375315c8db1da06c5c9d630d830c6d3f85ca2f76d1d3c7dcfdc158fad3f830c5d04fe8b11b5c1bd5d5c2d49c979fa842932606f31af3a91b592d617436d84a0802beecad787cfa286a89e44837e3a69b2ec478a6a22d7f4752db26c8689b54456eb4e5d2825b4d1d965f2ed085375b0ff98e2f3bbac340a29b0f4070a30927209224049e163886e4e1bc02f7995fe08da7384ea03992a6e1e211fa549263588ae2399215a9b9799d0f4a7fb6baeccc2ef0242dcc9c706d0a341626f31c41d11ccdf024dc02ff79e481bbcd1f471e88d8ffdc32cfa2e723f0474bfcedf78fa6781e989f3fba9ddfde1ee5eb353737ffdf2affcb2eb7fecd5ae55f9be27f216e08f7a92fc38ee41d01c92473b917ebdeec638fceae6ad73288eecf48df390bde4179679a5b3aa45b53dc53962c57c34d4281a2842b35a005473079aa539417dd9954e6aee5be695a0129727f656cca12544c53dc34b1e335f42cfc9a0c1e9ed849687738a7572c7af09328448ffc386ea6de14b07366afd94bc4a0526f1f3b7f63807ead7a9e77667aeb4d2ef1b8845d6e4c09ad2e93f64a4202e4e746e7e62bbf83cc19ed0901da2eb0df8f32f760e60741153772158c5d98be4cc1e615fed63ec0be7c5cb2c57870817f91128bc341a2e1ca6632ddb17a1e41fea5be26f9b6aff949889b82376cd3e94df6e230d2ba5981ffcb9b3ef2d6b5115464aa3df93c28a835c7f8b0abd17e4412a2ef29158e04c54f6808774dfeb2506f3270cb976ecf7944206f30c347f5c480ff42e4d0a98debd6e4449d37a3780df6f5b9de74da7d237ca4ca9fb8f9ee35df5f4df49cf30e5cd1411a7d6b9fa1d7447f1eb5fe3afafde5e5cf47147ee2f1422fffdefd23cfd3ab61f88f33db0f418ffa135f03ffaa29be47455397cff1d3785bbc2220bc93df73e21fcc9022bfbfa2aa8d8a20fa9e7bc3279ed98defafecfe7cfe625a5b048957c451f8fddd9ca889eacf12ebe8f9b807deebbb07e4e693b81f84bf8e7b45f6fa0eb9fa1f02f7fb37fcb7dfbffd3752797164', true);


INSERT INTO public.detector_states VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 8, 1, 0, 160, '\x7370696b6567756172642d6d6f6e69746f722031340a7801ed59598fa34a96fe2ff90a53c1beb4d40f2c5eb08d0183175c2a95d80c060306b35fddff3e87ccbab7b2facebcb4466ab57a32451ac789b3c617e79c88fcfa95a4049ce4708ec1059ca6708ac1892f0441e1dc170267e0a1deffb2f026c003341627bf9038055f687823de27cedf6606f29d033ebf50308d80d9ef5c2c8c10307f9e3153609ca4e0ebfc06a2089cc559a073a00da6cc9cf0fd1bfef56b53b711fe15a6802e06081cce8399e23c8124719041820d0c4e020b87933c4e822fe22c90021e70869efd01851487533c0e9e52224e8321e4ec2a4de33483d32c4e7338cde334f82fe20c784de20c780d1a199c617186c3191e67049c11c12a9c257196c2591a67c120b09bc3591e67059c1567fb3912e72076f41c4f0eec85c0f23827e09c88f304ce93384fe13c8df30cceb3380feef0382fe0bc880b10291217285ca07181f986bf99d3296ab34c5f2ee4ad2a697532b847cbb8585ad3b128d94baff5a6cc225a5810f259bd536311098e25fdf8910fd29609ce54c0d30b42dd95c7332520c2b196aeb1f3b7213fec254314cdf47a6b81fe3afa7194442fc7da4c0b6d278f9cbc9728f4c0bc7a221684445eeae7066c385aa65b5e34a48887bd2497ab93c5742fe05fdb53b4b122c9b1161ee8a18f18f0379d2992ebf4f98b7ea55d2f9bc21041ff4ff972d5ad6d672559476be74f283c301cc87fd763a7c12ff6194b6eb965d70cd03fd9ff53bf1eeef6cc436640bfe6cba3b75937607ff2112bf05fea95f7b800bfd06cf66ea2ba0b42b91ffc59afe558bb81c8867841427c994b79acb35b02f10d5261476ef7bd63a90bad96078f05f95330e9f32fd015f77d5de6f8ad9b9b2a9034f0ffb44ff9f059d421fea3d977c792067eddbabfd6cb3afbdff4ffa4cb762b734b4e5cfc62bf95ab0f42d9f9a05f7bb7f51540fc37311b4a770ae24bd83b1fbbf015c44fa86e10e04873ac4ff16351fb14205c40bf94b4242a0df0ebf4bb4f13d8872dcdf479ed16609f106e7457debb203f4da2c46e07909f5ec376519a12c4b7793de9ee29007d1fa5814a6c49a0ff5c3fc5f593addaeba563ad34ebace6c408f28ff58cb9ee00fac38de4c98f00e2b3dd2cdf7103f459f658ad9720ff63cd02c6b114137c62ab0ee84efe21eb17ff61abf47a950cb0be6e22bb86ef6860fffe4131762c003eb559e672d9c0fafca4cb2c67bb83b285f5fd24ff0d7f938c329f9721dd091256805a8862d7ffd88e8c8762dd8a6768953ed067b3dee94a05f1dabb4f05fdb11be7cf464fa8ee89795ddfddecf323a8720dc5a246dce8c59438a2dfd1837ce0d9b113eb6ca97287861a51bbb94586a7ea498af9a98556b7c353e830746f0ca1956c1dc5cc627f1bb09beb08521334c3d6c10e5d2f95f9eb7ca9570b24ed0f245fb7870ce8a8cb36dbd74a317b855af54d76d480aef2f7f1605f13b05fd8ec32eeb4bf827fa3a51da2a71b2169b754bb5bab67bc000b143e6de590003d69eee77d34fb27f7925e628f07d09f37e269c6b605744972e82a9e02242909c60d680a417fa86daa5318adbb5e8dcd06953cd3427cd4a8e43425007ed1ade55af620be92540e5ec290159274e92553fa3603fb2c59572ec70175bdd2913ad55ad799becd29aa64e7f82f37d455efc63dc8977652982acf15920c09a3b1b4bb83fcc321b9aec6fcdc314a112276a97360ff9f744cdaadf6167aac1e9fe5bf410512585ce07001ca8e800b222e12b848e222858b342e32b8c8e222878b3c2e42559acb1254ad37dab656f1f5a20232df1118d680dc6dba9ab3640fc82c5aac18b21632f3a79dfb097901753ff097110172db0336673ce0d74d723b670f40eec7163526a033ebf25243f6762cd379cfb64fa0039283736ef3b0739eefbbd003fa9c35e78c0674bee8d1fec47140fffb8c7213605943e28328dda819bc860babd07db8710694c0865d7b5801f40f757703a2f431c6c22aac2c9e26b0fd83c7a4f7e47ca9b26eec93e4c8a3a6d822ddb992b4744b331ee3c45c79d54ebbefb086ccda05c56c30b46cdb03752451528b446f8e82e0dec3aea7548c3be987eb1d5d9e91adf5519bf0c2dfdfbee104fe95f9c23014c79214cb31224143dd27be70acc0702447512c4f112c5465e68b48f3a44893d06a50820805fbbfa0ed60049e60399a073e8a24a169985b14782882a2402849d03c41d31fe37f19d38adbbdb837e3dc1e40e7030dcadb78792ccc95950b13aadbf2a89efa40b2f4a19912f7154b90a556e26a30cc423e2aa278b08f8a2ead2db3d05d545266ff9038f3715a045b59c9549d593c457b13efaca5c8d998784fad410a934edd4e6ca91ed50d718b9782421896dadbdced4830312b55ae3c05adb256095593584aca0e92656d42b58fd6fe6990a588df5129b3f2160b794c684959ee33cbd2edc2d3f4dd525e4a7a6756f56bd82d8e0aafadb965ad49076ba7ddcd829f5ec952027cfc80206462d571ce9074cd0c0a1124eca3b1e32111c782ba2d8f170a12f97bc1801c0b85a2d4a57bbb16016e731372c4cc07d089f7e21efd5a28a62e7418ee02850c8006050d0b01eeeb8fe24b01ff47e6441ec0fd6c31cd8b15a1d0ee3bf696570209fa7f2672159b1b8e4d0385f2638fe87321638a775932c01d8a00d81a1ca1107d14cf16b6e31b7496ef189871f0ed1b5eb48f070cbc7f0064002d2247b3340fa8a069681867c4bc13a1957b7bc36fdee315fdc1f4f5ebff510388ff1379e73fbd62ff5be55d481e3f80f6f5db1fa0fbed77fcb7b7b8f6c2ef4559e76f7ffbfaf5035cff990720bbd96d1ecc9aac27b1124ea3281094600aa292973979bee808c54ed36f31da5585e7f9ecef5f43d575ec1559cefa76d864e86e4a0d92aeb77b2d62a8f1311bad6c93918c845e98157747f5d122f82958543e664c4ce22b76db77a3cf663259e8bc811c7b6bee9f7911f82297dfd6e374a45a937e5dfbd07dc66b06616e7d76b223b432489695d3f5949c998e771bc5d9368b8d801efc95e974817fee84d3e332ad88d3bd3387d2282fe93df374743bf6591ea34b9e8ae4762ad91a4ab249ae3b4c564be319a1836c760d45fb8d8f8e0f37c5eae0aa74c3391c8df06081fd054f05c2f2103e5491f7ec408c2dafe8264bac6e232f6c6db4ee067fb2a32457c533dda9ab25768f4ca26fc403b6e67c056dc48b6e54a2f6f2b1ab5e28f1355d911d7739354b8645bb151aea051ff75e17d7a212c7d362eb9d934e64fafc16f20b2d435133acb10746b5b5c894acb15b5c15bfa384ce884ca7b85028ef07392049f44ac59dda50b9c49eeb6e28924379e71d4d41c7d2e357d7cdbd9cd0795aa4eb7a9dc71d132c7ab3694f9b0a31ddcd55b2f1f49c30da33423e665ae82b8cc07d688bfaaca3060543b6a7dd4c154c0c5bafc9d78ae8d0ced6bcaacd9e01220ca6589ce2a175044ef796cb3ab13b934bb786366c84ad80fc6328b67a7a2c6ad16856de46ea23c7ecf9fba5d58e3be83bdc9a4f9bf416bc76e8d6ca015176986fd2b5da5ca220e66cb439c653cb50f2ab164ec9a17f9e0aef0ef13f2d8f36b6f262b4f404dd2123f05f88ee27c7472ecb76fc70ef223dbd975b1429c16d5c1954e960ebdbc30a647b8cbb619d6ccef28de50874a63ce23a4439f445af74b354fda94dcd7ebaed4d2624bc0a55f11e9a2e5b6a6a81de60232315cace14d3e1b1d063b5d4901fab8bf06a47059cff344c4497c528775428152bebc455237aaaa4678b45533ae24826c71b5d725c878e71c5d796cf54084a7fd3930f4508ba642760d4c1cfcfd6f9de61f4d1a7303e65028449e15ea1d3bcad05dde2bd0700caeed0a009a18a1d491735b9cdd45a3536aa70bab4cc54d91c4034951a917871e71815bbaa1c4ffaa2720457f78396acb0538705f438dd2e9acba19d32adda98a06b07799e695f62d108bb49669cf0b00eca17b2734917565250a8a8728dae136fcad0097a8862ebea710b24ba71c439b1d2a948d15f376e4fb6a34987f2c68904c9d710b3bf5ec555d53e6ae46db4e7deb529df6436833170b40c079cb10ca6280e572f5e943331ce5df26e9bc4e37cba31fc89cb512aafd4db83ae9b1dea63f5320cc6b6eaf8c5889951747e0a08cea812990a36d88fadac605d38e305b6f0132e59ba351c608c53a04b46e564a9788f723a0bd87bd94dfe43dda47d541d11ab94fac1c8ea622724da6d4d491bee64d24eb3c9cd5551af50aeadb679d9c2164481b687c6c9ba3ebb71e20b3f230f3486fc64918d14b54b2651bfdb85a5d0d8b51b57d139b92a15bf45996b28727354b2498c4fca565d0667ac9bb65a82d1cbc5860308fc5307206cdbd9d449dd3f1c4c2c0774deaec9ca44c4637f25226ca3233a735347ba65792d4eba3dece9eade982353b4c7e042ad3394beeeacb6ee72c88c9826712566784dd73f16e5a22de96d8ca8f0e60aa9b1cb7d5199f2be0fc87d671221d5598f42f40d64189492367a574ce8281ef788d87b6d37bc983beff7d9060e56cf90e51bb52c553851e06ff27ea56c5ef421984424375315c8db1da06c5c9d630d830c6d3f85ca2f76d1d3c7dcfdc158fad3f830c5d04fe8b11b5c1bd5d5c2d49c979fa842932606f31af3a91b592d617436d84a0802beecad787cfa286a89e44837e3a69b2ec478a6a22d7f4752db26c8689b54456eb4e5d2825b4d1d965f2ed085375b0ff98e2f3bbac340a29b0f4070a30927209224049e163886e4e1bc02f7995fe08da7384ea03992a6e1e211fa549263588ae2399215a9b9799d0f4a7fb6baeccc2ef0242dcc9c706d0a341626f31c41d11ccdf024dc02ff79e481bbcd1f471e88d8ffdc32cfa2e723f0474bfcedf78fa6781e989f3fba9ddfde1ee5eb353737ffdf2affcb2eb7fecd5ae55f9be27f216e08f7a92fc38ee41d01c92473b917ebdeec638fceae6ad73288eecf48df390bde4179679a5b3aa45b53dc53962c57c34d4281a2842b35a005473079aa539417dd9954e6aee5be695a0129727f656cca12544c53dc34b1e335f42cfc9a0c1e9ed849687738a7572c7af09328448ffc386ea6de14b07366afd94bc4a0526f1f3b7f63807ead7a9e77667aeb4d2ef1b8845d6e4c09ad2e93f64a4202e4e746e7e62bbf83cc19ed0901da2eb0df8f32f760e60741153772158c5d98be4cc1e615fed63ec0be7c5cb2c57870817f91128bc341a2e1ca6632ddb17a1e41fea5be26f9b6aff949889b82376cd3e94df6e230d2ba5981ffcb9b3ef2d6b5115464aa3df93c28a835c7f8b0abd17e4412a2ef29158e04c54f6808774dfeb2506f3270cb976ecf7944206f30c347f5c480ff42e4d0a98debd6e4449d37a3780df6f5b9de74da7d237ca4ca9fb8f9ee35df5f4df49cf30e5cd1411a7d6b9fa1d7447f1eb5fe3afafde5e5cf47147ee2f1422fffdefd23cfd3ab61f88f33db0f418ffa135f03ffaa29be47455397cff1d3785bbc2220bc93df73e21fcc9022bfbfa2aa8d8a20fa9e7bc3279ed98defafecfe7cfe625a5b048957c451f8fddd9ca889eacf12ebe8f9b807deebbb07e4e693b81f84bf8e7b45f6fa0eb9fa1f02f7fb37fcb7dfbffd3752797164', 100, 1, 0);


INSERT INTO public.incident_revisions VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 1, 122, '2026-11-25 22:50:15.414108+00', 'recoverable', 0.55, 'loss is 106.9 deviations above trend; most such spikes heal', 121, 7.921, 2.9708499758407045, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 2, 123, '2026-11-25 22:50:15.414108+00', 'recoverable', 0.55, 'loss is 3 above trend at step 123, 2 steps after its last rise', 121, 7.921, 2.9881497713092013, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 3, 127, '2026-11-25 22:50:15.414108+00', 'recoverable', 0.6726778205950985, 'loss is 3 above trend at step 127, too early to say more', 121, 7.921, 2.988742176556473, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 4, 131, '2026-11-25 22:50:15.776019+00', 'recoverable', 0.6108250261934052, 'loss is 3 above trend at step 131, too early to say more', 121, 7.921, 2.9734645586462385, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 5, 147, '2026-11-25 22:50:15.973457+00', 'recoverable', 0.5601928215523884, 'loss is 3 above trend at step 147, too early to say more', 121, 7.921, 2.973168280537468, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 6, 151, '2026-11-25 22:50:16.067944+00', 'recoverable', 0.5, 'loss is 3 above trend at step 151 and has stopped falling', 121, 7.921, 2.9781975301759784, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 7, 157, '2026-11-25 22:50:16.067944+00', 'lingering', 0.6321205588285577, 'loss is 3 above trend at step 157 and has stopped falling', 121, 7.921, 2.965687928577995, false),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 8, 160, '2026-11-25 22:50:16.067944+00', 'lingering', 0.6907518070666562, 'loss is 3 above trend at step 160 and has stopped falling', 121, 7.921, 2.95764965896315, false);


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
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 'open', 1, 0, 121, 120, 121, 122, 160, 'lingering', 0.6907518070666562, 'loss is 3 above trend at step 160 and has stopped falling', 121, 7.921, 2.95764965896315, false, 'loss', 4.924756997393403, 120, 4.924756997393403, -0.00030598791791164683, 0.02426547804445132, 3, false, 160, 0, NULL, NULL, NULL, NULL, NULL, NULL, '{loss,grad_norm}', '{123.44480307656355,1.2998522170436062}', '{loss}', '{121}', '{unknown,bad_batch,lr_too_high,stale_second_moment,weight_corruption,rare_tokens,layer_fault,non_finite_source,loss_scale_overflow,stalled_weights}', '{0.5216352672172666,0.19189889059920404,0.11639256071325768,0.07059565663505493,0.04281843019170641,0.02597069071203503,0.02597069071203503,0.0021318041113590966,0.001293004554040737,0.001293004554040737}', '{"nothing that was measured tells the causes apart","the loss rose by 123 standard deviations within step 121","","","","","","","",""}', '{"","the loss did not come down once the batch had passed","","","","","","every value was finite","",""}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', '{NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-25 22:50:15.414108+00', NULL, 8, 2, NULL, NULL, NULL, 0);


INSERT INTO public.new_runs VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'default', NULL, '2026-11-25 22:50:15.237768+00');


INSERT INTO public.notices OVERRIDING SYSTEM VALUE VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '2026-11-25 22:50:15.508687+00', 'opened', 1, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 2, '2026-11-25 22:50:15.63107+00', 'proposed', 1, 1),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 3, '2026-11-25 22:50:15.649956+00', 'approved', 1, 1),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 4, '2026-11-25 22:50:16.095963+00', 'renamed', 1, NULL),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 5, '2026-11-25 22:50:16.159631+00', 'proposed', 1, 2),
	('a9508063-bd49-5143-9985-d1966a9d83b2', 6, '2026-11-25 22:50:16.486086+00', 'approved', 1, 2);


INSERT INTO public.policies VALUES
	('default', 2, '{"rules": [], "halted": false, "version": 2, "approval": {"stop": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "watch": {"mode": "auto", "budget": 1000, "approvals": 1, "cooldown_s": 0.0}, "rollback": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "scale_lr": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "skip_batches": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "checkpoint_now": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}}, "currency": "USD", "lr_steps": 500, "remedies": {}, "detection": {}, "few_steps": 20, "skip_most": 500, "calm_steps": 5, "escalation": [], "lr_factors": [0.5, 0.3333333333333333], "near_steps": 50, "skip_share": 0.05, "watch_steps": 200, "expires_in_s": 14400.0, "margin_steps": 2, "few_skip_most": 20, "act_confidence": 0.6, "few_skip_least": 5, "most_rollbacks": 3, "patience_steps": 20, "price_per_hour": 98.0, "ask_again_steps": 200, "sure_confidence": 0.85, "expires_after_steps": 20000, "health_horizon_steps": 100, "optimizer_back_share": 0.25, "optimizer_back_steps": 1000, "lingering_patience_share": 0.1, "lingering_patience_steps": 150}', '2026-11-25 22:50:14.922412+00', 'Ada');


INSERT INTO public.projects VALUES
	('default', '2026-11-25 22:50:15.237768+00');


INSERT INTO public.run_policies VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, '{"rules": [], "halted": false, "version": 1, "approval": {"stop": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "watch": {"mode": "auto", "budget": 1000, "approvals": 1, "cooldown_s": 0.0}, "rollback": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "scale_lr": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "skip_batches": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}, "checkpoint_now": {"mode": "manual", "budget": 3, "approvals": 1, "cooldown_s": 1800.0}}, "currency": "USD", "lr_steps": 500, "remedies": {}, "detection": {}, "few_steps": 20, "skip_most": 500, "calm_steps": 5, "escalation": [], "lr_factors": [0.5, 0.3333333333333333], "near_steps": 50, "skip_share": 0.05, "watch_steps": 200, "expires_in_s": 14400.0, "margin_steps": 2, "few_skip_most": 20, "act_confidence": 0.6, "few_skip_least": 5, "most_rollbacks": 3, "patience_steps": 20, "price_per_hour": 3.0, "ask_again_steps": 200, "sure_confidence": 0.85, "expires_after_steps": 20000, "health_horizon_steps": 100, "optimizer_back_share": 0.25, "optimizer_back_steps": 1000, "lingering_patience_share": 0.1, "lingering_patience_steps": 150}', '2026-11-25 22:50:16.311066+00', 'Ada');


INSERT INTO public.runs VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'default', 'gpt', '2026-11-25 22:50:15.237768+00', 'live', 1, 1, 1, '2026-11-25 22:50:16.067944+00', 1, 0, 160, 160, 7.887, 1.0329149176183912, 122.51222567670982, NULL, NULL, NULL, NULL, NULL);


INSERT INTO public.segments VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 1, 0, 'start', NULL, NULL, NULL, 0, NULL, '2026-11-25 22:50:15.237768+00', 1, 160, '2026-11-23', NULL);


INSERT INTO public.silences VALUES
	('default', 1, NULL, NULL, '2026-11-25 22:50:15.209016+00', '2026-11-25 23:50:15.209017+00', 'moving', '2026-11-25 22:50:15.209017+00', 'Ada', NULL);


INSERT INTO public.targets VALUES
	('a9508063-bd49-5143-9985-d1966a9d83b2', 'step-100', 1, 0, 100, 100, 'disk', '2026-11-25 22:50:15.384882+00', NULL);


INSERT INTO public.tokens OVERRIDING SYSTEM VALUE VALUES
	(1, '\xf0e0a7ec8e23d677312e04ae8213b32c1610c25f3414816338ef933996c67cfe', 'agent', NULL, NULL, NULL, 'Ada', NULL, NULL, NULL, NULL, NULL, '2026-11-25 22:50:14.170824+00', 'me', '2027-11-25 22:50:14.170824+00', NULL),
	(2, '\xeebd684d5b1a8aad885e3ba364513ca3ad89ad29cb7efbf844832a3189df593c', 'admin', NULL, NULL, NULL, 'Ada', NULL, NULL, NULL, NULL, NULL, '2026-11-25 22:50:14.206804+00', 'me', NULL, NULL);


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


ALTER TABLE ONLY public.batch_details
    ADD CONSTRAINT batch_details_pkey PRIMARY KEY (run_id, attempt, segment, step, rank);


ALTER TABLE ONLY public.channels
    ADD CONSTRAINT channels_pkey PRIMARY KEY (project, name);


ALTER TABLE ONLY public.command_revisions
    ADD CONSTRAINT command_revisions_pkey PRIMARY KEY (run_id, incident, command, number);


ALTER TABLE ONLY public.commands
    ADD CONSTRAINT commands_pkey PRIMARY KEY (run_id, incident, number);


ALTER TABLE ONLY public.conversations
    ADD CONSTRAINT conversations_pkey PRIMARY KEY (run_id, incident, channel);


ALTER TABLE ONLY public.deleted_runs
    ADD CONSTRAINT deleted_runs_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.deleted_totals
    ADD CONSTRAINT deleted_totals_pkey PRIMARY KEY (counter, first, second);


ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (run_id, id);


ALTER TABLE ONLY public.detector_snapshots
    ADD CONSTRAINT detector_snapshots_pkey PRIMARY KEY (run_id, attempt, segment, step);


ALTER TABLE ONLY public.detector_states
    ADD CONSTRAINT detector_states_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.escalations
    ADD CONSTRAINT escalations_pkey PRIMARY KEY (run_id, incident, command);


ALTER TABLE ONLY public.followups
    ADD CONSTRAINT followups_pkey PRIMARY KEY (run_id, incident, number);


ALTER TABLE ONLY public.followups
    ADD CONSTRAINT followups_run_id_incident_rule_key UNIQUE (run_id, incident, rule);


ALTER TABLE ONLY public.incident_figures
    ADD CONSTRAINT incident_figures_pkey PRIMARY KEY (run_id, incident);


ALTER TABLE ONLY public.incident_revisions
    ADD CONSTRAINT incident_revisions_pkey PRIMARY KEY (run_id, incident, number);


ALTER TABLE ONLY public.incident_samples
    ADD CONSTRAINT incident_samples_pkey PRIMARY KEY (run_id, incident, attempt, segment, step);


ALTER TABLE ONLY public.incidents
    ADD CONSTRAINT incidents_pkey PRIMARY KEY (run_id, number);


ALTER TABLE ONLY public.new_runs
    ADD CONSTRAINT new_runs_pkey PRIMARY KEY (run_id);


ALTER TABLE ONLY public.notes
    ADD CONSTRAINT notes_pkey PRIMARY KEY (run_id, number);


ALTER TABLE ONLY public.notes
    ADD CONSTRAINT notes_run_id_began_key UNIQUE (run_id, began);


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


ALTER TABLE ONLY public.responders
    ADD CONSTRAINT responders_pkey PRIMARY KEY (run_id, incident);


ALTER TABLE ONLY public.responses
    ADD CONSTRAINT responses_pkey PRIMARY KEY (run_id, incident, number);


ALTER TABLE ONLY public.run_policies
    ADD CONSTRAINT run_policies_pkey PRIMARY KEY (run_id, version);


ALTER TABLE ONLY public.run_tags
    ADD CONSTRAINT run_tags_pkey PRIMARY KEY (run_id, tag);


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


CREATE INDEX followups_open_idx ON public.followups USING btree (run_id, created_at) WHERE (state = 'open'::text);


CREATE INDEX incidents_closed_idx ON public.incidents USING btree (kind, outcome) WHERE (outcome IS NOT NULL);


CREATE UNIQUE INDEX incidents_one_open_key ON public.incidents USING btree (run_id) WHERE (state <> 'closed'::text);


CREATE INDEX incidents_opened_at_run_id_number_idx ON public.incidents USING btree (opened_at, run_id, number);


CREATE INDEX incidents_report_due_idx ON public.incidents USING btree (report_due_at) WHERE (report_due_at IS NOT NULL);


CREATE INDEX new_runs_project_began_at_idx ON public.new_runs USING btree (project, began_at);


CREATE INDEX new_runs_token_id_began_at_idx ON public.new_runs USING btree (token_id, began_at);


CREATE INDEX notes_due_idx ON public.notes USING btree (run_id) WHERE (due_step IS NOT NULL);


CREATE INDEX precursors_run_id_incident_idx ON public.precursors USING btree (run_id, incident);


CREATE INDEX responders_assignee_idx ON public.responders USING btree (assignee) WHERE (assignee IS NOT NULL);


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


ALTER TABLE ONLY public.batch_details
    ADD CONSTRAINT batch_details_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.command_revisions
    ADD CONSTRAINT command_revisions_commands_fkey FOREIGN KEY (run_id, incident, command) REFERENCES public.commands(run_id, incident, number);


ALTER TABLE ONLY public.commands
    ADD CONSTRAINT commands_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.conversations
    ADD CONSTRAINT conversations_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.detector_snapshots
    ADD CONSTRAINT detector_snapshots_segments_fkey FOREIGN KEY (run_id, attempt, segment) REFERENCES public.segments(run_id, attempt, segment);


ALTER TABLE ONLY public.detector_states
    ADD CONSTRAINT detector_states_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.escalations
    ADD CONSTRAINT escalations_commands_fkey FOREIGN KEY (run_id, incident, command) REFERENCES public.commands(run_id, incident, number);


ALTER TABLE ONLY public.followups
    ADD CONSTRAINT followups_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.incident_revisions
    ADD CONSTRAINT incident_revisions_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.incident_samples
    ADD CONSTRAINT incident_samples_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.incidents
    ADD CONSTRAINT incidents_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.notes
    ADD CONSTRAINT notes_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.notices
    ADD CONSTRAINT notices_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.precursors
    ADD CONSTRAINT precursors_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.reports
    ADD CONSTRAINT reports_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.responders
    ADD CONSTRAINT responders_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.responses
    ADD CONSTRAINT responses_incidents_fkey FOREIGN KEY (run_id, incident) REFERENCES public.incidents(run_id, number);


ALTER TABLE ONLY public.run_policies
    ADD CONSTRAINT run_policies_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


ALTER TABLE ONLY public.run_tags
    ADD CONSTRAINT run_tags_runs_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id);


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


