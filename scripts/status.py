"""What is finished, running, failed or missing in a study.

python scripts/status.py outputs/<study>

Missing are runs that a sweep of this study was to have and that have not begun. Exit code 0 if all
are finished, 1 if not, 2 for a mistake.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where cct lies

from cct.status import State, launched_in, minutes, runs_in, state_of


def row(study: Path, state: State) -> str:
    epochs = f"{state.done}/{state.epochs}" if state.status != "missing" else ""
    top1 = "" if state.top1 is None else f"{state.top1:.2f}"
    left = minutes(state.left) if state.status in ("running", "interrupted", "failed") else ""
    spent = minutes(state.seconds) if state.done else ""
    place = os.path.relpath(state.out, study)
    return f"{state.status:<11} {epochs:>9} {top1:>6} {spent:>7} {left:>7}  {place}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", type=Path, help="a folder of runs, such as outputs/default")
    study = parser.parse_args(arguments).study
    if not study.is_dir():
        parser.error(f"{study}: no such folder")
    places = list(dict.fromkeys([*runs_in(study), *launched_in(study)]))
    if not places:
        parser.error(f"{study}: there is no run in it")
    print(f"{'status':<11} {'epochs':>9} {'top-1':>6} {'minutes':>7} {'to go':>7}  run")
    counts: dict[str, int] = {}
    for place in places:
        try:
            state = state_of(place)
        except ValueError as damage:
            state = State(place, "damaged", reason=str(damage))
        counts[state.status] = counts.get(state.status, 0) + 1
        print(row(study, state))
        if state.reason:
            print(f"    {state.reason}")
    print(f"{study}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0 if counts.keys() == {"finished"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
