"""Shared subjects of the tests."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what a test proves must not depend on the machine

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way
CONF = Path(__file__).parents[1] / "conf"


def options(group: str) -> list[str]:
    """Every option of a config group, so that a new yaml is tested unasked."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)
