"""The benchmark measures what it says, and refuses what it cannot measure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from cct import tuning
from cct.benchmark import subjects
from cct.benchmark.bench import Asked, Bench
from cct.benchmark.start import first_step
from cct.benchmark.turns import Failed
from scripts import benchmark
from tests.conftest import ROOT, TINY

ASKED = Asked(device="cpu", precision="fp32", threads=1, images=None)


@pytest.fixture(autouse=True)
def _untuned(monkeypatch):
    monkeypatch.setattr(tuning, "prepare", lambda: None)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--only=train_step,speed", "no section speed; there are train_step, augment, epoch"),
        ("--device=gpu", "device=gpu: choices are"),
        ("--threads=0", "threads=0: auto or a whole number"),
        ("--threads=four", "threads=four: auto or a whole number"),
        ("--threads=4096", "threads=4096: this process may use"),
        ("--images=/nowhere", "--images /nowhere: 10,000 training and 2,000 test images are"),
        ("--images=/nowhere", "no such directory"),
        ("--out=pyproject.toml", "--out pyproject.toml: File exists"),
        ("--out=/proc/new.json", "--out /proc/new.json: No such file"),
        (f"--out={'a' * 300}", "File name too long"),
        ("--images=", "--images: the name of a folder is needed"),
        ("--out=pyproject.toml/new.json", "File exists"),
        ("--precision=fp16", "invalid choice"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(wrong, said, capsys):
    try:
        code = benchmark.main([wrong])
    except SystemExit as refusal:
        code = refusal.code
    assert code == 2
    written = capsys.readouterr()
    assert said in written.err.splitlines()[-1]
    assert written.out == ""


def test_torch_is_not_imported_before_a_measuring_process_is_tuned():
    # Such a process imports the script, as every started by multiprocessing's "spawn" does.
    found = "import sys, scripts.benchmark, cct.benchmark.subjects; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", found], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_both_forms_train_the_same_model_and_only_one_is_plain():
    plain, fast = (Bench(form, ASKED, []) for form in ("plain", "fast"))
    images, labels = fast.data.train.images[:8], fast.data.train.labels[:8]
    losses = []
    for bench in (plain, fast):
        logits = bench.model.eval()(bench.normalize(images))
        losses.append(cross_entropy(logits, labels))
    torch.testing.assert_close(*losses)
    assert fast.normalize(images).is_contiguous(memory_format=torch.channels_last)
    assert not plain.normalize(images).is_contiguous(memory_format=torch.channels_last)
    assert not plain.optimizer.defaults["fused"]
    assert fast.optimizer.defaults["fused"]


def test_another_number_of_threads_than_was_set_is_not_reported():
    bench = Bench("fast", ASKED, [])
    bench.clock()
    bench.threads = 2
    with pytest.raises(RuntimeError, match="1 threads, 2 were set"):
        bench.clock()


def test_steps_move_the_weights_and_are_counted(monkeypatch):
    taken = []
    step = Bench.step
    monkeypatch.setattr(
        Bench,
        "step",
        lambda bench, *batch: taken.append(len(batch[0])) or step(bench, *batch),
    )
    sample = subjects.training("plain", ASKED, [], steps=3, batch=4)()
    assert taken == [4, 4, 4]
    assert sample["images_per_second"] > 0
    assert sample["memory"] > 50
    # Three products for each of the forward pass, but none for the images' gradient.
    multiply_adds = subjects.counted([]).multiply_adds
    first_convolution = 32 * 32 * 64 * 27
    assert sample["flops"] == 2 * (3 * multiply_adds - first_convolution)


@pytest.mark.parametrize("form", ["plain", "fast"])
def test_augmentation_and_epochs_have_speeds(form):
    assert subjects.augmentation(form, ASKED, 20)()["images_per_second"] > 0
    size = {"train": 256, "test": 20}
    build = subjects.fast_epoch if form == "fast" else subjects.loader_epoch
    sample = build(ASKED, **size, **({} if form == "fast" else {"workers": 0}))()
    assert sample["epochs_per_second"] * 256 < sample["images_per_second"]
    assert 0 < sample["share_of_evaluation"] < 0.5


def test_the_time_to_the_first_step_is_measured(tmp_path):
    assert 0.5 < first_step([*TINY, "threads=1"], str(tmp_path)) < 120
    with pytest.raises(Failed, match=r"no first step.*model\.dim"):
        first_step([*TINY, "model.dim=-1"], str(tmp_path))


def test_tables_and_samples_come_out_and_a_file_is_not_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = Path("new") / "speeds.json"
    arguments = ["--quick", "--only=augment", "--threads=1", f"--out={out}"]
    assert benchmark.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    table = [line for line in lines if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in table[2:]] == ["plain", "fast"]
    report = json.loads(out.read_text())
    assert report["machine"]["threads"] == 1
    assert len(report["augment"]["samples"]["fast"]) == 3
    assert benchmark.main(arguments) == 2
    assert json.loads(out.read_text()) == report
