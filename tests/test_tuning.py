"""What is asked of the libraries has an effect, and leaves a person's own wishes."""

import os
import re
import subprocess
import sys
from pathlib import Path

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


PAGES = """
from cct import tuning
tuning.prepare()
import torch
x = torch.ones(2**24)  # 64 MiB
print(open("/proc/self/smaps_rollup").read())
"""
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="there are none"
)
def test_large_tensors_lie_in_large_pages():
    found = subprocess.run(
        [sys.executable, "-c", PAGES], capture_output=True, text=True, check=True
    )
    (kilobytes,) = re.findall(r"AnonHugePages: +(\d+) kB", found.stdout)
    assert int(kilobytes) > 32 * 1024


@pytest.mark.parametrize(
    ("name", "value"), [("GOMP_SPINCOUNT", "10000"), ("THP_MEM_ALLOC_ENABLE", "1")]
)
@pytest.mark.parametrize("own", [None, "77"])
def test_what_a_person_set_by_hand_stays(name, value, own, monkeypatch):
    from cct import tuning

    monkeypatch.setenv("GOMP_SPINCOUNT", "1")  # and so removed after the test
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    monkeypatch.delenv(name)
    if own:
        monkeypatch.setenv(name, own)
    tuning.prepare()
    assert os.environ[name] == (own or value)


def test_the_program_tunes_before_torch_is_loaded():
    order = (
        "import sys; from cct import tuning\n"
        "tuning.prepare = lambda: sys.exit(7 if 'torch' not in sys.modules else 8)\n"
        "import train; train.start(['data=digits'])"
    )
    assert subprocess.run([sys.executable, "-c", order], check=False).returncode == 7
