"""The first signal waits for the batch in hand, the second does not; outside of both none waits."""

import signal

import pytest

from cct import signals
from cct.signals import Interrupted


@pytest.fixture(autouse=True)
def _listening():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signals.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_at_once_where_nothing_is_in_hand(number, code):
    with pytest.raises(Interrupted) as stopped:
        signal.raise_signal(number)
    assert stopped.value.code == code
    signals.stop_if_asked()  # nothing is left of it


def test_the_first_signal_waits_until_it_is_asked_for(capsys):
    done = []
    with pytest.raises(Interrupted), signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        done.append("batch")
        signals.stop_if_asked()
        done.append("next batch")
    assert done == ["batch"]
    assert "finishing this batch; once more stops at once" in capsys.readouterr().err
    signals.stop_if_asked()


def test_the_second_signal_does_not_wait():
    done = []
    with pytest.raises(Interrupted) as stopped, signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        done.append("batch")
        signal.raise_signal(signal.SIGINT)
        done.append("rest")
    assert done == ["batch"]
    assert stopped.value.code == 130


def test_a_signal_that_nobody_asked_for_comes_at_the_end():
    done = []
    with pytest.raises(Interrupted), signals.deferred():
        signal.raise_signal(signal.SIGINT)
        done.append("last batch")
    assert done == ["last batch"]


def test_a_failure_is_told_although_a_signal_came_before_it():
    with pytest.raises(ValueError, match="broken"), signals.deferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("broken")
    with signals.deferred():
        pass  # the signal of then does not stop what comes now


def test_a_signal_that_a_shell_ignores_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals.listen()
    signal.raise_signal(signal.SIGINT)
