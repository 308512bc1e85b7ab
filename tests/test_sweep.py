"""A sweep: every job runs whatever becomes of the others, in any order to the same numbers."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from cct import config
from cct.status import launched_in, runs_in, state_of
from scripts import status
from tests.conftest import ROOT, TINY

# A job that the test lets go wrong, by the place of its seed in the sweep.
TROUBLE = """
import os, runpy, sys
sys.path.insert(0, {root!r})
from cct import tuning
tuning.prepare()
from cct import loop
fit, Plan = loop.fit, loop.Plan
def plan(**settings):
    if settings["seeds"].init == 5: raise KeyError("plan")
    return Plan(**settings)
loop.Plan = plan
def trouble(model, *rest):
    seed = rest[7].seeds.init
    if seed == 1: raise RuntimeError("no kernel image")
    if seed == 2: sys.exit(0)
    if seed == 3: raise MemoryError("out of memory")
    return fit(model, *rest)
loop.fit = trouble
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def numbers(study: Path) -> dict[str, Any]:
    """Return what the runs of a study computed: their metrics, and hashes of their weights."""
    found = {}
    for out in runs_in(study):
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        timeless = [
            {k: v for k, v in row.items() if k not in ("seconds", "images_per_second")}
            for row in rows
        ]
        state = torch.load(out / "last.pt")
        sums = [
            hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            for tensor in state["model"].values()
        ]
        moments = [
            hashlib.sha256(value.numpy().tobytes()).hexdigest()
            for one in state["optimizer"]["state"].values()
            for value in one.values()
        ]
        found[f"{out.parent.name}/{out.name}"] = timeless, sums, moments
    return found


def the_launch(study: Path) -> Any:
    (path,) = (study / "launches").glob("*.yaml")
    return OmegaConf.load(path)


