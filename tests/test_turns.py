"""Measuring in turn: who is asked when, what is made of the answers, what is said of failures."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from cct.benchmark.facts import busy_processes
from cct.benchmark.turns import Failed, Sample, Spread, Subject, in_turn, ratio, spread


def counting(start: int) -> Callable[[], Sample]:
    """Build a subject whose samples count up, in the process that its samples name."""
    numbers = iter(range(start, 1000))
    return lambda: {"number": next(numbers), "process": os.getpid()}


def broken() -> Callable[[], Sample]:
    raise ValueError("no compiler")


def leaving() -> Callable[[], Sample]:
    os._exit(3)


def test_a_subject_is_sampled_in_a_process_of_its_own_and_its_first_sample_is_not_counted():
    with Subject(counting, start=7) as subject:
        samples = [subject.sample() for _ in range(2)]
    assert [one["number"] for one in samples] == [8, 9]
    assert {one["process"] for one in samples}.isdisjoint({os.getpid()})
    assert not subject.process.is_alive()


def killed() -> Callable[[], Sample]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (broken, "ValueError: no compiler"),
        (leaving, "exit code 3$"),
        (killed, "exit code -9; was memory short?"),
    ],
)
def test_a_subject_that_cannot_be_built_says_why(build, said):
    with pytest.raises(Failed, match=said):
        Subject(build)


def test_a_subject_killed_while_others_have_their_turn_is_named():
    with Subject(counting, start=0) as subject:
        assert subject.process.pid
        os.kill(subject.process.pid, signal.SIGKILL)
        subject.process.join()
        with pytest.raises(Failed, match="exit code -9; was memory"):
            subject.sample()


def test_subjects_take_turns():
    asked = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def sample(self) -> Sample:
            asked.append(self.name)
            return {"calls": len(asked)}

    lines = []
    found = in_turn({"a": Fake("a"), "b": Fake("b")}, 3, lines.append)  # pyright: ignore
    assert asked == ["a", "b"] * 3
    assert [one["calls"] for one in found["b"]] == [2, 4, 6]
    assert lines == [f"round {n} of 3: {name}" for n in (1, 2, 3) for name in "ab"] + [""]


def test_a_ratio_is_the_median_of_those_within_a_round():
    fast: list[Sample] = [{"speed": speed} for speed in (20, 90, 8)]
    slow: list[Sample] = [{"speed": speed} for speed in (5, 30, 8)]
    assert ratio(fast, slow, "speed") == 3  # that of the medians would be 2.5


def test_a_spread_names_middle_and_ends_with_two_or_three_digits():
    assert spread([3.0, 1.0, 9.0, 5.0]) == Spread(4.0, 1.0, 9.0)
    assert str(Spread(1234.4, 999, 2000)) == "1,234 (999 to 2,000)"
    assert str(Spread(12.34, 9, 20)) == "12.3 (9.0 to 20.0)"
    assert str(Spread(1.234, 1, 2)) == "1.23 (1.00 to 2.00)"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_a_process_that_keeps_a_core_busy_is_named():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            found = busy_processes(0.5)
        finally:
            busy.kill()
    assert any(name.startswith("python") and cores > 0.1 for cores, name in found)
    assert found == sorted(found, reverse=True)
