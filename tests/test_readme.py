"""The README is true: what it shows is done here, in a copy of the project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_it_names_every_choice():
    table = README[README.index("## What can be chosen") : README.index("Each choice is a file")]
    for group in ("mixer", "pool", "model", "data", "augment", "optimizer", "schedule"):
        for option in options(group):
            assert f"`{option}`" in table


def test_every_yaml_begins_with_what_it_is():
    for path in CONF.rglob("*.yaml"):
        assert path.read_text().startswith("# ")
