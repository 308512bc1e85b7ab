"""The sections of the benchmark: what takes turns with what, and the table made of it."""

import statistics
from contextlib import ExitStack
from typing import Any

from cct.benchmark import subjects
from cct.benchmark.bench import BATCH, Asked, root, source
from cct.benchmark.start import first_steps
from cct.benchmark.turns import Failed, Sample, Subject, in_turn, progress, ratio, spread

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


def train_step(asked: Asked, quick: bool) -> dict[str, Any]:
    """One training step in its plain and its fast form."""
    forms = ["plain", "fast"]
    if not quick:  # as trained is one of the last two, by the device
        forms += ["compiled", "deterministic", "any result"]
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


def augment(asked: Asked, quick: bool) -> dict[str, Any]:
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


def epoch(asked: Asked, quick: bool) -> dict[str, Any]:
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


def models(asked: Asked, quick: bool) -> dict[str, Any]:
    """A training step of every mixer and of every size of the model."""
    from cct.config import options

    print("ratio is of images/s to the first row's, measured in turn with it: compare rows by it\n")
    result = {}
    batches = {"cct_2_3x2": BATCH} | ({} if quick else {"cct_7_3x1": SMALL_BATCH})
    for model, batch in batches.items():
        named = {mixer: [f"model={model}", f"mixer={mixer}"] for mixer in options("mixer")}
        rounds = 2 if quick else 5
        result[model] = against(asked, model, "self_attention", named, rounds, batch=batch, steps=1)
    if not quick:
        named = {model: [f"model={model}"] for model in options("model")}
        how = {"batch": SMALL_BATCH, "steps": 4}  # one step of the small model is too short to time
        result["sizes"] = against(asked, "self_attention", "cct_2_3x2", named, 3, **how)
    return {"samples": result}


def against(
    asked: Asked,
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


def start(asked: Asked, quick: bool) -> dict[str, Any]:
    """Seconds from the command to the end of the first training step."""
    commands = {"data=synthetic": source(asked._replace(images=None), 50_000, 10_000)}
    if asked.images:
        commands["data=folder"] = ["data=folder", root(asked.images)]
    fixed = [f"device={asked.device}", f"threads={asked.threads}"]
    found = {
        name: first_steps(name, [*fixed, *chosen], 1 if quick else 5)
        for name, chosen in commands.items()
    }
    titles = ("", "seconds to the first step (range)")
    show([titles, *((name, spread(seconds)) for name, seconds in found.items())])
    return {"samples": found}


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


SECTIONS = {
    "train_step": train_step,
    "augment": augment,
    "epoch": epoch,
    "models": models,
    "start": start,
}
