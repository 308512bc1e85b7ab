"""Going on with a run: by the same command, by its directory, with more epochs, or anew."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from cct import config, resume
from cct.record import RESULT_EVENTS
from tests.conftest import TINY, Trained
from train import run


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Trained]:
    """Train a tiny model with the record of its overrides that Hydra's job would leave."""

    def train(*overrides: str) -> Trained:
        given = [*TINY, "threads=1", *overrides]
        asked = config.compose(given)
        out = tmp_path / "outputs" / "default" / asked.name / f"seed{asked.cfg.seed}"
        run(asked, out)
        OmegaConf.save(OmegaConf.create(given), out / ".hydra" / "overrides.yaml")
        return Trained(out)

    return train


def unfinished(done: Trained, epochs: int) -> None:
    """Make a finished run look as if it had been killed after some epochs."""
    (done.out / "summary.json").write_text(json.dumps(done.summary | {"status": "interrupted"}))
    lines = (done.out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (done.out / "metrics.jsonl").write_text("".join(lines[:epochs]))


def go_on(folder: Path, *overrides: str) -> Trained:
    asked, out = resume.resumed(folder, [f"resume={folder}", *overrides])
    run(asked, out, None if out == folder else folder)
    return Trained(out)


def equal(one: Trained, other: Trained) -> bool:
    return one.numbers == other.numbers and all(
        torch.equal(weight, other.weights[name]) for name, weight in one.weights.items()
    )


def test_a_directory_goes_on_with_what_is_recorded_there(recorded, trained, capsys):
    whole = trained("mixer=dense", "epochs=3", study="whole")
    done = recorded("mixer=dense", "epochs=3")
    for name in ("last.pt", "best.pt"):
        (done.out / name).unlink(missing_ok=True)
    unfinished(done, 2)  # of whose three epochs last.1.pt has two
    capsys.readouterr()
    assert go_on(done.out).out == done.out
    assert equal(done, whole)
    assert "Going on after epoch 2" in capsys.readouterr().out


def test_curves_drop_what_is_trained_again(recorded):
    done = recorded("epochs=3")
    (done.out / "last.pt").unlink()
    unfinished(done, 3)
    before = {*done.out.glob("events.*")}
    go_on(done.out)
    (path,) = {*done.out.glob("events.*")} - before - {*done.out.glob(RESULT_EVENTS)}
    starts = [
        event.step for event in EventFileLoader(str(path)).Load() if event.HasField("session_log")
    ]
    assert starts == [3]
    assert len([*done.out.glob(RESULT_EVENTS)]) == 1  # in place of the earlier one
    events = EventAccumulator(str(done.out)).Reload()
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert steps == ([3] if tag.startswith("result/") else [1, 2, 3])


def test_what_was_finished_is_said_and_left(recorded, capsys):
    done = recorded()
    before = {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}
    capsys.readouterr()
    go_on(done.out)
    assert capsys.readouterr().out.startswith("Finished before")
    assert before == {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["mixer=dense"], "mixer.scores._target_=cct.mixers.scores.Dense (there cct."),
        (["model.dim=32", "seed=2"], "seed=2 (there 0), model.dim=32 (there 16)"),
        (["epochs=1"], "epochs=1 is less than its 2"),
        (["study=other"], "study=other (there default)"),
        (["rerun=true"], "rerun=true: has no meaning with resume="),
        (["dry_run=true"], "dry_run=true: has no meaning with resume="),
        (["epoch=3"], "epoch=3: no such setting"),
        (["device=tpu", "model.dim=0"], "model.dim=0: must be"),
    ],
)
def test_what_would_be_another_run_is_refused_with_both_values(recorded, overrides, line):
    done = recorded()
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the parameters hold the match
        resume.resumed(done.out, overrides)
    assert line in str(refusal.value)


def test_a_setting_given_again_is_no_change(recorded):
    done = recorded("mixer=dense", "model.heads=4")
    asked, out = resume.resumed(done.out, ["mixer=dense", "model.heads=4", "threads=auto"])
    assert out == done.out
    assert asked.cfg.threads == "auto"
    assert asked.name == done.summary["name"]


def test_a_default_that_changed_since_is_no_change(recorded):
    done = recorded()
    path = done.out / ".hydra/config.yaml"
    path.write_text(path.read_text().replace("weight_decay: 0.03", "weight_decay: 0.05"))
    asked, out = resume.resumed(done.out, ["threads=auto"])
    assert out == done.out
    assert asked.cfg.optimizer.weight_decay == 0.05
    with pytest.raises(ValueError, match=r"weight_decay=0\.06 \(there 0\.05\)"):
        resume.resumed(done.out, ["optimizer.weight_decay=0.06"])


def test_a_place_without_a_run_is_refused(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="there is no run in this directory"):
            resume.resumed(place, [])


