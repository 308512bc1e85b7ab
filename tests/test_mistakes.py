"""Two tables: what is refused in one line and leaves nothing, and what is unusual but works."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from PIL import Image
from torchvision import datasets

import train
from cct import checkpoint, config
from cct.build import build_model, build_source
from cct.sources import CIFAR10
from tests.conftest import ROOT, TINY
from tests.test_sources import adopt, noise, official_archive, picture, write_folder

ONE = [*TINY, "epochs=1"]  # the command that the run in ``beside_a_run`` is of
OUT = config.compose(ONE).out


@dataclass
class Answer:
    """What a command said, with its exit code and how many seconds it took."""

    code: int | str | None
    out: str
    err: str
    seconds: float = 0.0


def enter(*arguments: str, **environment: str) -> Answer:
    """Do in this process what ``python train.py`` does, and leave it as it was."""
    out, err, code, began = StringIO(), StringIO(), 0, time.monotonic()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    GlobalHydra.instance().clear()
    with (
        pytest.MonkeyPatch.context() as here,
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        here.setattr(sys, "argv", ["train.py", *arguments])
        here.setattr(logging.root, "handlers", [])
        try:
            train.start([*arguments])
        except SystemExit as end:
            code = end.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            GlobalHydra.instance().clear()
            HydraConfig.instance().cfg = None
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(1)
    return Answer(code, out.getvalue(), err.getvalue(), time.monotonic() - began)


def shell(script: str, *arguments: str) -> Answer:
    """Run a shell's script in which ``"$@"`` is ``python train.py`` with the arguments."""
    program = [sys.executable, str(ROOT / "train.py"), *arguments]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *program], capture_output=True, text=True, timeout=120
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder but the locks of data sets, which have to stay."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
        if not (path.name.startswith(".") and path.suffix == ".lock")
    }


def refused(answer: Answer, line: str, code: int = 2) -> None:
    assert answer.code == code, answer
    assert answer.err.startswith("train.py: "), answer
    assert line in answer.err
    assert answer.err.count("\n") == 1
    assert answer.err.endswith("\n")
    assert "Traceback" not in answer.err + answer.out
    assert answer.seconds < 10


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


