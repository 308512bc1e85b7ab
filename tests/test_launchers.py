"""Sweeps whose jobs have processes of their own give the numbers of the serial sweep."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from cct import config, launchers
from tests import slurm
from tests.conftest import ROOT, TINY, Trained
from tests.test_train import digest

EPOCHS = "epochs=20"  # long enough for a job to be stopped in mid-run
FOUR = ["-m", *TINY, EPOCHS, "mixer=dense,random", "seed=0,1"]
REVERSED = ["-m", *TINY, EPOCHS, "mixer=random,dense", "seed=1,0"]


def results(folder: Path) -> dict[str, tuple[list[dict[str, Any]], str]]:
    """The numbers and the hash of the tensors of each run in outputs/default."""
    runs = [Trained(path.parent) for path in folder.glob("outputs/default/*/seed*/summary.json")]
    return {"/".join(one.out.parts[-2:]): (one.numbers, digest(one)) for one in runs}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[dict], str]]:
    folder = tmp_path_factory.mktemp("serial")
    command = [sys.executable, str(ROOT / "train.py"), *FOUR]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    found = results(folder)
    assert len({hashed for _, hashed in found.values()}) == 4
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``python train.py`` in an empty folder; with the test it ends, and what it started."""
    started = []

    def call(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_epochs(folder: Path, run: str, process: subprocess.Popen[str]) -> Path:
    """Return the directory of a run as soon as it has trained for two epochs."""
    while True:
        for path in folder.glob(f"outputs/default/{run}/metrics.jsonl"):
            if len(path.read_text().splitlines()) >= 2:
                return path.parent
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)


def statuses(folder: Path) -> list[str]:
    """What the latest launch says of its jobs."""
    listed: Any = OmegaConf.load(max(folder.glob("outputs/default/launches/*.yaml")))
    return [job.status for job in listed.jobs]


def no_strange_files(folder: Path) -> bool:
    """Whether a run's directory has nothing of a launcher, nor the study anything left of it."""
    inside = {path.name for path in folder.glob("outputs/default/*/seed*/*")}
    left = [path for path in folder.glob("outputs/default/launches/*") if path.is_dir()]
    return not left and not any("submitit" in name or ".pkl" in name for name in inside)


def test_joblib_gives_the_serial_numbers_in_any_order(command, tmp_path, serial):
    done = command(*REVERSED, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert done.returncode == 0, done.stderr
    assert results(tmp_path) == serial
    assert no_strange_files(tmp_path)


def test_a_failed_job_does_not_stop_joblibs_others_and_auto_threads_are_recorded(
    command, tmp_path, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    rates = ["optimizer.lr=1e30,1e-3", "schedule=constant", "threads=auto"]
    done = command("-m", *TINY, *rates, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert done.returncode == 1
    assert statuses(tmp_path) == ["failed", "finished"]
    found = [json.loads(path.read_text())["threads"] for path in tmp_path.rglob("summary.json")]
    assert set(found) == {max(1, len(os.sched_getaffinity(0)) // 2)}


def test_joblibs_processes_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12))
    monkeypatch.setattr("cct.machine.CGROUP_LIMIT", Path("nowhere"))
    monkeypatch.setenv("PYTHONPATH", "")
    for jobs, each in ((3, "4"), (24, "2")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        launchers.prepare({"_target_": "some.JoblibLauncher", "n_jobs": 6}, jobs)
        assert os.environ["OMP_NUM_THREADS"] == each


def test_joblibs_jobs_take_the_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    asked = config.compose(TINY)
    for launcher, devices in (
        ("JoblibLauncher", ["cuda:0", "cuda:1", "cuda:0"]),
        ("LocalLauncher", ["auto"] * 3),
    ):
        jobs = [{"launcher": {"_target_": f"a.{launcher}"}, "job": {"num": n}} for n in range(3)]
        placed = [launchers.placed(asked, OmegaConf.create(job)) for job in jobs]
        assert [run.cfg.device for run in placed] == devices
    on_cpu = config.compose([*TINY, "device=cpu"])
    joblib = OmegaConf.create({"launcher": {"_target_": "a.JoblibLauncher"}, "job": {"num": 1}})
    assert launchers.placed(on_cpu, joblib).cfg.device == "cpu"


def test_ctrl_c_ends_a_joblib_sweep_with_130_and_leaves_no_process(start, tmp_path):
    sweep = [*FOUR, "epochs=100000", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    process = start(*sweep)
    out = wait_for_epochs(tmp_path, "dense-*/seed0", process)
    os.kill(json.loads((out / "summary.json").read_text())["process"]["pid"], signal.SIGTERM)
    for run in ("dense-*/seed1", "random-*/seed0"):  # that one alone has ended
        wait_for_epochs(tmp_path, run, process)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]  # whoever held its output is gone
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert statuses(tmp_path) == ["interrupted", "interrupted", "interrupted", "not run"]


def test_a_killed_job_does_not_stop_submitits_others_and_a_second_launch_has_the_serial_numbers(
    command, start, tmp_path, serial
):
    process = start(*FOUR, "hydra/launcher=submitit_local")
    out = wait_for_epochs(tmp_path, "dense-*/seed1", process)
    os.kill(json.loads((out / "summary.json").read_text())["process"]["pid"], signal.SIGKILL)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 1, said
    assert "Traceback" not in said
    assert statuses(tmp_path) == ["finished", "interrupted", "finished", "finished"]
    assert not no_strange_files(tmp_path)  # the logs of the killed one are kept
    again = command(*REVERSED)
    assert again.stdout.count("Finished before") == 3
    assert results(tmp_path) == serial


def test_sigterm_ends_a_submitit_sweep_and_its_jobs_in_order(start, tmp_path):
    sweep = ["-m", *TINY, "epochs=100000", "seed=0,1", "hydra/launcher=submitit_local"]
    process = start(*sweep)
    for seed in (0, 1):
        wait_for_epochs(tmp_path, f"*/seed{seed}", process)
    process.terminate()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143, said
    assert statuses(tmp_path) == ["interrupted", "interrupted"]
    states = [json.loads(path.read_text())["status"] for path in tmp_path.rglob("summary.json")]
    assert states == ["interrupted", "interrupted"]


def test_without_slurm_its_launcher_is_refused_in_one_line(command, tmp_path):
    done = command(*FOUR, "hydra/launcher=submitit_slurm", PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        "train.py: hydra/launcher=submitit_slurm: there is no sbatch or no srun here\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())
def test_slurm_gives_the_serial_numbers_also_after_scancel_in_mid_run(
    command: Callable[..., subprocess.CompletedProcess[str]],
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    serial: dict[str, tuple[list[dict], str]],
):
    with slurm.started(tmp_path_factory.mktemp("slurm")) as settings:
        sweep = [*FOUR, "hydra/launcher=submitit_slurm"]
        process = start(*sweep, **settings)
        wait_for_epochs(tmp_path, "dense-*/seed1", process)
        subprocess.run(["scancel", "1_1"], env={**os.environ, **settings}, check=True)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 1, said
        assert statuses(tmp_path) == ["finished", "interrupted", "finished", "finished"]
        again = command(*sweep, **settings)
        assert again.returncode == 0, again.stdout + again.stderr
        assert statuses(tmp_path) == ["finished before", "finished"] + ["finished before"] * 2
    assert results(tmp_path) == serial
    assert no_strange_files(tmp_path)
