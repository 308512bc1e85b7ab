"""A run: what it leaves behind, that every setting counts, and that it can be repeated."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cct import config
from cct.config import options
from tests.conftest import TINY, Trained
from train import run

COLUMNS = ["epoch", "lr", "train_loss", "train_top1", "test_loss", "test_top1"]
COLUMNS += ["test_correct", "test_count", "seconds", "images_per_second"]


def test_a_run_leaves_its_record(trained: Callable[..., Trained]):
    done = trained("schedule.warmup_epochs=null")
    assert [list(row) for row in done.rows] == [COLUMNS, COLUMNS]
    assert [row["epoch"] for row in done.rows] == [1, 2]
    for row in done.rows:
        assert row["test_top1"] == 100 * row["test_correct"] / row["test_count"]
        assert row["test_count"] == 20
    summary = done.summary
    assert summary["status"] == "finished"
    assert summary["final_top1"] == done.rows[-1]["test_top1"]
    assert summary["best_top1"] == max(row["test_top1"] for row in done.rows)
    assert done.rows[summary["best_epoch"] - 1]["test_top1"] == summary["best_top1"]
    assert summary["epochs"] == 2
    assert summary["seconds"] > sum(row["seconds"] for row in done.rows)  # start-up counts
    assert summary["choices"]["mixer"] == "self_attention"
    assert summary["schedule"]["warmup_epochs"] == 1  # the number used, not the null asked for
    assert summary["name"].endswith(summary["configuration_hash"])
    assert len(summary["fingerprint"]) == 64
    assert {"torch", "python", "timm"} <= set(summary["versions"])
    assert summary["threads"] == 1
    assert summary["device"] == "cpu"
    assert summary["precision"] == "fp32"
    assert summary["left_out"]["study"] == "default"


def test_a_checkpoint_loads_without_trust_and_gives_the_recorded_result(trained):
    done = trained()
    for name in ("last.pt", "best.pt"):
        state = torch.load(done.out / name)  # weights_only is the default
        assert set(state) == {
            *("model", "optimizer", "epoch"),
            *("config", "name", "seed", "versions"),
        }
    assert torch.load(done.out / "last.pt")["epoch"] == 2
    assert torch.load(done.out / "best.pt")["epoch"] == done.summary["best_epoch"]
    assert torch.load(done.out / "last.pt")["config"]["model"]["dim"] == 16
    assert not list(done.out.glob("*.tmp"))


def test_tensorboard_has_one_run_with_curves_pictures_and_hyperparameters(trained):
    done = trained("mixer=mixture")
    assert len(list(done.out.rglob("events.out*"))) == 2  # curves; results, written at the end
    events = EventAccumulator(str(done.out))
    events.Reload()
    tags = events.Tags()
    curves = {"loss/train", "loss/test", "top1/train", "top1/test", "learning_rate"}
    assert curves | {"images_per_second", "gradient_norm"} <= set(tags["scalars"])
    assert [point.step for point in events.Scalars("top1/test")] == [1, 2]
    assert events.Scalars("top1/test")[1].value == pytest.approx(done.rows[1]["test_top1"])
    assert set(tags["images"]) == {"pooling_weights", "mixing_map/block1", "mixing_map/block2"}
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_the_console_has_one_line_an_epoch_in_the_published_form(
    trained, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    done = trained()
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert sum(line.startswith("[Epoch ") for line in lines) == 2
    assert re.fullmatch(
        rf"\[Epoch 2\] Top-1 {done.rows[1]['test_top1']:.2f} Time: \d+\.\d\d", lines[-2]
    )
    best, final = done.summary["best_top1"], done.summary["final_top1"]
    minutes = done.summary["seconds"] / 60
    assert lines[-1] == (
        f"Script finished in {minutes:.2f} minutes, "
        f"best top-1: {best:.2f}, final top-1: {final:.2f}"
    )
    assert (done.out / "train.log").read_text() == out
    assert max(map(len, lines)) <= 80


def test_softmax_over_the_batch_prints_the_batch_beside_the_result(trained, capsys):
    done = trained("pool=softmax_batch", "eval_batch_size=7")
    assert capsys.readouterr().out.endswith("batches of 7, on which this pool depends\n")
    other = trained("pool=softmax_batch", "eval_batch_size=20")
    assert other.out.parent != done.out.parent


@pytest.mark.parametrize("pool", options("pool"))
@pytest.mark.parametrize("mixer", options("mixer"))
def test_every_pair_trains_and_learns_something(trained, mixer, pool):
    done = trained(f"mixer={mixer}", f"pool={pool}", "epochs=1")
    fresh = trained(f"mixer={mixer}", f"pool={pool}", "epochs=1", "optimizer.lr=1e-30", study="x")
    moved = {k for k, v in done.weights.items() if not torch.equal(v, fresh.weights[k])}
    frozen = {key for key in done.weights if "fixed" in mixer and key.endswith("scores.logits")}
    assert moved == set(done.weights) - frozen - {"pool.score.bias"} | (moved & {"pool.score.bias"})
    assert done.summary["status"] == "finished"


def digest(done: Trained) -> str:
    state = torch.load(done.out / "last.pt")
    tensors = [*state["model"].values()]
    tensors += [t for one in state["optimizer"]["state"].values() for t in one.values()]
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def test_one_configuration_and_seed_is_one_run(trained):
    first, second = (trained("mixer=mixture", study=study) for study in ("a", "b"))
    assert first.numbers == second.numbers
    assert digest(first) == digest(second)
    other = trained("mixer=mixture", "seed=1")
    assert digest(other) != digest(first)
    assert other.numbers != first.numbers


def test_accuracy_does_not_depend_on_the_evaluation_batch(trained):
    rows = [trained(f"eval_batch_size={size}", study=f"s{size}").rows for size in (1, 7, 20, 999)]
    for other in rows[1:]:
        assert [row["test_correct"] for row in other] == [row["test_correct"] for row in rows[0]]


def test_the_last_smaller_batch_is_trained_on(trained):
    one, two = trained("batch_size=39", "epochs=1"), trained("batch_size=40", "epochs=1")
    assert one.rows[0]["train_loss"] != two.rows[0]["train_loss"]
    steps = [
        int(next(iter(torch.load(d.out / "last.pt")["optimizer"]["state"].values()))["step"])
        for d in (one, two)
    ]
    assert steps == [2, 1]


def test_more_than_all_images_is_one_batch_and_one_image_is_enough(trained):
    assert trained("batch_size=1000").summary["status"] == "finished"
    assert trained("batch_size=1", "data.train_size=10").summary["status"] == "finished"


# One change of every setting. Each must show in the numbers, or else in the record.
KNOBS = {
    "epochs": "3",
    "batch_size": "8",
    "eval_batch_size": "3",
    "seed": "1",
    "seeds.init": "1",
    "seeds.order": "1",
    "seeds.augment": "1",
    "seeds.dropout": "1",
    "checkpoint.every": "2",
    "checkpoint.keep": "1",
    "deterministic": "false",
    "label_smoothing": "0.2",
    "device": "cpu",
    "precision": "bf16",
    "threads": "auto",
    "study": "other",
    "model.dim": "32",
    "model.depth": "1",
    "model.heads": "4",
    "model.mlp_ratio": "2",
    "model.kernel_size": "5",
    "model.conv_layers": "3",
    "model.positional_embedding": "none",
    "model.dropout": "0.1",
    "model.attention_dropout": "0.3",
    "model.stochastic_depth": "0.3",
    "optimizer.lr": "1e-2",
    "optimizer.weight_decay": "0.5",
    "optimizer.betas": "[0.8,0.99]",
    "optimizer.eps": "1e-3",
    "schedule.warmup_epochs": "2",
    "augment.padding": "2",
    "augment.flip": "true",
    "augment.random_erasing": "0.5",
    "mix.mixup": "0.2",
    "mix.cutmix": "0.2",
    "mix.probability": "0.5",
    "mix.switch": "0",
    "mix.off_epoch": "2",
    "data.image_size": "24",
    "data.train_size": "30",
    "data.test_size": "10",
    "pool.identity_weight": "2",
    "pool.softmax_weight": "3",
    "pool.axis": "batch",
    "mixer.components": "[dense,random]",
    "mixer.parts.random.scores.std": "2",
}
RECORDED = {"device", "threads", "study", "eval_batch_size", "deterministic"}
RECORDED |= {"checkpoint.every", "checkpoint.keep"}  # in the record, not in the numbers
LEARNED = ["autoaugment", "randaugment", "trivialaugment"]
MIXES, MIXING = ["mixup", "cutmix"], ["probability=0.2", "off_epoch=2"]
FINISHING = ["padding=0", "flip=false", "random_erasing=0.5"]
BASE = ["mixer=mixture", "pool=softmax_plus_x", "augment=crop", "mix=mixup_cutmix"]
BASE += ["optimizer.lr=5e-3"]


def leaves(node: dict, prefix: str = "") -> set[str]:
    found = set()
    for key, value in node.items():
        if isinstance(value, dict):
            found |= leaves(value, f"{prefix}{key}.")
        elif not key.startswith("_"):
            found.add(f"{prefix}{key}")
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Trained:
    out = tmp_path_factory.mktemp("base")
    run(config.compose([*TINY, *BASE]), out)
    return Trained(out)


@pytest.mark.parametrize("knob", KNOBS)
def test_every_setting_changes_the_numbers_or_the_record(trained, base, knob):
    done = trained(*BASE, f"{knob}={KNOBS[knob]}")
    if knob in RECORDED:
        for row, plain in zip(done.numbers, base.numbers, strict=True):
            assert row.pop("train_top1") is plain["train_top1"] is None
            known = {key: plain[key] for key in row}
            assert row == pytest.approx(known, rel=1e-3)  # batch size and threads round differently
        now, before = (
            OmegaConf.select(OmegaConf.create(one.summary["left_out"]), knob)
            for one in (done, base)
        )
        assert now != before
    else:
        assert done.numbers != base.numbers
        assert done.summary["name"] != base.summary["name"] or knob == "seed"


def test_no_setting_is_missing_from_that_list():
    settings = OmegaConf.to_container(config.compose([*TINY, *BASE])[0])
    assert isinstance(settings, dict)
    assert leaves(settings) == {
        *KNOBS,
        "compile",
    }  # takes long, so it has one test in test_plain.py


@pytest.mark.parametrize(
    ("overrides", "knob"),
    [
        ("mixer=random", "mixer.scores.std=1"),
        ("mixer=fixed_random", "mixer.scores.std=2"),
        ("mixer=factorized_random", "mixer.scores.rank=4"),
        ("mixer=factorized_random", "mixer.scores.std=1"),
        ("mixer=factorized_dense", "mixer.scores.factors=[4,16]"),
        ("model.positional_embedding=none", "model.positional_embedding=sine"),
        ("schedule=constant epochs=3", "schedule=warmup_cosine"),
        ("augment=none", "augment=crop"),
        *((f"augment={name}", f"augment.{knob}") for name in LEARNED for knob in FINISHING),
        ("augment=randaugment", "augment.operations=1"),
        ("augment=randaugment", "augment.magnitude=3"),
        ("augment=randaugment", "augment.magnitude_std=2"),
        ("augment=randaugment", "augment.probability=1"),
        *((f"mix={name}", f"mix.{name}=0.2") for name in MIXES),
        *((f"mix={name}", f"mix.{knob}") for name in MIXES for knob in MIXING),
        *(("mix=none", f"mix={name}") for name in MIXES),
    ],
)
def test_the_settings_of_other_choices_change_the_numbers(trained, overrides, knob):
    base = overrides.split()
    assert trained(*base).numbers != trained(*base, knob).numbers


def test_the_settings_of_synthetic_and_cifar_data_are_in_the_name():
    names = {config.compose(["data=synthetic", f"data.classes={n}"])[1] for n in (10, 20)}
    names |= {config.compose([f"data.{k}=[0.5,0.5,0.5]"])[1] for k in ("mean", "std")}
    assert len(names) == 4


def test_a_finished_run_is_left_alone(trained, capsys):
    done = trained()
    before = {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}
    capsys.readouterr()
    trained()
    said = capsys.readouterr().out
    assert said.startswith("Finished before, best top-1: ")
    assert before == {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}


@pytest.mark.parametrize("mix", ["none", "mixup_cutmix"])
def test_a_stopped_run_goes_on_to_the_numbers_of_an_undisturbed_one(trained, monkeypatch, mix):
    from cct import loop

    asked = ["epochs=3", "mixer=mixture", f"mix={mix}"]
    whole = trained(*asked, study="whole")
    evaluate, calls = loop.evaluate, []

    def stop_in_the_second_epoch(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(loop, "evaluate", stop_in_the_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        trained(*asked)
    monkeypatch.setattr(loop, "evaluate", evaluate)
    done = trained(*asked)
    assert done.numbers == whole.numbers
    assert digest(done) == digest(whole)
    assert "Interrupted; the same command goes on after epoch 1" in (
        (done.out / "train.log").read_text()
    )


def test_a_row_without_its_checkpoint_is_written_again_not_twice(trained, monkeypatch):
    from cct import checkpoint

    whole = trained("epochs=2", study="whole")
    save, calls = checkpoint.save, []

    def die_before_the_second_last(path, **state):
        calls.append(path.name)
        if calls.count("last.new.pt") == 2:
            raise KeyboardInterrupt
        save(path, **state)

    monkeypatch.setattr(checkpoint, "save", die_before_the_second_last)
    with pytest.raises(KeyboardInterrupt):
        trained("epochs=2")
    monkeypatch.setattr(checkpoint, "save", save)
    assert trained("epochs=2").numbers == whole.numbers


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_checkpoint(trained):
    from cct.record import RunFailed

    overrides = ["schedule=constant", "optimizer.lr=1e30", "epochs=5"]
    with pytest.raises(RunFailed, match=r"the loss is nan at step \d+"):
        trained(*overrides)
    with pytest.raises(RunFailed):  # the same again: a failed run is not a finished one
        trained(*overrides)


def test_other_images_are_not_mixed_into_a_run(trained):
    done = trained()
    changed = done.summary | {"fingerprint": "0" * 64, "status": "interrupted"}
    (done.out / "summary.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="was trained on other images; name another study="):
        trained()


def test_a_directory_of_another_run_is_refused(trained):
    done = trained()
    with pytest.raises(ValueError, match="holds the run self_attention-baseline"):
        run(config.compose([*TINY, "mixer=dense"]), done.out)
    with pytest.raises(ValueError, match=r"of seed 0; this command is .* of seed 1"):
        run(config.compose([*TINY, "seed=1"]), done.out)


def test_two_processes_never_train_one_run(trained):
    from cct.directory import owned

    done = trained()
    (done.out / "summary.json").unlink()
    with (
        owned(done.out),
        pytest.raises(ValueError, match=f"process {os.getpid()} on .* is training this run"),
    ):
        trained()


def cut(path: Path, text: str | None) -> None:
    path.unlink() if text is None else path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("summary.json", "[1]", "summary.json is damaged"),
        ("summary.json", '{"status": "finished"}', "summary.json is damaged"),
        ("summary.json", "{", "summary.json is damaged"),
        ("metrics.jsonl", None, "metrics.jsonl has 0 epochs, last.pt 2"),
        ("metrics.jsonl", "5\n5\n", "metrics.jsonl is damaged"),
        ("metrics.jsonl", "{\n{\n", "metrics.jsonl is damaged"),
    ],
)
def test_a_damaged_record_is_refused_by_name_and_nothing_is_lost(trained, name, text, line):
    done = trained()
    summary = done.summary | {"status": "interrupted"}
    (done.out / "summary.json").write_text(json.dumps(summary))
    cut(done.out / name, text)
    files = {path: path.read_bytes() for path in done.out.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match=re.escape(line)):
        trained()
    assert files == {path: path.read_bytes() for path in files}


def test_a_refusal_removes_only_folders_that_nobody_stands_in(tmp_path, monkeypatch):
    from cct.directory import remove_empty

    here = tmp_path / "mine" / "empty"
    out = here / "outputs" / "study" / "name" / "seed0"
    out.mkdir(parents=True)
    monkeypatch.chdir(here)
    remove_empty(out)
    assert not (here / "outputs").exists()
    remove_empty(here / "run")
    assert here.exists()


def test_a_mistake_is_refused_also_where_the_run_is_finished(trained):
    trained()
    with pytest.raises(ValueError, match="device=foo"):
        trained("device=foo")