# Refused: the command line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("epoch=3", "train.py: epoch=3: no such setting; did you mean epochs?"),
        ("+epoch=3", "epoch=3: no such setting; did you mean epochs?"),
        ("+data.colour=red", "data.colour=red: no such setting; there are: "),
        ("seeds.foo=1", "seeds.foo=1: no such setting; there are: init, order, augment, dropout"),
        ("epochs", "epochs: not a setting of the form key=value"),
        ("epochs=ten", "epochs=ten: must be a whole number"),
        ("epochs=-1", "epochs=-1: must be a whole number at least 0"),
        ("batch_size=0", "batch_size=0: must be a whole number at least 1"),
        ("batch_size=1e99", "batch_size=1e+99: must be a whole number"),
        ("model.dim=99999999", "model.dim=99999999: must be a whole number at least 1 and at most"),
        ("model.heads=3", "model.heads=3 does not divide model.dim=128; of use: 1, 2, 4,"),
        ("mixer=densse", "mixer=densse: no such choice; there are dense,"),
        ("model=cct_9", "model=cct_9: no such choice; there are cct_2_3x2,"),
        ("checkpoint=every", "checkpoint=every: no such choice; there are last, none"),
        ("checkpoint.keep=0", "checkpoint.keep=0: must be a whole number at least 1 and at most"),
        ("deterministic=maybe", "deterministic=maybe: must be true or false or auto"),
        ("precision=fp16", "precision=fp16: must be one of auto, fp32, bf16"),
        ("optimizer.lr=nan", "optimizer.lr=nan: must be a number above 0"),
        ("optimizer.betas=[0.9]", "optimizer.betas=[0.9]: two numbers are needed"),
        ("label_smoothing=1", "label_smoothing=1: must be a number at least 0 and below 1"),
        ("schedule.warmup_epochs=9 epochs=3", "schedule.warmup_epochs=9 exceeds epochs=3"),
        ("device=cuda", "device=cuda: no CUDA device can be used here; choices are auto, cpu"),
        ("device=tpu", "device=tpu: choices are auto, cpu, cuda"),
        ("threads=9999", "threads=9999: this process may use "),
        ("study=a/b", "study=a/b: only letters, digits, _ - and ."),
        ("hydra.run.dir=x", "hydra.run.dir=x: a run's directory has its name; study= chooses"),
        (
            "--config-name other data=digits",
            "--config-name: the one configuration is conf/train.yaml",
        ),
        ("data.train_size=2000", "data.train_size=2000: there are 1437 training images"),
        ("data.image_size=0", "data.image_size=0: must be a whole number at least 1"),
        ("data.image_size=[8]", "data.image_size=[8]: one number or [height, width] is needed"),
        ("resume=true", "resume=true: there is no run to go on with in "),
        ("resume=nowhere", "resume=nowhere: there is no run in this directory"),
        (
            "-m resume=nowhere seed=1,2 data=digits",
            "resume=nowhere: with -m give resume=true, or one command",
        ),
        (
            "epochs=1 -m seed=1,2",
            "unrecognized arguments: seed=1,2 (options such as -m stand before",
        ),
        ("--epochs 3", "unrecognized arguments: --epochs (options such as -m stand before or"),
        ("seed=1,2", "seed=1,2: several values; add -m"),
        (
            "-m seed=1,-2 data=digits",
            "seed=-2: must be a whole number at least 0 and at most 1e+09 (of 2 jobs",
        ),
        (
            "-m data=digits,synthetic data.classes=3",
            "data.classes=3: no such setting; there are: image_size, train_size, test_size "
            "(of 2 jobs in: data=digits)",
        ),
        (
            "-m mixer=dense model.heads=2,3 data=digits",
            "model.heads=3 does not divide model.dim=128",
        ),
    ],
)
def test_a_wrong_command_is_refused(here: Path, arguments: str, line: str):
    data = [] if arguments.startswith("-") else ["data=digits"]
    refused(enter(*data, *arguments.split()), line)
    assert not tree(here)


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("model._target_=os.system", "only what is defined in cct or torch.optim is called"),
        ("optimizer._target_=torch.load", "only what is defined in cct or torch.optim is called"),
        ("pool._target_=stranger.Pool", "only what is defined in cct or torch.optim is called"),
        ("mixer._target_=cct.build.instantiate", "only what is defined in cct or torch.optim is"),
        ("mixer._target_=cct.record.subprocess.run", "'cct.record' is not a package"),
        ("data._target_=cctstranger.Data", "only what is defined in cct or torch.optim is called"),
        ("+hydra.callbacks.x._target_=stranger.X", "only what is defined in hydra or"),
        ("hydra.launcher._target_=stranger.X", "only what is defined in hydra or"),
        ("+hydra.job_logging.handlers.x.class=stranger.X", "only what is defined in hydra or"),
    ],
)
def test_a_strangers_configuration_runs_no_code(
    here: Path, monkeypatch: pytest.MonkeyPatch, argument: str, line: str
):
    stranger = here / "stranger.py"
    stranger.write_text("raise SystemExit('this ran')")
    monkeypatch.syspath_prepend(here)
    refused(enter("data=digits", argument), f"{argument.lstrip('+')}: ", 2)
    refused(enter("data=digits", argument), line)
    assert set(tree(here)) == {"stranger.py"}


@pytest.mark.parametrize("group", ["data", "mixer", "pool", "model"])
def test_the_configuration_in_a_strangers_checkpoint_runs_no_code(group: str):
    cfg = config.compose(ONE).cfg
    cfg[group] = {"_target_": "builtins.print", "a": "this ran"}
    saved: Any = OmegaConf.create(OmegaConf.to_container(cfg))
    with pytest.raises(ValueError, match=rf"{group}\._target_=builtins.print: only what is"):
        build_source(saved) if group == "data" else build_model(saved, 10, (32, 32))


