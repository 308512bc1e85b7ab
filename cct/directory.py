"""A run's directory: whose it is, whether it is finished, and that one process at a time has it."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from cct.config import Run
from cct.record import read_summary

STRAY = ("*.tmp", "last.new.pt")  # what a killed process was writing


def summary_of(out: Path, name: str, seed: int) -> dict[str, Any] | None:
    """Return the summary of an earlier start of this run; ValueError if another one lives here."""
    summary = read_summary(out)
    if summary and (summary["name"], summary["seed"]) != (name, seed):
        raise ValueError(
            f"{out} holds the run {summary['name']} of seed {summary['seed']}; "
            f"this command is {name} of seed {seed}"
        )
    return summary


def earlier(out: Path, asked: Run) -> dict[str, Any] | None:
    """Return the summary to go on from or to report; ValueError if ``resume`` forbids that."""
    summary = summary_of(out, asked.name, asked.cfg.seed)
    resume = asked.launch.resume
    if resume is True and not summary:
        raise ValueError(f"resume=true: there is no run to go on with in {out}")
    if resume is False and summary:
        raise ValueError(f"resume=false: {out} holds this run already ({summary['status']})")
    return summary


@contextmanager
def owned(out: Path) -> Iterator[None]:
    """Hold the directory's lock, which the system releases however this process ends.

    ValueError naming the process that holds it, where one does.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / "run.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{out}: {owner(out)} is training this run") from None
    try:
        (out / "run.pid").write_text(f"process {os.getpid()} on {socket.gethostname()}")
        for pattern in STRAY:
            for path in out.glob(pattern):
                path.unlink(missing_ok=True)
        yield
    finally:
        (out / "run.pid").unlink(missing_ok=True)
        lock.release()


def owner(out: Path) -> str:
    """Return who holds the lock, as soon as it has said so."""
    for _ in range(10):
        with suppress(OSError):
            if said := (out / "run.pid").read_text():
                return said
        time.sleep(0.1)
    return "another process"


def is_owned(out: Path) -> bool:
    """Whether a process on this machine trains this run now."""
    if not (out / "run.lock").exists():
        return False
    lock = FileLock(out / "run.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:  # a directory that may only be read
        return False
    lock.release()
    return False


def put_aside(out: Path) -> Path | None:
    """Rename a run's directory to the first ``<its name>.old<k>`` there is not; return its path."""
    if not (out / "summary.json").exists():
        return None
    number = 1
    while (aside := out.with_name(f"{out.name}.old{number}")).exists():
        number += 1
    lock = FileLock(out / "run.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"{out}: {owner(out)} is training this run") from None
    out.rename(aside)
    lock.release()
    return aside


def check_writable(out: Path) -> None:
    """Refuse, with ValueError, a run whose directory could not be made.

    By making one there, as permissions do not tell: a disk may be full, or root asking.
    """
    if out.is_dir():
        return
    whole = out.absolute()
    nearest = next(path for path in (whole, *whole.parents) if path.exists())
    try:
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        reason = f"is not a folder that can be written to ({error.strerror})"
        raise ValueError(f"study={out.parts[-3]}: {nearest} {reason}") from error


def remove_empty(out: Path) -> None:
    """Remove the folders that were made for a run that was refused, unless others use them."""
    here = Path.cwd()
    with suppress(OSError):
        for folder in (out, *out.parents[:3]):
            if folder == here or folder in here.parents:
                return
            folder.rmdir()
