"""What is asked of the libraries has an effect, and leaves a person's own wishes."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from cct import tuning
if sys.argv[1] == "prepared":
    tuning.prepare()
import torch
x = torch.ones(2**24)  # 64 MiB
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        x.relu().mul(2).add(x).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(state: str) -> int:
    found = subprocess.run(
        [sys.executable, "-c", FAULTS, state], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's allocator is tuned")
def test_freed_memory_is_kept_for_the_next_step():
    assert faults("prepared") < faults("as it is") / 10


@pytest.mark.parametrize("own", [None, "77"])
def test_a_waiting_time_set_by_hand_stays(own, monkeypatch):
    from cct import tuning

    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if own:
        monkeypatch.setenv("GOMP_SPINCOUNT", own)
    tuning.prepare()
    assert os.environ["GOMP_SPINCOUNT"] == (own or "10000")


def test_the_program_tunes_before_torch_is_loaded():
    order = (
        "import sys; from cct import tuning\n"
        "tuning.prepare = lambda: sys.exit(7 if 'torch' not in sys.modules else 8)\n"
        "import train; train.start(['data=digits'])"
    )
    assert subprocess.run([sys.executable, "-c", order], check=False).returncode == 7