def test_several_processes_are_refused(here: Path):
    refused(enter(*ONE, WORLD_SIZE="2"), "WORLD_SIZE=2: train.py is one process; start it as")
    assert not tree(here)


# Refused: what lies on the disk


def images(here: Path) -> Path:
    """Make ``images`` with two classes of 8x6 pixels."""
    root = here / "images"
    write_folder(root, {f"{half}/{name}": 2 for half in ("train", "test") for name in "ab"})
    return root


def no_root(here: Path) -> None: ...


def a_file_as_root(here: Path) -> None:
    (here / "images").write_text("x")


def an_empty_class(here: Path) -> None:
    write_folder(images(here), {"train/c": 0})


def mixed_sizes(here: Path) -> None:
    picture(0, 9, 9).save(images(here) / "train/b/1.png")


def a_corrupt_image(here: Path) -> None:
    path = images(here) / "train/b/1.png"
    path.write_bytes(path.read_bytes()[:60])


def a_first_image_that_is_none(here: Path) -> None:
    (images(here) / "train/a/0.png").write_text("no image")


def a_deep_image(here: Path) -> None:
    path = images(here) / "train/b/1.png"
    Image.fromarray(np.full((6, 8), 300, dtype=np.uint16)).save(path)


def one_class(here: Path) -> None:
    write_folder(here / "images", {"train/a": 2, "test/a": 1})


def an_unknown_test_class(here: Path) -> None:
    write_folder(images(here), {"test/c": 1})


def no_test_half(here: Path) -> None:
    shutil.rmtree(images(here) / "test")


@pytest.mark.parametrize(
    ("situation", "line"),
    [
        (no_root, "data.root=IMAGES: no such directory; expected IMAGES/{train,test}/<class>/"),
        (a_file_as_root, "data.root=IMAGES: this is a file; expected IMAGES/{train,test}/"),
        (an_empty_class, "data.root=IMAGES: no image in train/c (.png, "),
        (mixed_sizes, "IMAGES/train/b/1.png is 9x9, the first image is 6x8: resize all with"),
        (a_corrupt_image, "IMAGES/train/b/1.png cannot be decoded: "),
        (a_first_image_that_is_none, "IMAGES/train/a/0.png is not a readable image: "),
        (a_deep_image, "IMAGES/train/b/1.png has more than 8 bits per channel, 8 are needed"),
        (one_class, "data.root=IMAGES: train/ has only the class a, there is nothing to learn"),
        (an_unknown_test_class, "data.root=IMAGES: train/ has no class c, test/c has"),
        (no_test_half, "data.root=IMAGES: there is no test/ in it; expected IMAGES/{train,test}"),
    ],
)
def test_images_that_cannot_be_learnt_from_are_refused(
    here: Path, situation: Callable[[Path], None], line: str
):
    situation(here)
    before = tree(here)
    answer = enter("data=folder", "data.root=images", "threads=1")
    refused(answer, line.replace("IMAGES", str(here / "images")))
    assert tree(here) == before


def truncated(archive: bytes) -> bytes:
    return archive[:-1000]


def altered(archive: bytes) -> bytes:
    return archive[:-1] + b"x"