def test_a_longer_run_starts_from_a_copy_and_leaves_the_old_one(recorded, capsys):
    done = recorded("epochs=2")
    before = {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}
    longer = go_on(done.out, "epochs=4")
    assert before == {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}
    assert longer.out.parent.name == config.compose([*TINY, "epochs=4"]).name
    assert longer.rows[:2] == done.rows
    assert [row["epoch"] for row in longer.rows] == [1, 2, 3, 4]
    told = longer.summary["continued_from"]
    assert (longer.out / told["directory"]).resolve() == done.out
    assert told["epochs"] == 2
    assert longer.summary["status"] == "finished"
    said = capsys.readouterr().out
    assert "Learning rate of its last epoch 0.001, of the next 0.001" in said
    before = {path: path.read_bytes() for path in longer.out.iterdir() if path.is_file()}
    go_on(done.out, "epochs=4")  # the same again is finished
    assert before == {path: path.read_bytes() for path in longer.out.iterdir() if path.is_file()}
    (longer.out / "last.pt").unlink()
    unfinished(longer, 3)
    go_on(done.out, "epochs=4")  # and goes on with its own state
    assert "Going on after epoch 3" in (longer.out / "train.log").read_text()


def test_a_copy_that_was_cut_short_is_made_again(recorded, monkeypatch):
    from cct import checkpoint

    done = recorded("epochs=2")
    save = checkpoint.save

    def die(path: Path, **state: object) -> None:
        if path.name == "last.pt":
            raise KeyboardInterrupt
        save(path, **state)

    monkeypatch.setattr(checkpoint, "save", die)
    with pytest.raises(KeyboardInterrupt):
        go_on(done.out, "epochs=3")
    monkeypatch.setattr(checkpoint, "save", save)
    longer = go_on(done.out, "epochs=3")
    assert [row["epoch"] for row in longer.rows] == [1, 2, 3]
    assert longer.rows[:2] == done.rows


def test_another_thread_count_is_told_to_end_exactness(recorded, capsys, monkeypatch):
    from cct import machine

    done = recorded("epochs=3")
    (done.out / "last.pt").unlink()
    unfinished(done, 3)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    capsys.readouterr()
    go_on(done.out, "threads=2")
    assert "may differ in their last bits: threads 1, now 2" in capsys.readouterr().out


def test_resume_true_and_false(trained):
    with pytest.raises(ValueError, match="resume=true: there is no run to go on with"):
        trained("resume=true")
    done = trained("resume=false")
    with pytest.raises(ValueError, match=r"resume=false: .* holds this run already \(finished\)"):
        trained("resume=false")
    assert trained("resume=true").out == done.out


def test_a_rerun_puts_the_old_run_aside(trained):
    done = trained()
    (done.out / "mark").touch()
    again = trained("rerun=true")
    assert equal(done, again)
    assert not (again.out / "mark").exists()
    assert (done.out.with_name("seed0.old1") / "mark").exists()
    trained("rerun=true")
    assert sorted(path.name for path in done.out.parent.iterdir()) == [
        "seed0",
        "seed0.old1",
        "seed0.old2",
    ]


def test_a_running_run_is_not_put_aside(trained):
    from cct.directory import owned

    done = trained()
    with owned(done.out), pytest.raises(ValueError, match="is training this run"):
        trained("rerun=true")
    assert done.out.exists()


def test_epochs_since_the_last_state_are_trained_again_to_the_same_numbers(trained, monkeypatch):
    from cct import loop

    asked = ["epochs=5", "checkpoint.every=3", "mix=mixup_cutmix", "augment=autoaugment"]
    whole = trained(*asked, study="whole")
    tested, calls = loop.tested, []

    def stop_in_the_fifth_epoch(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return tested(*arguments)

    monkeypatch.setattr(loop, "tested", stop_in_the_fifth_epoch)
    with pytest.raises(KeyboardInterrupt):
        trained(*asked)
    monkeypatch.setattr(loop, "tested", tested)
    done = trained(*asked)
    assert equal(done, whole)
    log = (done.out / "train.log").read_text()
    assert "Interrupted; the same command goes on after epoch 3" in log
    assert "Going on after epoch 3" in log
    assert "Epochs trained again, as their state was not saved: 1" in log


def test_without_checkpoints_a_run_begins_again(trained):
    whole = trained("epochs=2", study="whole")
    done = trained("epochs=2", "checkpoint=none")
    assert not [*done.out.glob("*.pt")]
    assert done.numbers == whole.numbers
    unfinished(done, 1)
    assert trained("epochs=2", "checkpoint=none").numbers == whole.numbers


def test_no_epochs_are_one_evaluation(trained):
    done = trained("epochs=0")
    (row,) = done.rows
    assert row["epoch"] == 0
    assert row["train_loss"] is None
    assert row["test_count"] == 20
    assert done.summary["final_top1"] == row["test_top1"]
    assert done.summary["status"] == "finished"
    longer = trained("epochs=1")
    first = torch.load(done.out / "last.pt")["model"]
    assert first.keys() == longer.weights.keys()


def test_stray_files_of_a_killed_process_are_removed(trained):
    done = trained()
    unfinished(done, 1)
    for name in ("last.pt.tmp", "last.new.pt", "summary.json.tmp"):
        shutil.copy(done.out / "last.pt", done.out / name)
    (done.out / "last.pt").unlink()
    trained()
    assert not [*done.out.glob("*.tmp"), *done.out.glob("last.new.pt")]
