"""How fast is it here: measured in turn against the plain form and the per-image pipeline.

python scripts/benchmark.py [--quick] [--only train_step,augment] [--images path/to/images]

Prints tables, and writes every sample to a JSON file. Exit code 1 if something cannot be measured,
2 for a mistake in the command, 130 after Ctrl-C; the sections finished by then are in the file.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where train.py lies

from cct.measure import (
    Failed,
    Sample,
    Subject,
    busy_processes,
    in_turn,
    progress,
    ratio,
    spread,
)
from scripts import benchmark_subjects as subjects

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
SMALL_BATCH = 32  # two processes with cct_7_3x1 at 128 would take 26 GB
Rows = list[tuple[Any, ...]]


def measured(named: dict[str, tuple], rounds: int) -> dict[str, list[Sample]]:
    """Build each subject, then let them take turns; those that cannot be built are left out."""
    with ExitStack() as stack:
        running = {}
        for name, (build, settings) in named.items():
            progress(f"building: {name}")
            try:
                running[name] = stack.enter_context(Subject(build, **settings))
            except Failed as failure:
                if name != "compiled":
                    raise
                progress("")
                print(f"compiled is left out: {failure}")
        return in_turn(running, rounds, progress)


def train_step(asked: dict[str, Any], quick: bool) -> dict[str, Any]:
    """One training step in its plain and its fast form."""
    forms = ["plain", "fast"] if quick else ["plain", "fast", "compiled"]
    steps = 2 if quick else 5
    named: dict[str, tuple] = {
        form: (
            subjects.training,
            {"form": form, "asked": asked, "overrides": [], "steps": steps},
        )
        for form in forms
    }
    named["products"] = (subjects.products, {"asked": asked, "size": 1024 if quick else 2048})
    samples = measured(named, 3 if quick else 11)
    peak, flops = samples.pop("products"), samples["plain"][0]["flops"]
    rows: Rows = [("CCT-2/3x2", "images/s (range)", "times plain", "of peak")]
    for form, found in samples.items():
        speed = spread([one["images_per_second"] for one in found])
        times = ratio(found, samples["plain"], "images_per_second")
        share = statistics.median(
            one["images_per_second"] * flops / other["flops_per_second"]
            for one, other in zip(found, peak, strict=True)
        )
        rows.append((form, speed, f"{times:.2f}", f"{share:.0%}"))
    show(rows)
    best = statistics.median(one["flops_per_second"] for one in peak)
    print(
        f"peak: {best / 1e9:,.0f} GFLOP/s in products of matrices; {flops / 1e9:.4f} GFLOP an image"
    )
    return {"samples": samples | {"products": peak}, "flops_per_image": flops}


def augment(asked: dict[str, Any], quick: bool) -> dict[str, Any]:
    """AutoAugment, crop, flip, normalisation; plain is one image at a time."""
    named = {
        form: (
            subjects.augmentation,
            {"form": form, "asked": asked, "count": 500 if quick else 5000},
        )
        for form in ("plain", "fast")
    }
    samples = measured(named, 3 if quick else 9)
    return comparison(samples, "images/s of one core (range)", "images_per_second")


def epoch(asked: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Augment, train, evaluate; plain is DataLoader and the plain model."""
    size = {"train": 640, "test": 128} if quick else {"train": 10_000, "test": 2_000}
    named: dict[str, tuple] = {
        f"plain, {workers} workers": (
            subjects.loader_epoch,
            {"asked": asked, **size, "workers": workers},
        )
        for workers in (4, 2)
    }
    named["fast"] = (subjects.fast_epoch, {"asked": asked, **size})
    samples = measured(named, 1 if quick else 3)
    print(f"an epoch of {size['train']:,} training and {size['test']:,} test images")
    result = comparison(samples, "epochs an hour (range)", "epochs_per_second", 3600)
    share = statistics.median(one["share_of_evaluation"] for one in samples["fast"])
    print(f"share of evaluation in the fast epoch: {share:.1%}")
    return result


def comparison(
    samples: dict[str, list[Sample]], title: str, key: str, unit: float = 1
) -> dict[str, Any]:
    rows: Rows = [("", title, "fast is")]
    for name, found in samples.items():
        times = ratio(samples["fast"], found, key)
        rows.append((name, spread([one[key] * unit for one in found]), f"{times:.2f} times this"))
    show(rows)
    return {"samples": samples}


def models(asked: dict[str, Any], quick: bool) -> dict[str, Any]:
    """A training step of every mixer and of every size of the model."""
    from cct.config import options

    result = {}
    batches = {"cct_2_3x2": subjects.BATCH} | ({} if quick else {"cct_7_3x1": SMALL_BATCH})
    for model, batch in batches.items():
        named = {mixer: [f"model={model}", f"mixer={mixer}"] for mixer in options("mixer")}
        rounds = 2 if quick else 5
        result[model] = against(asked, model, "self_attention", named, rounds, batch=batch, steps=1)
    if not quick:
        named = {model: [f"model={model}"] for model in options("model")}
        how = {"batch": SMALL_BATCH, "steps": 4}  # one step of the small model is too short to time
        result["sizes"] = against(asked, "self_attention", "cct_2_3x2", named, 3, **how)
    print("ratio: of images/s to the first row's, measured in turn with it")
    return {"samples": result}


