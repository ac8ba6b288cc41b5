"""What a person orders of a calm run, carried out by the ranks of a real job at one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spikeguard_trainer
from spikeguard_trainer.stage.job import Job
from spikeguard_trainer.stage.processes import Children
from spikeguard_trainer.stage.service import Service
from tests.agent.forks import FORKED

SIZE = ["--preset", "tiny", "--batch", "4", "--steps", "20000", "--step-time", "0.03"]
TRAINER = str(Path(spikeguard_trainer.__file__).with_name("__main__.py"))
TWO_RANKS = ["--standalone", "--nproc-per-node=2", *FORKED, "--", TRAINER]
LIMIT_S = 120.0


def wait_until(seen: Callable[[], Any]) -> Any:
    until = time.monotonic() + LIMIT_S
    while not (found := seen()):
        assert time.monotonic() < until
        time.sleep(0.3)
    return found


def test_a_calm_run_saves_goes_back_skips_and_stops_when_it_is_told(
    folder: Path, service: Service, children: Children
) -> None:
    name = "ordered"
    path = f"/v1/runs/default/{name}"
    job = Job.start(
        children, folder / name, service.agent_environment(0.2), *TWO_RANKS, *SIZE,
        "--run", name, module="torch.distributed.run",
    )  # fmt: skip

    def step() -> int:
        found = [run["last_step"] or 0 for run in service.api.get("/v1/runs")["items"]
                 if run["name"] == name]  # fmt: skip
        return found[0] if found else 0

    def carried_out(verb: str, *, judged: bool = True, **more: Any) -> dict[str, Any]:
        wanted = {"verb": verb, "reason": "maintenance", **more}
        made = service.api.post(f"{path}/commands", wanted)

        def done() -> dict[str, Any] | None:
            items = service.api.get(f"{path}/commands")["items"]
            found: dict[str, Any] = next(one for one in items if one["id"] == made["id"])
            ends = ("judged",) if judged else ("judged", "applied")
            return found if found["state"] in ends else None

        seen: dict[str, Any] = wait_until(done)
        return seen

    wait_until(lambda: step() > 30)
    saved = carried_out("checkpoint_now")
    targets = {t["name"]: t for t in service.api.get(path)["targets"]}
    assert targets[saved["result"]]["step"] == saved["applied_step"]
    lowered = carried_out("scale_lr", factor=0.5, steps=20, expect="none")
    options = service.api.get(f"{path}/options")
    [target] = [t for t in options["targets"] if t["name"] == saved["result"]]
    assert target["cost"]["steps"] == options["step"] - saved["applied_step"]
    ahead = target["position"] + 10
    back = carried_out("rollback", target=target["name"], skip=[ahead, ahead + 5])
    far = service.api.get(f"{path}/options")["position"] + 500
    carried_out("skip_batches", judged=False, skip=[far, far + 5])
    done = service.api.get(f"{path}/interventions")["items"]
    order = [(d["id"], d["goes_on_from"]) for d in done if d["effect"] is not None]
    assert order == [(back["id"], target["step"]), (lowered["id"], lowered["applied_step"])]
    assert all(d["effect_error"] > 0.0 for d in done if d["effect"] is not None)
    stopped = carried_out("stop")
    assert job.process.wait(LIMIT_S) != 0  # torchrun's own
    assert job.summary()["steps"] >= stopped["applied_step"] > saved["applied_step"]
    assert service.incidents(name) == []
