"""The README is true: what it shows is done here, in a copy of the project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cct.config import CONF, options
from tests.conftest import ROOT, TINY

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project in which every file that the README shows has been written."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("cct", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", copy)
    shown = re.findall(r"^`((?:cct|conf)/[\w/.]+)`:[^`]*```\w+\n(.*?)```", README, re.M | re.S)
    assert len(shown) == 3
    for name, text in shown:
        (copy / name).write_text(text)
    return copy


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ("mixer=shift mixer.places=2", 0),
        ("mixer=shift mixer.places=-1", 2),
        ("pool=half", 0),
    ],
)
def test_the_mixer_and_the_pool_it_adds_train(project, overrides, code):
    command = [sys.executable, "train.py", *TINY, "epochs=1", *overrides.split()]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    states = [json.loads(path.read_text())["status"] for path in project.rglob("summary.json")]
    assert set(states) == {"finished"}


def test_every_choice_it_names_is_there():
    table = README[README.index("## What can be chosen") : README.index("Each choice is a file")]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.M)
    assert {group for group, _ in rows} >= {"mixer", "pool", "model", "data", "augment", "mix"}
    for group, choices in rows:
        for choice in re.findall(r"`(\w+)`", choices):
            assert choice in options(group)


def test_the_trained_model_it_reads_gives_the_recorded_result(trained):
    done = trained()
    (shown,) = re.findall(r"```python\n(import torch.*?)```", README, re.S)
    names = {}
    exec(shown.replace("outputs/default/<name>/seed0/best.pt", str(done.out / "last.pt")), names)
    data, model = names["data"], names["model"]
    with torch.no_grad():
        right = (model(data.normalize(data.test.images)).argmax(1) == data.test.labels).sum()
    assert right == done.rows[-1]["test_correct"]


def test_a_mixer_that_has_no_use_for_heads_refuses_them(project):
    command = [sys.executable, "train.py", *TINY, "mixer=shift", "model.heads=4"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "model.heads=4: has no meaning with this mixer" in done.stderr


def test_every_yaml_begins_with_what_it_is():
    for path in CONF.rglob("*.yaml"):
        assert path.read_text().startswith("# ")
