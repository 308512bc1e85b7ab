"""Randomness as a function: what is drawn depends on (seed, purpose, epoch) and on nothing before.

Purposes are ``init``, ``order``, ``augment``, ``mix`` and ``dropout``. Resuming a run needs no
generator state, only the number of the epoch.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Seeds:
    """The seed of each stream of draws; that of mixing is ``augment``."""

    init: int
    order: int
    augment: int
    dropout: int


def seed_of(seed: int, purpose: str, epoch: int = 0) -> int:
    """Return the 63-bit seed of one purpose in one epoch, unrelated to that of any other."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str, epoch: int) -> torch.Generator:
    """Return a CPU generator, so that every device sees the same draws."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, epoch))


def numpy_generator(seed: int, purpose: str, epoch: int) -> np.random.Generator:
    """Return the like of ``generator`` for distributions that torch cannot draw from one."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, purpose, epoch)))