@pytest.mark.parametrize("damage", [truncated, altered])
def test_an_archive_that_is_not_the_official_one_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
):
    official = adopt(monkeypatch, official_archive(CIFAR10, noise(60, 0), noise(20, 1)))
    (here / "data").mkdir()
    (here / "data" / CIFAR10.archive).write_bytes(damage(official.archive))
    before = tree(here)
    line = "cifar-10-python.tar.gz: its md5 differs and data.download=false"
    refused(enter("data=cifar10", "data.download=false"), line)
    assert tree(here) == before


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_of_no_class_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch, label: int):
    class Mislabelled(datasets.CIFAR10):
        def __init__(self, root: Path, *, train: bool) -> None:
            super().__init__(root, train)
            self.targets[-1] = label

    official = adopt(monkeypatch, official_archive(CIFAR10, noise(60, 0), noise(20, 1)))
    (here / "data").mkdir()
    official.unpack(here / "data")
    monkeypatch.setattr(CIFAR10, "official", lambda _: Mislabelled)
    before = tree(here)
    line = f"CIFAR-10: a training image has the label {label}, those of 10 classes are 0 to 9"
    refused(enter("data=cifar10"), line)
    assert tree(here) == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("data.root=file", "data.root=HERE/file: this is a file, a directory is needed"),
        ("data.root=file/below", "data.root=HERE/file/below: HERE/file cannot be written to"),
        ("data.root=/proc/cct", "data.root=/proc/cct: "),
        ("data.root=none data.download=false", "data.root=HERE/none: cifar-10-python.tar.gz is mi"),
    ],
)
def test_a_place_that_cannot_hold_the_data_is_refused(here: Path, arguments: str, line: str):
    (here / "file").write_text("x")
    refused(enter(*arguments.split()), line.replace("HERE", str(here)))
    assert tree(here) == {"file": b"x"}


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("outputs", "study=default: HERE/outputs is not a folder that can be written to"),
        ("outputs/default", "study=default: HERE/outputs/default is not a folder that can be"),
        (OUT.parent, f"study=default: HERE/{OUT.parent} is not a folder that can be written to"),
        (OUT, f"study=default: HERE/{OUT} is not a folder that can be written to"),
    ],
)
def test_a_file_in_place_of_a_runs_directory_is_refused(here: Path, place: str | Path, line: str):
    (here / place).parent.mkdir(parents=True, exist_ok=True)
    (here / place).write_text("x")
    before = tree(here)
    refused(enter(*ONE), line.replace("HERE", str(here)))
    assert tree(here) == before


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc, where nobody may write")
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_a_working_directory_that_takes_no_folder_is_refused(monkeypatch, sweep: list[str]):
    monkeypatch.chdir("/proc")
    refused(enter(*sweep, *ONE), "study=default: /proc is not a folder that can be written to")


def may_do_everything() -> bool:
    """Whether permissions are nothing to this user, as to root."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        return os.access(folder, os.W_OK)


@pytest.mark.skipif(may_do_everything(), reason="needs a user without root's rights")
@pytest.mark.parametrize(
    ("place", "mode", "arguments", "line"),
    [
        (".", 0o555, "data=digits", "study=default: HERE is not a folder that can be written to"),
        ("images", 0o000, "data=folder data.root=images", "Permission denied: 'HERE/images/train"),
        ("images/train/b/1.png", 0o000, "data=folder data.root=images", "IMAGE cannot be decoded"),
    ],
)
def test_a_missing_permission_is_refused(
    here: Path, place: str, mode: int, arguments: str, line: str
):
    images(here)
    before = tree(here)
    usual = (here / place).stat().st_mode
    (here / place).chmod(mode)
    answer = enter(*arguments.split())
    (here / place).chmod(usual)
    refused(answer, line.replace("IMAGE", f"HERE/{place}").replace("HERE", str(here)))
    assert tree(here) == before


# Refused: beside a run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's ``outputs``."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        answer = enter(*ONE)
    assert answer.code == 0, answer
    return folder / "outputs"


@pytest.fixture
def beside_a_run(here: Path, finished: Path) -> Path:
    """A working directory with a copy of the finished run."""
    shutil.copytree(finished, here / "outputs")
    return here


def untouched(out: Path) -> None: ...


def stopped(out: Path) -> None:
    """Let the run seem to have been interrupted, as a finished one's state is not read."""
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))


