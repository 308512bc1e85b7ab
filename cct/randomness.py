"""Randomness as a function: what is drawn depends on (seed, purpose, epoch) and on nothing before.

Purposes are ``init``, ``order``, ``augment`` and ``dropout``. Resuming a run needs no generator
state, only the number of the epoch.
"""

import hashlib

import torch


def seed_of(seed: int, purpose: str, epoch: int = 0) -> int:
    """Return the 63-bit seed of one purpose in one epoch, unrelated to that of any other."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, purpose: str, epoch: int) -> torch.Generator:
    """Return a CPU generator, so that every device sees the same draws."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, epoch))