def against(
    asked: dict[str, Any],
    title: str,
    first: str,
    named: dict[str, list[str]],
    rounds: int,
    *,
    batch: int,
    steps: int,
) -> dict[str, list[Sample]]:
    """Show a row for each of the named overrides, each in turn with the first one."""
    title = f"{title}, batch {batch}"
    rows: Rows = [(title, "parameters", "M madds", "images/s (range)", "ratio", "MiB")]
    result = {}
    how = {"form": "fast", "asked": asked, "batch": batch, "steps": steps}
    for name in sorted(named, key=lambda name: (name != first, name)):
        pair = {one: (subjects.training, how | {"overrides": named[one]}) for one in (first, name)}
        samples = measured(pair, rounds)
        result[name] = found = samples[name]
        counted = subjects.counted(named[name])
        rows.append(
            (
                name,
                f"{counted.trainable + counted.frozen:,}",
                f"{counted.multiply_adds / 1e6:,.1f}",
                spread([one["images_per_second"] for one in found]),
                f"{ratio(found, samples[first], 'images_per_second'):.2f}",
                f"{max(one['memory'] for one in found):,.0f}",
            )
        )
    show(rows)
    print()
    return result


def start(asked: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Seconds from the command to the end of the first training step."""
    commands = {"data=synthetic": subjects.source(asked | {"images": None}, 50_000, 10_000)}
    if asked["images"]:
        commands["data=folder"] = ["data=folder", f"data.root='{asked['images']}'"]
    rows: Rows = [("", "seconds to the first step (range)")]
    result = {}
    for name, command in commands.items():
        fixed = [f"device={asked['device']}", f"threads={asked['threads']}", *command]
        seconds = []
        for number in range(2 if quick else 6):  # the first one fills the caches
            progress(f"start {number}: {name}")
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(first_step(fixed, folder))
        progress("")
        result[name] = seconds[1:]
        rows.append((name, spread(seconds[1:])))
    show(rows)
    return {"samples": result}


def first_step(overrides: list[str], folder: str) -> float:
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


SECTIONS = {
    "train_step": train_step,
    "augment": augment,
    "epoch": epoch,
    "models": models,
    "start": start,
}


def show(rows: Rows) -> None:
    """Print rows, the first of them the titles, as a table that Markdown also understands."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        first, *others = zip(row, widths, strict=True)
        right = [cell.rjust(width) for cell, width in others]
        print("| " + " | ".join([first[0].ljust(first[1]), *right]) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def machine_facts(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the figures depend on, and what else uses the machine."""
    import importlib.metadata

    from cct.machine import usable_cores

    busy = [f"{name} {cores:.1f}" for cores, name in busy_processes()]
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "threads": asked["threads"],
        "device": asked["device_name"],
        "precision": asked["precision"],
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "preloaded": os.environ.get("LD_PRELOAD", "nothing"),
        "also busy": ", ".join(busy) or "nothing",
    }


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--threads", default="auto", help="a number, or auto")
    parser.add_argument("--images", help="a folder {train,test}/<class>; else random images")
    parser.add_argument("--quick", action="store_true", help="small and few samples: a try")
    parser.add_argument("--only", default=",".join(SECTIONS), help="some of %(default)s")
    parser.add_argument("--out", type=Path, help="the JSON file, by default in outputs/benchmark")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    for name in options.only:
        if name not in SECTIONS:
            parser.error(f"--only: no section {name}; there are {', '.join(SECTIONS)}")
    if options.out is None:
        options.out = Path("outputs/benchmark") / f"{datetime.now():%Y-%m-%d_%H%M%S}.json"
    if options.out.exists():
        parser.error(f"--out: {options.out} exists")
    return options


def main(arguments: list[str]) -> int:
    if isinstance(sys.stdout, TextIOWrapper):  # each table as soon as it is there, also into a pipe
        sys.stdout.reconfigure(line_buffering=True)
    options = parse(arguments)
    try:
        asked = subjects.resolved(options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as mistake:
        print(f"benchmark.py: {mistake}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {"machine": machine_facts(asked), "quick": options.quick}
    for name, fact in report["machine"].items():
        print(f"{name:<10} {fact}")
    for name in options.only:
        section = SECTIONS[name]
        print(f"\n{name}: {section.__doc__}\n")
        try:
            report[name] = section(asked, options.quick)
        except Failed as failure:
            print(f"benchmark.py: {name}: {failure}", file=sys.stderr)
            return 1
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"every sample: {options.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
