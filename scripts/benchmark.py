"""How fast is it here: measured in turn against the plain form and the per-image pipeline.

python scripts/benchmark.py [--quick] [--only train_step,augment] [--images path/to/images]

Prints tables, and writes every sample to a JSON file. Exit code 1 if something cannot be measured,
2 for a mistake in the command, 130 after Ctrl-C; the sections finished by then are in the file.
"""

import argparse
import json
import os
import sys
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where cct lies

# Without torch: the processes that measure import this file before they tune themselves for it.
from cct.benchmark.bench import Asked, source
from cct.benchmark.sections import SECTIONS
from cct.benchmark.turns import Failed
from cct.build import build_source
from cct.config import compose


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
    if options.images == "":
        parser.error("--images: the name of a folder is needed")
    return options


def asked_of(options: argparse.Namespace) -> Asked:
    """Return what is asked for as this machine has it; ValueError for what it has not."""
    from cct import machine

    device = machine.resolve_device(options.device)
    threads = options.threads
    if threads != "auto" and not (threads.isdecimal() and int(threads)):
        raise ValueError(f"threads={threads}: auto or a whole number of at least 1")
    asked = Asked(
        str(device),
        machine.resolve_precision(options.precision, device),
        machine.resolve_threads(threads),
        os.path.abspath(options.images) if options.images else None,
    )
    try:
        build_source(compose(source(asked, 10_000, 2_000)).cfg)
    except ValueError as mistake:
        raise ValueError(
            f"--images {options.images}: 10,000 training and 2,000 test images are needed, as many "
            f"of each class ({mistake})"
        ) from mistake
    return asked


def main(arguments: list[str]) -> int:
    if isinstance(sys.stdout, TextIOWrapper):  # each table as soon as it is there, also into a pipe
        sys.stdout.reconfigure(line_buffering=True)
    options = parse(arguments)

    from cct.benchmark.facts import machine_facts

    try:
        asked = asked_of(options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.open("x").close()
    except (ValueError, OSError) as mistake:
        where = (
            f"--out {options.out}: {mistake.strerror}" if isinstance(mistake, OSError) else mistake
        )
        print(f"benchmark.py: {where}", file=sys.stderr)
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
    except BrokenPipeError:  # nobody reads the tables
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
