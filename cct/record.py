"""What a run leaves behind: lines and curves for people, JSON for programs.

``metrics.jsonl`` has one row per epoch, ``summary.json`` the state and result of the run, and
``train.log`` the lines of the console; the TensorBoard event file lies beside them.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from cct.checkpoint import replacing
from cct.schema import one_line
from cct.signals import Interrupted

RESULT_EVENTS = "events.out.tfevents.*.result"
PACKAGES = ("torch", "torchvision", "hydra-core", "omegaconf", "timm", "numpy")


def read_summary(out: Path) -> dict[str, Any] | None:
    """Return a run's summary, or None where no run was started; ValueError if it is damaged."""
    path = out / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text())
    except ValueError as damage:
        raise ValueError(f"{path} is damaged: {one_line(damage)}") from damage
    needed = {"status", "name", "seed", "left_out", "fingerprint", "eval_batch_size"}
    if isinstance(summary, dict) and summary.get("status") == "finished":
        needed |= {"best_top1", "final_top1"}
    if not isinstance(summary, dict) or not needed <= set(summary):
        raise ValueError(f"{path} is damaged: {', '.join(sorted(needed))} are needed")
    return summary


def read_rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that were written whole; ValueError if one is damaged."""
    path = out / "metrics.jsonl"
    try:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as damage:
        raise ValueError(f"{path} is damaged: {one_line(damage)}") from damage
    if not all(isinstance(row, dict) and {"test_top1", "seconds"} <= set(row) for row in rows):
        raise ValueError(f"{path} is damaged: a line is not the row of an epoch")
    return rows


def versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], **{package: version(package) for package in PACKAGES}}


def git_commit() -> str | None:
    """Return the commit of this code, with ``+`` where files differ from it; None without git."""
    folder = Path(__file__).parent
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--match="]
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


class RunFailed(Exception):
    """A run that had begun stopped before its end; the message says why."""


class Record:
    """The open records of one run in its directory, continued after ``epoch`` finished epochs.

    ``facts`` are what the summary says about the run from its start on; ``began`` is when this
    program began, by the monotonic clock.
    """

    def __init__(self, out: Path, epoch: int, facts: dict[str, Any], began: float) -> None:
        # Slow to import, and of no use to a run that is refused.
        from torch.utils.tensorboard import SummaryWriter

        self.out = out
        rows = read_rows(out)
        self.rows = rows[:epoch]
        if len(rows) < epoch:
            raise ValueError(
                f"{out}: metrics.jsonl has {len(rows)} epochs, last.pt {epoch}; rerun=true puts "
                "this run aside and trains it from its beginning"
            )
        self._write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in self.rows))
        earlier = any(out.glob("events.out.tfevents.*"))
        self.curves = SummaryWriter(str(out), purge_step=epoch + 1 if earlier else None)
        self.facts = facts
        self.resumable = epoch  # the epoch whose state is saved
        self.repeated = len(rows) - epoch
        self.began = began - sum(row["seconds"] for row in self.rows)

    def _write(self, name: str, text: str) -> None:
        with replacing(self.out / name) as temporary:
            temporary.write_text(text)

    def say(self, line: str) -> None:
        """Print a line, above the progress bar if there is one, and keep it in train.log."""
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()
        with (self.out / "train.log").open("a") as log:
            log.write(line + "\n")

    def summarise(self, **facts: Any) -> None:
        """Add facts to summary.json."""
        self.facts |= facts
        self._write("summary.json", json.dumps(self.facts, indent=1, allow_nan=False) + "\n")

    @property
    def best(self) -> dict[str, Any]:
        """The row of the best epoch so far, chosen on the test set; the earliest of equals."""
        return max(self.rows, key=lambda row: row["test_top1"])

    @property
    def seconds(self) -> float:
        """Since the start; the time of earlier starts is that of the epochs they left."""
        return time.monotonic() - self.began

    def add_epoch(self, row: dict[str, Any], gradient_norm: float) -> None:
        """Write one epoch's row everywhere; numbers that are not finite become null."""
        row = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        self.rows.append(row)
        with (self.out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # the checkpoint that follows counts on this row
        curves = {
            "loss/train": row["train_loss"],
            "loss/test": row["test_loss"],
            "top1/train": row["train_top1"],
            "top1/test": row["test_top1"],
            "learning_rate": row["lr"],
            "images_per_second": row["images_per_second"],
            "gradient_norm": gradient_norm,
        }
        for name, value in curves.items():
            if value is not None and math.isfinite(value):
                self.curves.add_scalar(name, value, row["epoch"])
        self.curves.flush()
        self.say(
            f"[Epoch {row['epoch']}] Top-1 {row['test_top1']:.2f} Time: {self.seconds / 60:.2f}"
        )

    def begin(self, header: Iterable[str], notes: Iterable[str]) -> None:
        """Print the header, then from where the run goes on, and note that it has begun."""
        for line in header:
            self.say(line)
        for note in notes:
            self.say(note)
        if self.rows:
            self.say(f"Going on after epoch {len(self.rows)}")
        if self.repeated:
            self.say(f"Epochs trained again, as their state was not saved: {self.repeated}")
        process = {"pid": os.getpid(), "host": socket.gethostname()}
        self.summarise(status="running", epochs=len(self.rows), process=process)

    def finish(self, configuration: dict[str, Any], pictures: dict[str, Tensor]) -> None:
        """Write the result to the summary, and to TensorBoard beside the hyperparameters.

        ``pictures`` are images (3 or 1, height, width), from 0 to 1, under their names.
        """
        final, best = self.rows[-1], self.best
        result = {"final_top1": final["test_top1"], "best_top1": best["test_top1"]}
        self._write_result(configuration, result, pictures)
        seconds = self.seconds
        self.say(
            f"Script finished in {seconds / 60:.2f} minutes, best top-1: "
            f"{best['test_top1']:.2f}, final top-1: {final['test_top1']:.2f}"
        )
        self.summarise(
            status="finished",
            **result,
            best_epoch=best["epoch"],
            best_chosen_on="test set",
            epochs=final["epoch"],
            seconds=seconds,
        )

    def _write_result(
        self, configuration: dict[str, Any], result: dict[str, float], pictures: dict[str, Tensor]
    ) -> None:
        """Write an event file of its own, in place of that of a start killed after it had."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        for path in self.out.glob(RESULT_EVENTS):
            path.unlink()
        settings, epoch = _flat(configuration) | self.facts["choices"], self.rows[-1]["epoch"]
        with SummaryWriter(str(self.out), filename_suffix=".result") as writer:
            # SummaryWriter.add_hparams would put them into a second run.
            for event in hparams(settings, {f"result/{key}": one for key, one in result.items()}):
                writer._get_file_writer().add_summary(event)
            for key, value in result.items():
                writer.add_scalar(f"result/{key}", value, epoch)
            for name, picture in pictures.items():
                writer.add_image(name, picture.cpu(), epoch)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Close the records; say why a run stops early, with the traceback in train.log."""
        self.curves.close()
        if error is None:
            return
        done = {"epochs": len(self.rows), "seconds": self.seconds}
        reason = one_line(error)
        if isinstance(error, SystemExit):  # by a part of the run, such as a mixer
            reason = f"sys.exit({reason})"
        try:
            self._close(error, reason, done)
        except OSError as worse:  # a full disk, on which the traceback has no place either
            raise RunFailed(f"{reason} (in {self.out}, where no more can be written)") from worse

    def _close(self, error: BaseException, reason: str, done: dict[str, Any]) -> None:
        if isinstance(error, Interrupted | KeyboardInterrupt):
            where = f"goes on after epoch {self.resumable}" if self.resumable else "begins again"
            self.say(f"Interrupted; the same command {where}")
            self.summarise(status="interrupted", **done)
            return
        with (self.out / "train.log").open("a") as log:
            traceback.print_exception(error, file=log)
        self.summarise(status="failed", reason=reason, **done)
        raise RunFailed(f"{reason} ({self.out / 'train.log'})") from error


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif not key.startswith("_"):
            flat[f"{prefix}{key}"] = value if isinstance(value, int | float) else str(value)
    return flat
