"""Checkpoints that are either whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cct.schema import one_line


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which takes the place of ``path`` once it is flushed."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # half a file would keep a full disk full
        raise


def save(path: Path, **state: Any) -> None:
    """Save plain values and tensors, so that ``torch.load`` needs no trust in the file."""
    with replacing(path) as temporary:
        torch.save(state, temporary)


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Return what was saved; ValueError when the file cannot be read."""
    try:
        return torch.load(path, map_location=device)
    except Exception as damage:  # torch.load raises whatever the bytes lead to
        reason = one_line(damage)[:200]
        raise ValueError(f"{path}: not a checkpoint that can be read: {reason}") from damage


def restore(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Load model and optimiser if there is a checkpoint; return how many epochs it has seen.

    ValueError when it is not a checkpoint of this model and optimiser.
    """
    if not path.exists():
        return 0
    state = load(path, device)
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["epoch"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as misfit:
        reason = one_line(misfit)[:200]
        raise ValueError(f"{path}: not a checkpoint of this run: {reason}") from misfit
