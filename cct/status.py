"""What has become of runs, read from their directories."""

import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from cct import directory
from cct.record import read_rows, read_summary


class State(NamedTuple):
    """A run: its status, epochs done and asked for, seconds used and left, bytes on disk.

    The status is ``missing``, ``running``, ``interrupted``, ``failed`` or ``finished``.
    """

    out: Path
    status: str
    done: int = 0
    epochs: int = 0
    top1: float | None = None
    seconds: float = 0.0
    left: float | None = None
    size: int = 0
    reason: str = ""


def state_of(out: Path) -> State:
    """Return the state of the run in a directory; ValueError if its records are damaged."""
    summary = read_summary(out)
    if summary is None:
        return State(out, "running" if directory.is_owned(out) else "missing")
    rows = read_rows(out)
    epochs = _epochs(out, summary)
    seconds = sum(row["seconds"] for row in rows)
    left = seconds / len(rows) * (epochs - len(rows)) if rows else None
    return State(
        out,
        _status(out, summary),
        len(rows) if epochs else 0,
        epochs,
        rows[-1]["test_top1"] if rows else None,
        seconds,
        left,
        sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        _reason(out, summary),
    )


def _status(out: Path, summary: dict[str, Any]) -> str:
    if summary["status"] != "running":
        return "running" if directory.is_owned(out) else summary["status"]
    # Whether a process of another machine is alive cannot be seen, only when it last wrote.
    elsewhere = summary.get("process", {}).get("host", "") not in ("", socket.gethostname())
    return "running" if elsewhere or directory.is_owned(out) else "interrupted"


def _reason(out: Path, summary: dict[str, Any]) -> str:
    if summary["status"] == "failed":
        return summary.get("reason", "")
    host = summary.get("process", {}).get("host", "")
    if summary["status"] == "running" and host not in ("", socket.gethostname()):
        silent = time.time() - max(path.stat().st_mtime for path in out.iterdir())
        return f"on {host}, last heard of {minutes(silent)} minutes ago"
    return ""


def _epochs(out: Path, summary: dict[str, Any]) -> int:
    """The epochs asked for, which runs of earlier versions tell in their configuration only."""
    if "epochs_asked" in summary:
        return int(summary["epochs_asked"])
    path = out / ".hydra" / "config.yaml"
    return int(OmegaConf.load(path).epochs) if path.exists() else int(summary.get("epochs", 0))


def minutes(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds / 60:.1f}"


def megabytes(size: float | None) -> str:
    return "?" if size is None else f"{size / 1e6:.1f}"


def usual(kind: Path) -> tuple[float, float] | None:
    """Return the mean seconds and bytes of the finished runs of one kind; None without any."""
    states = [state_of(path) for path in kind.glob("seed*") if ".old" not in path.name]
    finished = [state for state in states if state.status == "finished"]
    if not finished:
        return None
    count = len(finished)
    return sum(one.seconds for one in finished) / count, sum(one.size for one in finished) / count


def runs_in(study: Path) -> list[Path]:
    """Return the directories of runs in a study, but for those put aside."""
    found = (path.parent for path in study.glob("*/seed*/run.lock"))
    return sorted(path for path in found if ".old" not in path.name)


def launched_in(study: Path) -> list[Path]:
    """Return the directories of all runs that a launch in this study was to have."""
    found = []
    for path in sorted((study / "launches").glob("*.yaml")):
        listed: Any = OmegaConf.load(path)
        places = [Path(job.directory) for job in listed.jobs]
        found += [study / place.parent.name / place.name for place in places]
    return list(dict.fromkeys(found))
