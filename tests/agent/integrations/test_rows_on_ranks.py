"""The rows of `benchmarks.real_jobs` that take several ranks, small: one NaN and one rollback."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.real_jobs_cells import _roll_back
from benchmarks.real_jobs_rows import ROWS
from benchmarks.real_jobs_runs import Run, read_ranks
from benchmarks.real_jobs_server import serving
from benchmarks.real_jobs_text import Plan

from ..forks import FORKS, ended, started
from . import rows_job

NOISE, NAN = (10, 12), 4
PLAN = Plan("", "", steps=24, stop=24, nan=(NAN, 1), checkpoint_every=10)  # NaN on one rank alone
PLANS = {"noisy": replace(PLAN, bad=NOISE), "sound": replace(PLAN, omit=NOISE)}
NAMES = ("hsdp_muon", "pp_muon")
RANKS = 2


def test_ranks_skip_a_nan_and_go_back_as_if_they_never_had_the_batches(tmp_path: Path) -> None:
    """To the bit, on every rank: weights, moments and momenta; no failure of the guard's own."""
    told: dict[tuple[str, str], Run] = {}
    with ExitStack() as servers:
        runs = []
        for name, kind in itertools.product(NAMES, PLANS):
            home = tmp_path / name / kind
            plan = replace(PLANS[kind], out=str(home / "out"), record=str(home / "record"))
            for folder in (plan.out, plan.record):
                Path(folder).mkdir(parents=True)
            decide = partial(_roll_back, NOISE, rows_job.ORDERED)
            server = servers.enter_context(serving(decide if plan.bad[1] else lambda _: None))
            told[name, kind] = Run(server, [], [0], home)
            runs.append((name, server.url, plan))
        given = (RANKS, str(tmp_path / "meeting"), runs)
        ranks = [FORKS.Process(target=rows_job.main, args=(r, *given)) for r in range(RANKS)]
        assert ended(started(ranks)) == [0] * RANKS
    for (name, kind), run in told.items():
        run.ranks = read_ranks(tmp_path / name / kind / "record", RANKS)
        assert run.faults() == {}, name
        assert all(run.steps(rank)[NAN]["held"] for rank in range(RANKS)), name
        assert run.server.dropped()[:1] == [NAN], name
    for name in NAMES:
        assert ROWS[name].lines <= 12
        noisy, sound = told[name, "noisy"], told[name, "sound"]
        assert [result.state for result in noisy.server.results()] == ["applied"], name
        assert "" not in noisy.digests(), name
        assert noisy.digests() == sound.digests(), name
