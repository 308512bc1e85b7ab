"""Shared subjects of the tests."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what a test proves must not depend on the machine

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way
ROOT = Path(__file__).parents[1]
TINY = [
    "data=digits",
    "data.train_size=40",
    "data.test_size=20",
    "model.dim=16",
    "batch_size=16",
    "epochs=2",
    "threads=1",
]


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@dataclass
class Trained:
    """What a run left in its directory."""

    out: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    @property
    def numbers(self) -> list[dict[str, Any]]:
        """The rows without the two columns that measure time."""
        timed = {"seconds", "images_per_second"}
        return [{k: v for k, v in row.items() if k not in timed} for row in self.rows]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.out / "summary.json").read_text())

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return torch.load(self.out / "last.pt")["model"]


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Trained]:
    """Train a tiny model in this process with some overrides, each call in its own study."""
    from cct import config
    from train import run

    def train(*overrides: str, study: str = "default") -> Trained:
        asked = config.compose([*TINY, *overrides])
        out = tmp_path / "outputs" / study / asked.name / f"seed{asked.cfg.seed}"
        run(asked, out)
        return Trained(out)

    return train


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``python train.py`` as a person does, in an empty folder."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "train.py"), *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return call
