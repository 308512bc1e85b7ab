"""A run's directory: whose it is, whether it is finished, and that one process at a time has it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cct.record import read_summary


def summary_of(out: Path, name: str, seed: int) -> dict[str, Any] | None:
    """Return the summary of an earlier start of this run; ValueError if another one lives here."""
    summary = read_summary(out)
    if summary and (summary["name"], summary["seed"]) != (name, seed):
        raise ValueError(
            f"{out} holds the run {summary['name']} of seed {summary['seed']}; "
            f"this command is {name} of seed {seed}"
        )
    return summary


@contextmanager
def owned(out: Path) -> Iterator[None]:
    """Hold the directory's lock, which the system releases however this process ends."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / "run.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{out}: another process is training this run") from None
    try:
        yield
    finally:
        lock.release()


def check_writable(study: str) -> None:
    """Refuse, with ValueError, an ``outputs`` in which Hydra could not make a directory."""
    wanted = Path("outputs", study).absolute()
    nearest = next(path for path in (wanted, *wanted.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ValueError(f"study={study}: {nearest} is not a folder that can be written to")


def remove_empty(out: Path) -> None:
    """Remove the folders that were made for a run that was refused, unless others use them."""
    here = Path.cwd()
    with suppress(OSError):
        for folder in (out, *out.parents[:3]):
            if folder == here or folder in here.parents:
                return
            folder.rmdir()
