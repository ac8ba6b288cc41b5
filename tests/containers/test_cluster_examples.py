"""The examples for Slurm and Kubernetes: started again when they should be, and in their form."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "examples/slurm/train.sbatch"
BASE = ROOT / "examples/kubernetes"
# Slurm's own programs, as far as the script calls them: a requeue ends the script.
STAND_INS = {
    "srun": 'shift; exec "$@"',
    "scontrol": '[ "$1" = show ] && exec echo node1\necho "$@" >requeued; kill -KILL $PPID',
}


def start(folder: Path, train: str) -> subprocess.Popen[str]:
    for name, lines in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    given = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(
        ["bash", SBATCH], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "TRAIN": train,
             "OUT": str(folder / "out"), "SLURM_JOB_NAME": "gpt-7", **given},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "again"), [(0, False), (1, False), (75, True), (76, True), (78, False)]
)
def test_a_slurm_job_is_requeued_where_the_guard_asks_for_it(
    status: int, again: bool, tmp_path: Path
) -> None:
    (tmp_path / "train").write_text(f"#!/bin/sh\n[ -d $1 ] && [ $RANK = 0 ] && exit {status}\n")
    (tmp_path / "train").chmod(0o755)
    job = start(tmp_path, "train")
    job.communicate(timeout=120)
    assert (tmp_path / "requeued").exists() is again
    assert job.returncode == (-signal.SIGKILL if again else status)


@pytest.mark.slow
def test_a_slurm_job_near_its_time_limit_ends_its_ranks_and_is_requeued(tmp_path: Path) -> None:
    (tmp_path / "train").write_text(
        "#!/bin/bash\ntrap 'touch ended; exit 143' TERM\ntouch begun; while :; do sleep 0.05; done"
    )
    (tmp_path / "train").chmod(0o755)
    job, until = start(tmp_path, "train"), time.monotonic() + 120
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=120)
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "requeued").read_text().split() == ["requeue", "7"]


def resources() -> list[dict[str, Any]]:
    return [
        one for file in sorted(BASE.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text())
    ]


def test_the_kubernetes_base_sets_variables_that_the_reference_names() -> None:
    text = "".join(file.read_text() for file in BASE.glob("*.yaml"))
    pages = "".join(file.read_text() for file in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"\b(?:SPIKEGUARD|DATABASE)_[A-Z_]+\b", text))
    assert len(named) > 5
    assert [name for name in sorted(named) if name.removesuffix("_FILE") not in pages] == []


@pytest.mark.parametrize("part", ["server", "dashboard"])
def test_the_kubernetes_base_runs_an_image_as_its_own_user_on_its_port(part: str) -> None:
    built = (ROOT / part / "Dockerfile").read_text()
    deployments = {
        one["metadata"]["name"]: one for one in resources() if one["kind"] == "Deployment"
    }
    deployment = deployments[f"spikeguard-{part}"]
    pod = deployment["spec"]["template"]["spec"]
    user = pod["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in built
    assert f"EXPOSE {pod['containers'][0]['ports'][0]['containerPort']}\n" in built


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_kubernetes_base_renders() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", BASE], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    images = re.findall(r"^ +image: (\S+)$", done.stdout, re.MULTILINE)
    assert [image.rpartition("/")[2].partition(":")[0] for image in images] == [
        "spikeguard-dashboard", "spikeguard-server",
    ]  # fmt: skip
