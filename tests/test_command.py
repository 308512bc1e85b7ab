"""What a person sees at the command line: exit codes, one line for a mistake, sweeps, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cct import config
from tests.conftest import ROOT, TINY


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("epoch=3", "train.py: epoch=3: no such setting; did you mean epochs?"),
        ("data=digits model.heads=3", "train.py: model.heads=3 does not divide model.dim=128"),
        ("data=digits device=cuda", "train.py: device=cuda: no CUDA device can be used here"),
        ("data=folder data.root=nowhere", "no such directory"),
        ("-m data=digits mixer=dense model.heads=2,3", "model.heads=3 does not divide"),
        ("-m data=digits epochs=1 schedule.warmup_epochs=1,2", "warmup_epochs=2 exceeds epochs=1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_and_leaves_nothing(
    command, tmp_path, overrides, line
):
    began = time.monotonic()
    done = command(*overrides.split())
    assert time.monotonic() - began < 10  # about two seconds on a quiet machine
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_the_full_error_is_shown_on_request(command):
    done = command("epoch=3", HYDRA_FULL_ERROR="1")
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_several_processes_are_refused(command):
    done = command(*TINY, WORLD_SIZE="4")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "WORLD_SIZE=4" in done.stderr


def test_a_wrong_override_is_answered_without_the_slow_imports():
    code = (
        "import sys; sys.argv = ['train.py', 'data=digits', 'model.dim=x']\n"
        "import train\n"
        "try: train.start(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 2\n"
        "slow = {'torchvision', 'timm', 'sklearn', 'tensorboard'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_the_configuration_is_printed_whole(command):
    shown = command("--cfg", "job", "mixer=random").stdout
    for line in ("std: 0.02", "epochs: 200", "eps: 1.0e-08", "padding: 4", "warmup_epochs: null"):
        assert line in shown


def test_a_run_that_fails_ends_with_exit_code_1_and_says_where(command, tmp_path):
    done = command(*TINY, "optimizer.lr=1e30", "schedule=constant")
    assert done.returncode == 1
    (summary,) = tmp_path.rglob("summary.json")
    said = json.loads(summary.read_text())
    assert said["status"] == "failed"
    assert said["reason"].startswith("the loss is nan at step")
    assert done.stderr.startswith("train.py: the loss is nan at step")
    assert done.stderr.count("\n") == 1


def test_a_sweep_runs_every_job_goes_on_after_a_failed_one_and_skips_what_is_done(
    command, tmp_path
):
    sweep = ["-m", *TINY, "schedule=constant", "optimizer.lr=1e-3,1e30,1e-2", "epochs=1,2"]
    done = command(*sweep)
    assert done.returncode == 1
    states = [json.loads(path.read_text())["status"] for path in tmp_path.rglob("summary.json")]
    assert sorted(states) == ["failed"] * 2 + ["finished"] * 4
    again = command(*sweep)
    assert again.stdout.count("Finished before") == 4


def test_hydra_writes_nothing_of_its_own_into_a_run(command, tmp_path):
    assert command(*TINY).returncode == 0
    (out,) = (path.parent for path in tmp_path.rglob("summary.json"))
    name = config.compose(TINY).name
    assert out.relative_to(tmp_path) == Path(f"outputs/default/{name}/seed0")
    found = {path.name for path in out.iterdir() if not path.name.startswith("events.out")}
    assert found == {
        ".hydra",
        "best.pt",
        "last.1.pt",
        "last.pt",
        "metrics.jsonl",
        "run.lock",
        "summary.json",
        "train.log",
    }
    assert {path.name for path in (out / ".hydra").iterdir()} == {
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    }


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_in_order_and_the_same_command_goes_on(tmp_path, sent, code):
    arguments = [sys.executable, str(ROOT / "train.py"), *TINY, "epochs=100000"]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("[Epoch 2]"):
        assert process.poll() is None
    process.send_signal(sent)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert "Interrupted; the same command goes on after epoch" in said
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_text())["status"] == "interrupted"


def test_a_killed_run_goes_on_to_the_numbers_of_an_undisturbed_one(command, tmp_path):
    overrides = [*TINY, "epochs=30"]
    arguments = [sys.executable, str(ROOT / "train.py"), *overrides]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("[Epoch 3]"):
            assert process.poll() is None
        process.kill()
    assert command(*overrides).returncode == 0
    assert command(*overrides, "study=undisturbed").returncode == 0
    first, second = (
        [
            {k: v for k, v in json.loads(line).items() if k not in ("seconds", "images_per_second")}
            for line in path.read_text().splitlines()
        ]
        for path in sorted(tmp_path.rglob("metrics.jsonl"))
    )
    assert [row["epoch"] for row in first] == list(range(1, 31))
    assert first == second


def test_another_working_directory_and_odd_paths_are_fine(command, tmp_path):
    from PIL import Image

    root = tmp_path / "an odd=path, ä"
    for half, count in (("train", 3), ("test", 1)):
        for label in ("cat", "dog"):
            (root / half / label).mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (16, 16), (number * 60, 0, 0))
                image.save(root / half / label / f"{number}.png")
    settings = ["data=folder", f"data.root='{root}'", "epochs=1", "threads=1", "model.dim=16"]
    done = command(*settings, "data.cache=kept", "hydra.job.chdir=true")
    assert done.returncode == 0, done.stderr
    assert len([*tmp_path.glob("kept/*.pt")]) == 1
    (summary,) = tmp_path.rglob("summary.json")
    assert "not the official CIFAR-10" in json.loads(summary.read_text())["data"]
    assert not any(mark in str(summary.relative_to(tmp_path)) for mark in "=, ")
    assert command(*settings).stdout.startswith("Finished before")
    assert os.listdir(tmp_path / "outputs") == ["default"]
