"""Kill a run at random instants, start it again each time, and compare it with an undisturbed one.

python scripts/kill_and_resume.py [--kills 30] [data=digits epochs=20 ...]

Works in a temporary folder. A run that ends before all kills are spent is compared, and another one
begins. Exit code 0 if every number, weight, moment and TensorBoard step is as undisturbed, 1 if one
is not, 2 for a mistake.
"""

import argparse
import json
import logging
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where train.py lies

USUAL = ["data=digits", "mixer=dense", "augment=autoaugment", "mix=mixup_cutmix", "threads=1"]
USUAL += ["data.train_size=500", "data.test_size=100", "model.dim=32", "epochs=20"]


def start(overrides: list[str], folder: Path, study: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *overrides, f"study={study}"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], seconds: float | None = None) -> bool:
    """Wait for the end, or kill the run after some seconds; RuntimeError if it fails by itself."""
    try:
        errors = process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {errors.strip()}")
    return True


def the_run(folder: Path, study: str) -> Path | None:
    found = [*(folder / "outputs" / study).glob("*/seed*")]
    return found[0] if found else None


def result(out: Path) -> dict[str, Any]:
    """Return what must be equal, under the name by which a difference is told."""
    import torch
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every start there was
    state = torch.load(out / "last.pt")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(out)).Reload()
    untimed = [tag for tag in events.Tags()["scalars"] if tag != "images_per_second"]
    summary = json.loads((out / "summary.json").read_text())
    moments = {name: one.values() for name, one in state["optimizer"]["state"].items()}
    return {
        "metrics": [
            {key: row[key] for key in row if key not in ("seconds", "images_per_second")}
            for row in rows
        ],
        "weights": {name: tensor.tolist() for name, tensor in state["model"].items()},
        "moments": {name: [one.tolist() for one in values] for name, values in moments.items()},
        "best epoch": summary["best_epoch"],
        "epoch of best.pt": torch.load(out / "best.pt")["epoch"],
        "curves": {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in untimed},
        # The number of event files is that of starts; who trained is left of one killed at its end.
        "files": sorted(p.name for p in out.iterdir() if not re.match("events|run.pid", p.name)),
    }


def differences(out: Path, undisturbed: dict[str, Any]) -> list[str]:
    found = result(out)
    return [name for name, value in undisturbed.items() if found[name] != value]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("overrides", nargs="*", help=f"by default {' '.join(USUAL)}")
    options = parser.parse_args(arguments)
    overrides, instants = options.overrides or USUAL, random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        try:
            return trial(overrides, Path(name), options.kills, instants)
        except RuntimeError as failure:
            print(f"kill_and_resume.py: {failure}", file=sys.stderr)
            return 2


def trial(overrides: list[str], folder: Path, kills: int, instants: random.Random) -> int:
    began = time.monotonic()
    finished(start(overrides, folder, "undisturbed"))
    longest = time.monotonic() - began
    out = the_run(folder, "undisturbed")
    assert out
    undisturbed = result(out)
    print(f"undisturbed: {longest:.1f} s")
    killed, runs, wrong = 0, 1, 0
    while True:
        study, left = f"killed{runs}", killed < kills
        seconds = instants.uniform(0, longest) if left else None
        done = finished(start(overrides, folder, study), seconds)
        out = the_run(folder, study)
        if not done:
            killed += 1
            rows = out / "metrics.jsonl" if out else None
            epochs = rows.read_text().count("\n") if rows and rows.exists() else 0
            print(f"kill {killed} after {seconds:.2f} s, {epochs} epochs recorded", flush=True)
            continue
        assert out
        unequal = differences(out, undisturbed)
        wrong += bool(unequal)
        print(
            f"run {runs}: {'not equal: ' + ', '.join(unequal) if unequal else 'equal'}", flush=True
        )
        if not left:
            break
        runs += 1
    print(f"{killed} kills, {runs} runs, {wrong} of them not as undisturbed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