def test_jobs_that_go_wrong_do_not_stop_the_others(tmp_path):
    arguments = ["-m", *TINY, "epochs=1", "optimizer.lr=1e-3,1e30", "seed=range(6)"]
    arguments += ["schedule=constant", "epochs=2"]
    done = subprocess.run(
        [sys.executable, "-c", TROUBLE.format(root=str(ROOT)), str(ROOT / "train.py"), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    study = tmp_path / "outputs" / "default"
    jobs = the_launch(study).jobs
    assert [job.status for job in jobs] == [
        *("finished", "failed", "failed", "failed", "finished", "failed"),
        *("failed",) * 6,
    ]
    reasons = [job.reason.partition(" (")[0] for job in jobs]
    assert reasons[:5] == ["", "no kernel image", "sys.exit(0)", "out of memory", ""]
    assert reasons[5] == "KeyError: 'plan'"  # before the run has a record
    assert reasons[6].startswith("the loss is nan at step")
    errors = ("RuntimeError", "SystemExit", "MemoryError", "KeyError")
    for job, error in zip([*jobs[1:4], jobs[5]], errors, strict=True):
        assert error in (tmp_path / job.directory / "train.log").read_text()
    table = done.stdout[done.stdout.index("status ") :].splitlines()
    assert table[-1] == "outputs/default: 2 finished, 10 failed"
    assert len([row for row in table if row.startswith("failed ")]) == 10
    assert "    no kernel image" in done.stdout
    assert [path.name for path in (study / "launches").iterdir() if path.is_dir()] == []


def test_the_first_failure_ends_a_sweep_on_request(command, tmp_path):
    jobs = ["optimizer.lr=1e30,1e-3", "schedule=constant", "fail_fast=true"]
    done = command("-m", *TINY, *jobs)
    assert done.returncode == 1
    assert [job.status for job in the_launch(tmp_path / "outputs/default").jobs] == [
        "failed",
        "not run",
    ]
    assert "1 failed, 1 not run" in done.stdout


def test_the_numbers_of_a_job_do_not_depend_on_the_others(command, tmp_path):
    common = [*TINY, "augment=autoaugment", "mix=mixup_cutmix"]
    assert command("-m", *common, "mixer=dense,random", "seed=0,1", "study=serial").returncode == 0
    assert command("-m", *common, "seed=1,0", "mixer=random,dense", "study=other").returncode == 0
    assert command(*common, "mixer=random", "seed=1", "study=alone").returncode == 0
    serial, other, alone = (
        numbers(tmp_path / "outputs" / name) for name in ("serial", "other", "alone")
    )
    assert len(serial) == 4
    assert serial == other
    ((run, found),) = alone.items()
    assert serial[run] == found


def test_the_same_line_again_skips_goes_on_and_starts_the_rest(command, tmp_path):
    line = ["-m", *TINY, "seed=0,1,2"]
    assert command("-m", *TINY, "seed=0,1").returncode == 0
    study = tmp_path / "outputs" / "default"
    whole = numbers(study)
    broken = sorted(whole)[1]
    summary = json.loads((study / broken / "summary.json").read_text())
    (study / broken / "summary.json").write_text(json.dumps(summary | {"status": "running"}))
    (study / broken / "last.pt").unlink()
    would = command(*line, "dry_run=true")
    assert would.returncode == 0
    assert [row.split()[0] for row in would.stdout.splitlines()[1:4]] == ["skip", "resume", "run"]
    assert "?" not in would.stdout  # one of the kind is finished
    assert len(runs_in(study)) == 2  # which trained nothing
    done = command(*line)
    assert done.returncode == 0
    assert done.stdout.count("Finished before") == 1
    assert done.stdout.count("Going on after epoch 1") == 1
    found = numbers(study)
    assert len(found) == 3
    assert {run: found[run] for run in whole} == whole


def test_a_finished_run_of_other_circumstances_is_skipped_with_a_note(trained, capsys):
    done = trained()
    summary = done.summary
    changed = {"threads": 9, "versions": summary["versions"] | {"torch": "1.0"}}
    (done.out / "summary.json").write_text(json.dumps(summary | changed))
    capsys.readouterr()
    trained()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Finished before")
    assert "threads 9, now 1; torch 1.0, now " in said[1]


def test_a_yaml_edited_after_the_launch_does_not_reach_its_jobs(tmp_path):
    """In a copy of the project, whose yaml changes when the first of two jobs has begun."""
    for name in ("cct", "conf"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    shutil.copy(ROOT / "train.py", tmp_path / "project")
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "project/train.py"), "-m", *TINY, "seed=0,1", "epochs=3"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PYTHONPATH": str(tmp_path / "project"), "PATH": "/usr/bin:/bin"},
    )
    assert process.stdout is not None
    while "[Epoch 1]" not in (line := process.stdout.readline()):
        assert line or process.poll() is None
    yaml = tmp_path / "project/conf/optimizer/adamw.yaml"
    yaml.write_text(yaml.read_text().replace("weight_decay: 0.03", "weight_decay: 0.9"))
    rest = process.communicate(timeout=100)[0]
    assert process.returncode == 0, rest
    assert "weight_decay 0.9" not in rest
    assert len(runs_in(tmp_path / "outputs/default")) == 2
    assert len({path.parent for path in runs_in(tmp_path / "outputs/default")}) == 1


def test_a_key_that_only_some_members_have_is_refused_with_those_that_lack_it():
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        config.jobs_of(
            [
                "-m",
                "data=digits",
                "mixer=dense,random,fixed_random",
                "mixer.scores.std=1",
                "seed=0,1",
            ]
        )
    assert str(refusal.value).startswith("mixer.scores.std=1: no such setting")
    assert "(of 6 jobs in: mixer=dense seed=0, mixer=dense seed=1)" in str(refusal.value)


def test_four_launches_at_once_train_each_run_once(tmp_path):
    arguments = [sys.executable, str(ROOT / "train.py"), *TINY, "epochs=40"]
    started = [
        subprocess.Popen(arguments, cwd=tmp_path, stdout=-1, stderr=-1, text=True) for _ in range(4)
    ]
    ended = [(process.communicate(timeout=120), process) for process in started]
    codes = sorted(process.returncode for _, process in ended)
    assert codes == [0, 2, 2, 2], ended
    (winner,) = (process.pid for _, process in ended if process.returncode == 0)
    for (_, errors), process in ended:
        if process.returncode == 2:
            assert errors.count("\n") == 1
            assert f"process {winner} on " in errors
    (out,) = runs_in(tmp_path / "outputs/default")
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 40


def test_the_lock_of_a_dead_process_is_taken_over(trained):
    done = trained()
    (done.out / "run.pid").write_text("process 1 on elsewhere")  # as a kill leaves it
    (done.out / "summary.json").write_text(json.dumps(done.summary | {"status": "running"}))
    assert state_of(done.out).status == "interrupted"
    trained()
    assert done.summary["status"] == "finished"
    assert not (done.out / "run.pid").exists()


def test_the_status_of_a_study_is_told(trained, tmp_path, capsys):
    from cct.directory import owned

    finished, failed, running, elsewhere = (trained(f"seed={seed}") for seed in range(4))
    for run, facts in (
        (failed, {"status": "failed", "reason": "the loss is nan at step 3"}),
        (running, {"status": "running", "epochs_asked": 10}),
        (elsewhere, {"status": "running", "process": {"pid": 7, "host": "node9"}}),
    ):
        (run.out / "summary.json").write_text(json.dumps(run.summary | facts))
    trained("seed=0", "rerun=true")  # which leaves a directory that is not counted
    study = tmp_path / "outputs/default"
    (study / "launches").mkdir()
    jobs = [{"directory": str(finished.out)}, {"directory": str(finished.out.with_name("seed8"))}]
    OmegaConf.save(OmegaConf.create({"jobs": jobs}), study / "launches" / "2026.yaml")
    assert len(launched_in(study)) == 2
    capsys.readouterr()
    with owned(running.out):
        assert status.main([str(study)]) == 1
    said = capsys.readouterr().out.splitlines()
    rows = {line.split()[-1].rpartition("/")[2]: line.split() for line in said if "/seed" in line}
    assert [rows[f"seed{n}"][0] for n in (0, 1, 2, 3, 8)] == [
        *("finished", "failed", "running", "running", "missing"),
    ]
    assert rows["seed2"][1] == "2/10"
    assert "    the loss is nan at step 3" in said
    assert any(line.startswith("    on node9, last heard of ") for line in said)
    assert said[-1].endswith("1 finished, 1 failed, 2 running, 1 missing")
    assert max(map(len, said[:-1])) <= 100
    with pytest.raises(SystemExit, match="2"):
        status.main([str(tmp_path / "nowhere")])


def test_memory_does_not_grow_from_job_to_job(tmp_path):
    code = (
        "import re, sys; sys.argv = ['train.py', '-m', *{arguments!r}]\n"
        "import train\n"
        "from cct import sweep\n"
        "attempt = sweep.attempt\n"
        "def watched(*given, **named):\n"
        "    attempt(*given, **named)\n"
        "    print('RSS', re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "sweep.attempt = watched\n"
        "train.start(sys.argv[1:])"
    ).format(arguments=[*TINY, "seed=range(12)", "epochs=1"])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    memory = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("RSS ")]
    assert len(memory) == 12, done.stderr
    assert memory[-1] < memory[3] + 15_000  # KiB


def test_a_signal_between_or_in_jobs_ends_the_sweep_and_the_same_line_finishes_it(tmp_path):
    arguments = [sys.executable, str(ROOT / "train.py"), "-m", *TINY, "seed=0,1", "epochs=30"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    while "[Epoch 3]" not in (line := process.stdout.readline()):
        assert line or process.poll() is None
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    assert "1 interrupted, 1 not run" in said
    began = time.monotonic()
    assert subprocess.run(arguments, cwd=tmp_path, capture_output=True).returncode == 0
    assert time.monotonic() - began < 100
    assert status.main([str(tmp_path / "outputs/default")]) == 0
