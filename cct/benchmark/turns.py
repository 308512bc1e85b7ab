"""Speeds of several subjects measured in turn, each in a process of its own.

A machine's speed drifts while it is measured, so subjects take turns, and ratios are of samples
that lie side by side. A process of its own keeps one subject's allocator, threads and compiled code
out of another's way.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from signal import SIGKILL
from typing import Any, NamedTuple

Sample = dict[str, float]


class Failed(Exception):
    """A subject could not be built or measured; the message says why."""


def _serve(pipe: Connection, build: Callable[..., Callable[[], Sample]], settings: dict) -> None:
    """Build the subject, then take a sample at every request; the first is not counted."""
    try:
        sample = build(**settings)
        sample()
        pipe.send({})
        while pipe.recv():
            pipe.send(sample())
    except (KeyboardInterrupt, EOFError):
        pass  # the measuring process ends, and says so itself
    except Exception as error:  # whatever it is, the measuring process is to say it
        pipe.send(f"{type(error).__name__}: {error}")


class Subject:
    """What is measured: ``build(**settings)``, called in a new process, returns the sampler."""

    def __init__(self, build: Callable[..., Callable[[], Sample]], **settings: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, build, settings))
        self.process.start()
        theirs.close()
        self._answer()

    def sample(self) -> Sample:
        with suppress(BrokenPipeError):  # of a process that has ended, as the answer will say
            self.pipe.send(True)
        return self._answer()

    def _answer(self) -> Sample:
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            code = self.process.exitcode
            killed = "; was memory short?" if code == -SIGKILL else ""
            raise Failed(f"a process ended with exit code {code}{killed}") from None
        if isinstance(answer, str):
            raise Failed(answer)
        return answer

    def __enter__(self) -> "Subject":
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self.process.join(60)  # the workers of a loader take some seconds each
        if self.process.is_alive():
            self.process.kill()


def in_turn(
    subjects: Mapping[str, Subject], rounds: int, say: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """Take a sample of each subject in every round."""
    samples: dict[str, list[Sample]] = {name: [] for name in subjects}
    for number in range(rounds):
        for name, subject in subjects.items():
            say(f"round {number + 1} of {rounds}: {name}")
            samples[name].append(subject.sample())
    say("")
    return samples


class Spread(NamedTuple):
    """The middle, the least and the greatest of some numbers."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f} to {self.most:,.{digits}f})"


def spread(numbers: list[float]) -> Spread:
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


def ratio(samples: list[Sample], reference: list[Sample], key: str) -> float:
    """Return the median over rounds of one subject's speed over another's."""
    return statistics.median(
        one[key] / other[key] for one, other in zip(samples, reference, strict=True)
    )


def progress(line: str) -> None:
    """Show a line in place of the last one; where nobody is looking, one in a minute."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif line and time.monotonic() > _shown[-1] + 60:
        _shown.append(time.monotonic())
        print(line, file=sys.stderr, flush=True)


_shown = [time.monotonic()]
