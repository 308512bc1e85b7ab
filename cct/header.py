"""What a run says about itself before its first epoch."""

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cct.data import Data
from cct.model import CCT, Cost


def header(
    configuration: Mapping[str, Any],
    data: Data,
    model: CCT,
    counted: Cost,
    facts: Mapping[str, Any],
    out: Path,
) -> list[str]:
    """Return the lines of a run's header; ``facts`` are those of its summary in ``out``."""
    height, width = data.train.images.shape[-2:]
    grid = "x".join(map(str, model.grid))
    before = f" and {model.pool.prefix} before it" if model.pool.prefix else ""
    choices = facts["choices"]
    batch = min(configuration["batch_size"], len(data.train))
    said = [
        ("run", os.path.relpath(out)),
        ("data", data.name),
        ("", f"{len(data.train):,} training and {len(data.test):,} test images"),
        ("", f"{height}x{width} pixels, {len(data.classes)} classes"),
        ("", f"fingerprint {data.fingerprint[:16]}"),
        ("", f"mean {_three(data.mean)} measured {_three(data.measured_mean)}"),
        ("", f"std  {_three(data.std)} measured {_three(data.measured_std)}"),
        *(("", line) for line in data.warnings()),
        ("model", f"{choices['model']}: {_settings(configuration['model'])}"),
        ("", f"{counted.trainable:,} trainable and {counted.frozen:,} frozen parameters"),
        ("", f"{counted.multiply_adds:,} multiply-adds an image"),
        ("", f"{model.tokens} tokens, a grid of {grid}{before}"),
        *(
            (group, f"{choices[group]}: {_settings(configuration[group])}")
            for group in ("mixer", "pool", "augment", "mix", "optimizer")
        ),
        ("schedule", f"{choices['schedule']}: {_words(facts['schedule'])}"),
        ("training", f"{-(-len(data.train) // batch)} steps an epoch, effective batch {batch}"),
        ("", f"label smoothing {configuration['label_smoothing']}"),
        ("machine", f"{facts['device_name']}, threads {facts['threads']}, {facts['precision']}"),
    ]
    return [line for topic, text in said for line in _lines(topic, text)]


def _lines(topic: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        80,
        initial_indent=f"{topic:<10}",
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _three(numbers: torch.Tensor) -> str:
    return " ".join(f"{number:.4f}" for number in numbers.tolist())


def _settings(node: Mapping[str, Any]) -> str:
    """Name what a node builds, with its settings and those of what is built inside it."""
    own = {key: value for key, value in node.items() if not key.startswith("_")}
    inner = [
        _settings(one)
        for value in own.values()
        if isinstance(value, Mapping)
        for one in ([value] if "_target_" in value else value.values())
    ]
    plain = {key: value for key, value in own.items() if not isinstance(value, Mapping)}
    name = node["_target_"].rpartition(".")[2]
    return " of ".join([f"{name} {_words(plain)}".strip(), " and ".join(inner)]).removesuffix(
        " of "
    )


def _words(values: Mapping[str, Any]) -> str:
    shown = {key: "null" if value is None else value for key, value in values.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())
