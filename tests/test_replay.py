"""A recorded run trained again: equal numbers are said to be, others are told."""

import json
import signal

import pytest
import torch
from omegaconf import OmegaConf

from scripts import replay
from tests.conftest import TINY


@pytest.fixture
def recorded(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    done = trained("mixer=dense")
    OmegaConf.save(OmegaConf.create([*TINY, "mixer=dense"]), done.out / ".hydra/overrides.yaml")
    yield done
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_equal_numbers_are_said_to_be(recorded, capsys):
    assert replay.main([str(recorded.out)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"equal: {recorded.out} and outputs/replay/dense-baseline-")
    assert replay.main([str(recorded.out)]) == 0  # again, the earlier replay put aside


def test_a_number_that_differs_is_named_with_what_may_be_the_reason(recorded, capsys):
    rows = recorded.rows
    rows[1]["test_loss"] += 1e-9
    (recorded.out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (recorded.out / "summary.json").write_text(json.dumps(recorded.summary | {"threads": 7}))
    assert replay.main([str(recorded.out)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith("not equal: epoch 2: test_loss ")
    assert said[-1] == "the recorded run had threads 7, now 1"


def test_weights_that_differ_are_named(recorded, capsys):
    state = torch.load(recorded.out / "last.1.pt")
    torch.save(state | {"epoch": 2}, recorded.out / "last.pt")
    assert replay.main([str(recorded.out)]) == 1
    assert "not equal: weights: 39 of 39, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["epochs=3"], "replay.py: epochs=3: another schedule has other numbers"),
        (["mixer=random"], "this would be another run: mixer.scores._target_"),
    ],
)
def test_another_run_is_no_replay(recorded, overrides, line, capsys):
    assert replay.main([str(recorded.out), *overrides]) == 2
    assert line in capsys.readouterr().err


def test_a_place_without_a_run_is_refused(tmp_path, capsys):
    assert replay.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
