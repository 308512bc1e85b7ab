"""Seconds from the command to the end of the first training step."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cct.benchmark.turns import Failed, progress

ROOT = Path(__file__).resolve().parents[2]

# train.py as it is, but that it ends with the first step of the optimiser
FIRST_STEP = """
import os, runpy, sys, time
from cct import tuning
tuning.prepare()
import torch
step = torch.optim.AdamW.step
def first(*arguments, **settings):
    step(*arguments, **settings)
    print("first step at", time.time(), flush=True)
    os._exit(0)
torch.optim.AdamW.step = first
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def first_step(overrides: list[str], folder: str) -> float:
    """Return the seconds that ``train.py`` took in an empty folder; Failed with its last line."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP, str(ROOT / "train.py"), *overrides],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    line = done.stdout.splitlines()[-1:] or [""]
    if not line[0].startswith("first step at"):
        raise Failed(f"no first step: {done.stderr.strip().splitlines()[-1:]}")
    return float(line[0].split()[-1]) - began


def first_steps(name: str, overrides: list[str], count: int) -> list[float]:
    """Return the seconds of several starts; one before them, not counted, fills the caches."""
    seconds = []
    for number in range(count + 1):
        progress(f"start {number} of {count}: {name}")
        with tempfile.TemporaryDirectory() as folder:
            seconds.append(first_step(overrides, folder))
    progress("")
    return seconds[1:]
