"""What a run says about itself before its first epoch."""

from collections.abc import Iterator, Mapping
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
) -> Iterator[str]:
    """Give the lines of a run's header; ``facts`` are those of its summary."""
    height, width = data.train.images.shape[-2:]
    yield f"{facts['name']} seed {configuration['seed']}"
    yield f"data       {data.name}"
    yield (
        f"           {len(data.train):,} training and {len(data.test):,} test images of "
        f"{height}x{width}, {len(data.classes)} classes"
    )
    yield f"           fingerprint {data.fingerprint[:16]}"
    yield f"           mean {_three(data.mean)} measured {_three(data.measured_mean)}"
    yield f"           std  {_three(data.std)} measured {_three(data.measured_std)}"
    yield from (f"           {line}" for line in data.warnings())
    yield (
        f"model      {counted.trainable:,} trainable and {counted.frozen:,} frozen parameters, "
        f"{counted.multiply_adds / 1e6:.1f} M"
    )
    grid = "x".join(map(str, model.grid))
    before = f" and {model.pool.prefix} before them" if model.pool.prefix else ""
    yield f"           multiply-adds an image, {model.tokens} tokens: {grid}{before}"
    for group in ("mixer", "pool", "augment", "optimizer"):
        yield f"{group:<11}{_settings(configuration[group])}"
    schedule = _words(facts["schedule"])
    yield f"schedule   {schedule}"
    batch = min(configuration["batch_size"], len(data.train))
    steps = -(-len(data.train) // batch)
    yield f"training   {steps} steps an epoch, effective batch {batch}"
    yield f"machine    {facts['device']}, {facts['threads']} threads, {facts['precision']}"


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
