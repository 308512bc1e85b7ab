"""Runs killed at random instants; ``scripts/kill_and_resume.py`` alone does it thirty times."""

import json

import pytest

from scripts import kill_and_resume
from tests.conftest import TINY

SETTINGS = [*TINY, "epochs=40", "augment=autoaugment", "mix=mixup_cutmix", "mixer=dense"]


@pytest.mark.slow
def test_a_run_killed_five_times_ends_as_an_undisturbed_one(capsys):
    assert kill_and_resume.main(["--kills=5", *SETTINGS]) == 0
    assert "5 kills" in capsys.readouterr().out.splitlines()[-1]


def test_what_differs_is_told(trained):
    done = trained("epochs=2")
    undisturbed = kill_and_resume.result(done.out)
    assert kill_and_resume.differences(done.out, undisturbed) == []
    rows = [row | {"test_loss": 1.0} for row in done.rows]
    (done.out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (done.out / "last.1.pt").replace(done.out / "last.pt")
    assert kill_and_resume.differences(done.out, undisturbed) == [
        *("metrics", "weights", "moments", "files"),
    ]


def test_a_command_that_fails_by_itself_is_a_mistake(capsys):
    assert kill_and_resume.main(["--kills=1", "mixer=dens"]) == 2
    assert "kill_and_resume.py: exit code 2: train.py: mixer=dens" in capsys.readouterr().err
