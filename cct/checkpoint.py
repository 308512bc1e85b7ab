"""Checkpoints that are either whole or not there, and the ones a run keeps to go on from."""

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from cct.limits import Count, Kept
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
    """Save plain values and tensors, so that ``torch.load`` needs no trust in the file.

    What stood there before is replaced only when the new file has been read back.
    """
    with replacing(path) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # in torch's words, which do not tell of a full disk
            free = shutil.disk_usage(path.parent).free / 1e6
            reason = f"{path} cannot be written, {free:.1f} MB are free there: {one_line(error)}"
            raise OSError(reason) from error
        verify(temporary)


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Return what was saved; ValueError when the file cannot be read."""
    try:
        return torch.load(path, map_location=device)
    except Exception as damage:  # torch.load raises whatever the bytes lead to
        reason = one_line(damage).partition(". ")[0][:200]  # advice for programmers follows
        raise ValueError(f"{path}: not a checkpoint that can be read: {reason}") from damage


def verify(path: Path) -> None:
    """Compare every byte with its checksum, as torch.load does not; ValueError if one is off."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as damage:
        raise ValueError(
            f"{path}: not a checkpoint that can be read: {one_line(damage)}"
        ) from damage
    if damaged:
        raise ValueError(f"{path}: not a checkpoint that can be read: {damaged} is damaged")


class Restored(NamedTuple):
    """How many epochs the state in use has seen, and why newer files were not used."""

    epochs: int
    refused: list[str]


class Checkpoints:
    """The states of one run: the newest in ``last.pt``, then ``last.1.pt`` ..., and ``best.pt``.

    ``facts`` are plain values saved beside each state; ``name`` and ``seed`` among them tell whose
    it is. ``every`` counts the epochs from one state to the next; ``keep`` states are kept, so that
    a damaged one costs some epochs and not the run.
    """

    def __init__(self, out: Path, facts: dict[str, Any], *, every: Count, keep: Kept) -> None:
        self.out, self.facts, self.every, self.keep = out, facts, every, keep

    def states(self) -> list[Path]:
        """Return the files to go on from, the newest first."""
        older = self.out.glob("last.[1-9].pt")
        return [path for path in (self.out / "last.pt", *sorted(older)) if path.exists()]

    def restore(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
    ) -> Restored:
        """Load the newest state that is whole and of this run, if there is any file at all.

        ValueError when there are files and none can be used; then all stay as they are.
        """
        refused: list[str] = []
        for path in self.states():
            try:
                epochs = self._restore(path, model, optimizer, device)
            except ValueError as damage:
                refused.append(one_line(damage))
                continue
            for older in self.states()[: len(refused)]:  # else a later save would count it as good
                os.replace(older, older.with_suffix(".refused"))
            return Restored(epochs, refused)
        if refused:
            raise ValueError(
                f"{refused[0]}; rerun=true puts this run aside and trains it from its beginning"
            )
        return Restored(0, [])

    def _restore(
        self,
        path: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> int:
        verify(path)
        state = load(path, device)
        try:
            for key in ("name", "seed"):  # which states of earlier versions do not have
                if key in state and state[key] != self.facts[key]:
                    raise ValueError(f"its {key} is {state[key]}, not {self.facts[key]}")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["epoch"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as misfit:
            reason = one_line(misfit)[:200]
            raise ValueError(f"{path}: not a checkpoint of this run: {reason}") from misfit

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        epoch: int,
        *,
        best: bool,
        final: bool,
    ) -> bool:
        """Save the state after ``epoch`` epochs where one is due, and ``best.pt`` where it is best.

        Return whether the run could go on from here.
        """
        due = final or epoch % self.every == 0
        if not (due or best):
            return False
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        if best:
            save(self.out / "best.pt", **state, **self.facts)
        if due:
            new = self.out / "last.new.pt"
            save(new, **state, **self.facts)
            self._make_room()
            os.replace(new, self.out / "last.pt")
        return due

    def _make_room(self) -> None:
        for number, path in reversed([*enumerate(self.states(), 1)]):
            if number < self.keep:
                os.replace(path, self.out / f"last.{number}.pt")
            elif path.name != "last.pt":  # which the new one replaces
                path.unlink()


class NoCheckpoints(Checkpoints):
    """None are saved, so a run that is interrupted begins again, or where earlier ones end."""

    def __init__(self, out: Path, facts: dict[str, Any]) -> None:
        super().__init__(out, facts, every=1, keep=1)

    def save(self, *_: Any, **__: Any) -> bool:
        return False
