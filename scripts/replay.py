"""Train a recorded run again, and say whether its numbers come out again.

python scripts/replay.py RUN_DIRECTORY [threads=1 device=cpu ...]

The new run is in outputs/replay/. Beside the directory there may be what does not make it another
run: device, threads, paths, checkpoint settings. Exit code 0 if all numbers are equal, 1 if not or
if the run fails, 2 for a mistake.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where train.py lies

import train
from cct import resume, signals, tuning
from cct.schema import one_line

TIMED = {"seconds", "images_per_second"}


def differences(old: Path, new: Path) -> list[str]:
    """Return what is not equal: the first number of the metrics, and the weights of the end."""
    from cct.record import read_rows

    there, here = read_rows(old), read_rows(new)
    for before, now in zip(there, here, strict=False):  # the old run may have stopped early
        for key in before.keys() - TIMED:
            if before[key] != now.get(key):
                return [f"epoch {before['epoch']}: {key} {before[key]} there, {now.get(key)} here"]
    if not there:
        return ["the recorded run has no epoch to compare"]
    return weights_that_differ(old / "last.pt", new / "last.pt")


def weights_that_differ(there: Path, here: Path) -> list[str]:
    import torch

    from cct import checkpoint

    if not (there.exists() and here.exists()):
        return []
    old, new = (checkpoint.load(path, torch.device("cpu")) for path in (there, here))
    if old["epoch"] != new["epoch"]:
        return []
    weights = old["model"]
    unequal = [name for name in weights if not torch.equal(weights[name], new["model"][name])]
    return [f"weights: {len(unequal)} of {len(weights)}, {unequal[0]} first"] if unequal else []


def limits(old: Path, new: Path) -> str:
    """Return in words what may be the reason for a difference."""
    from cct import facts
    from cct.record import read_summary

    before, now = read_summary(old), read_summary(new)
    assert before
    assert now
    return facts.differences(before, now)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="the directory of a run")
    parser.add_argument("overrides", nargs="*", help="settings such as threads=1")
    options: Any = parser.parse_args(arguments)
    tuning.prepare()
    signals.listen()
    try:
        asked, out = resume.resumed(options.run, options.overrides)
        if out != options.run:
            raise ValueError(f"epochs={asked.cfg.epochs}: another schedule has other numbers")
    except ValueError as mistake:
        print(f"replay.py: {one_line(mistake)}", file=sys.stderr)
        return 2
    asked.cfg.study = "replay"
    asked = asked._replace(launch=asked.launch._replace(rerun=True))
    try:
        train.answered(asked, asked.out)
    except signals.Interrupted as interrupted:
        return interrupted.code
    found = differences(options.run, asked.out)
    for line in found:
        print(f"not equal: {line}")
    if other := limits(options.run, asked.out):
        print(f"the recorded run had {other}")
    if not found:
        print(f"equal: {options.run} and {os.path.relpath(asked.out)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