class Stranger:
    """What makes a file when it is unpickled."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("stranger-was-here"),)


def a_state_that_runs_code(out: Path) -> None:
    stopped(out)
    torch.save({"model": Stranger()}, out / "last.pt")


def half_a_state(out: Path) -> None:
    stopped(out)
    os.truncate(out / "last.pt", 999)


def no_state_at_all(out: Path) -> None:
    stopped(out)
    (out / "last.pt").write_text("none")


def a_folder_as_state(out: Path) -> None:
    stopped(out)
    (out / "last.pt").unlink()
    (out / "last.pt").mkdir()


def the_state_of_another_model(out: Path) -> None:
    stopped(out)
    state = checkpoint.load(out / "last.pt", torch.device("cpu"))
    model = build_model(config.compose([*ONE, "model.dim=32"]).cfg, 10, (32, 32))
    checkpoint.save(out / "last.pt", **state | {"model": model.state_dict()})


def the_state_of_another_run(out: Path) -> None:
    stopped(out)
    state = checkpoint.load(out / "last.pt", torch.device("cpu"))
    checkpoint.save(out / "last.pt", **state | {"name": "other"})


def other_images(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    changed = summary | {"fingerprint": "0" * 64, "status": "interrupted"}
    (out / "summary.json").write_text(json.dumps(changed))


def another_runs_directory(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"seed": 5}))


def half_a_summary(out: Path) -> None:
    os.truncate(out / "summary.json", 99)


@pytest.mark.parametrize(
    ("situation", "more", "line"),
    [
        (untouched, "resume=false", f"resume=false: HERE/{OUT} holds this run already (finished)"),
        (
            untouched,
            f"resume={OUT} mixer=dense optimizer.lr=1",
            f"resume={OUT}: this would be another run: mixer.scores._target_=cct.mixers.scores."
            "Dense (there cct.mixers.scores.DotProduct), optimizer.lr=1.0 (there 0.001)",
        ),
        (
            untouched,
            f"resume={OUT} batch_size=3 optimizer.lr=0.5",
            f"resume={OUT}: this would be another run: batch_size=3 (there 16), "
            "optimizer.lr=0.5 (there 0.001)",
        ),
        (untouched, f"resume={OUT} epochs=0", f"resume={OUT}: epochs=0 is less than its 1"),
        (untouched, f"resume={OUT.parent}", f"resume={OUT.parent}: there is no run in this"),
        (half_a_state, "", "last.pt: not a checkpoint that can be read: "),
        (no_state_at_all, "", "last.pt: not a checkpoint that can be read: "),
        (a_folder_as_state, "", "last.pt"),
        (a_state_that_runs_code, "", "last.pt: not a checkpoint that can be read: Weights only"),
        (a_state_that_runs_code, f"resume={OUT} epochs=2", "last.pt: not a checkpoint that can"),
        (the_state_of_another_model, "", "last.pt: not a checkpoint of this run: "),
        (the_state_of_another_run, "", "last.pt: not a checkpoint of this run: its name is other"),
        (other_images, f"resume={OUT} epochs=2", f"resume={OUT}: that run was trained on other"),
        (other_images, "", f"HERE/{OUT} was trained on other images; name another study="),
        (another_runs_directory, "", f"HERE/{OUT} holds the run {OUT.parent.name} of seed 5; this"),
        (half_a_summary, "", "summary.json is damaged: "),
    ],
)
def test_what_does_not_fit_the_run_in_its_directory_is_refused(
    beside_a_run: Path, situation: Callable[[Path], None], more: str, line: str
):
    situation(OUT)
    before = tree(beside_a_run)
    answer = enter(*(more.split() if f"resume={OUT.parent}" in more else [*ONE, *more.split()]))
    refused(answer, line.replace("HERE", str(beside_a_run)))
    assert tree(beside_a_run) == before


# Failed: exit code 1, and what was good before stays


def test_a_learning_rate_that_diverges_stops_with_step_and_value_and_the_last_state_stays(here):
    steps = 3  # an epoch
    answer = enter(*TINY, "schedule=constant", "optimizer.lr=100", "epochs=30")
    refused(answer, "train.py: the loss is nan at step ", code=1)
    (out,) = (path.parent for path in here.rglob("summary.json"))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["epochs"] >= 1
    first = summary["epochs"] * steps + 1
    assert summary["reason"] in [f"the loss is nan at step {first + more}" for more in range(steps)]
    checkpoint.verify(out / "last.pt")
    state = torch.load(out / "last.pt")
    assert state["epoch"] == summary["epochs"]
    assert all(weight.isfinite().all() for weight in state["model"].values())


def test_a_checkpoint_that_cannot_be_written_ends_the_run_by_name(here: Path):
    (here / OUT / "best.pt").mkdir(parents=True)
    refused(enter(*ONE), "best.pt", code=1)
    assert json.loads((here / OUT / "summary.json").read_text())["status"] == "failed"
    assert not [*here.rglob("*.tmp")]


def mountable() -> bool:
    """Whether a namespace can be had in which this user may mount something."""
    try:
        script = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(script, capture_output=True).returncode == 0
    except OSError:
        return False


needs_mount = pytest.mark.skipif(not mountable(), reason="needs unshare -rm and a mount in it")


@needs_mount
def test_a_full_disk_fails_in_one_line_and_leaves_no_half_file(here: Path):
    (here / "disk").mkdir()
    answer = shell(
        "exec unshare -rm sh -c '"
        "mount -t tmpfs -o size=500k none disk && cd disk && "
        '"$@"; code=$?; cp -r outputs ../kept; exit $code\' sh "$@"',
        *TINY,
        "epochs=9",
    )
    refused(answer, "cannot be written, 0.0 MB are free there: ", code=1)
    assert not [*here.rglob("*.tmp")]
    for path in here.rglob("*.pt"):
        checkpoint.verify(path)


# Real commands, one of each kind; a failed run is in test_command.py


def test_a_real_command_with_a_mistake(command, tmp_path: Path):
    done = command("+epoch=3")
    refused(Answer(done.returncode, done.stdout, done.stderr), "epoch=3: no such setting")
    assert not tree(tmp_path)


def test_a_real_command_on_wrong_data(command, tmp_path: Path):
    a_corrupt_image(tmp_path)
    before = tree(tmp_path)
    done = command("data=folder", "data.root=images")
    refused(Answer(done.returncode, done.stdout, done.stderr), "train/b/1.png cannot be decoded")
    assert tree(tmp_path) == before


# Accepted


def accepted(answer: Answer, *said: str) -> None:
    assert answer.code == 0, answer
    assert answer.err == ""
    for line in said:
        assert line in " ".join(answer.out.split())  # which has no line's end in it


def grey_and_transparent(here: Path) -> None:
    root = images(here)
    picture(1, mode="L").save(root / "train/a/0.png")
    picture(2, mode="RGBA").save(root / "train/a/1.png")


def a_class_that_is_not_tested(here: Path) -> None:
    shutil.rmtree(images(here) / "test/b")


def odd_names(here: Path) -> None:
    images(here).rename(here / "a b=ä, ü")


@pytest.mark.parametrize(
    ("situation", "settings", "said"),
    [
        (grey_and_transparent, [], "4 training and 4 test images"),
        (a_class_that_is_not_tested, [], "4 training and 2 test images"),
        (images, ["batch_size=1000", "eval_batch_size=1000"], "effective batch 4"),
        (images, ["data.image_size=1"], "1 tokens, a grid of 1x1"),
        (images, ["data.cache=null"], "(not the official CIFAR-10, whatever its classes are)"),
        (odd_names, ["data.root='a b=ä, ü'"], "a b=ä, ü (not the"),
        (odd_names, ["data.root='a b=ä, ü'", "hydra.job.chdir=true"], "a b=ä, ü"),
    ],
)
def test_unusual_images_are_learnt_from(
    here: Path, situation: Callable[[Path], object], settings: list[str], said: str
):
    situation(here)
    small = ["model.dim=16", "threads=1", "epochs=1"]
    answer = enter("data=folder", "data.root=images", *small, *settings)
    accepted(answer, said, "Script finished in ")
    assert Path.cwd() == here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("data.train_size=1", "1 training and 20 test images"),
        ("epochs=0", "[Epoch 0] Top-1 "),
        ("batch_size=999", "effective batch 40"),
        ("dry_run=true", "run "),
        ("checkpoint=none", "Script finished in "),
        ("hydra.job.chdir=true", "Script finished in "),
        ("mixer=random,dense -m", "outputs/default: 2 finished"),
        ("study=2026", "outputs/2026/"),
        ("seeds.init=7", "Script finished in "),
        ("data.image_size=[9,31]", "9x31 pixels"),
    ],
)
def test_unusual_commands_work(here: Path, arguments: str, said: str):
    accepted(enter(*ONE, *arguments.split()), said)
    assert ("outputs" in tree(here)) is (arguments != "dry_run=true")


def test_epochs_0_evaluates_and_records(here: Path):
    accepted(enter(*ONE, "epochs=0"), "Script finished in ")
    (path,) = here.rglob("summary.json")
    summary = json.loads(path.read_text())
    assert (summary["status"], summary["epochs"]) == ("finished", 0)
    assert (path.parent / "last.pt").exists()


@pytest.mark.parametrize("more", ["", "resume=true", f"resume={OUT}", "rerun=false"])
def test_a_finished_run_says_so(beside_a_run: Path, more: str):
    before = tree(beside_a_run)
    arguments = [more] if str(OUT) in more else [*ONE, *more.split()]
    accepted(enter(*arguments), "Finished before, best top-1: ")
    assert tree(beside_a_run) == before


def test_a_rerun_puts_the_first_aside(beside_a_run: Path):
    before = tree(OUT)
    accepted(enter(*ONE, "rerun=true"), f"Put aside: {OUT}.old1", "Script finished in ")
    assert tree(OUT.with_name("seed0.old1")) == before
    assert json.loads((beside_a_run / OUT / "summary.json").read_text())["status"] == "finished"


def test_a_longer_run_lies_beside_the_first(beside_a_run: Path):
    before = tree(OUT)
    accepted(enter(f"resume={OUT}", "epochs=2"), "Going on after epoch 1", "[Epoch 2]")
    assert tree(OUT) == before
    assert len([*beside_a_run.rglob("summary.json")]) == 2


@pytest.mark.parametrize("place", ["/proc/cct", "file/below"])
def test_a_cache_that_cannot_be_written_is_told_and_not_used(here: Path, place: str):
    images(here)
    (here / "file").write_text("x")
    answer = enter(
        "data=folder", "data.root=images", f"data.cache={place}", "model.dim=16", "epochs=1"
    )
    assert answer.code == 0
    assert "cannot be written, so the pixels are not kept" in answer.err
    assert answer.err.count("\n") == 1


def test_a_real_command_optimised_and_from_another_directory(command, tmp_path: Path):
    done = command(*ONE, PYTHONOPTIMIZE="1")  # as python -O
    accepted(Answer(done.returncode, done.stdout, done.stderr), "Script finished in ")
    assert [*tmp_path.rglob("last.pt")]


def test_a_closed_output_is_no_reason_to_fail(here: Path):
    accepted(shell('exec "$@" >&-', *ONE))
    assert json.loads((here / OUT / "summary.json").read_text())["status"] == "finished"


@needs_mount
def test_an_installation_may_be_read_only(here: Path):
    place = f"'{ROOT}'"
    answer = shell(
        f'exec unshare -rm sh -c "mount --bind {place} {place} && '
        f"mount -o remount,bind,ro {place} && ! touch {place}/x 2>/dev/null && "
        'exec \\"\\$@\\"" sh "$@"',
        *ONE,
    )
    accepted(answer, "Script finished in ")
    assert (here / OUT / "last.pt").exists()
