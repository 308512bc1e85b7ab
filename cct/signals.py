"""SIGTERM and Ctrl-C: the first lets the batch in hand be finished, a second one stops at once."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """A signal asked this program to stop; ``code`` is its exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class _Waiting:
    """Whether stopping waits for ``stop_if_asked``, and the signal that came meanwhile."""

    deferred = False
    asked: int | None = None


def _handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    if not _Waiting.deferred or _Waiting.asked is not None:
        raise Interrupted(number)
    _Waiting.asked = number
    print("\nfinishing this batch; once more stops at once", file=sys.stderr)


def listen(*more: int) -> None:
    """Raise Interrupted in the main thread when SIGTERM, SIGINT or one of these comes."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, *more):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as in a shell's background job
                signal.signal(number, _handle)


def stop_listening() -> None:
    """Let a further signal end this program, which is ending, without a word."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def deferred() -> Iterator[None]:
    """Let a first signal wait for the next ``stop_if_asked``, or for the end of this."""
    _Waiting.deferred, _Waiting.asked = True, None
    try:
        yield
    finally:
        _Waiting.deferred = False
    stop_if_asked()


def stop_if_asked() -> None:
    """Raise Interrupted if a signal has come."""
    if _Waiting.asked is not None:
        number, _Waiting.asked = _Waiting.asked, None
        raise Interrupted(number)
