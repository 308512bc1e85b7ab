"""The training loop, whole."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from cct import checkpoint
from cct.augment import Policy
from cct.augment.mix import Mix, cross_entropy, unmixed
from cct.data import Data, Split
from cct.optim import set_learning_rate
from cct.randomness import generator, numpy_generator, seed_of
from cct.record import Record, versions


@dataclass(frozen=True)
class Plan:
    """The numbers that steer training; sizes in images, the precision is fp32 or bf16."""

    epochs: int
    batch_size: int
    eval_batch_size: int
    label_smoothing: float
    seed: int
    precision: str

    def autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, split: Split, plan: Plan) -> tuple[float, int]:
    """Return the mean cross entropy, without smoothing, and the number of correct images."""
    model.eval()
    device = split.labels.device
    loss = torch.zeros((), dtype=torch.float64 if device.type != "mps" else None, device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    batches = zip(
        split.images.split(plan.eval_batch_size),
        split.labels.split(plan.eval_batch_size),
        strict=True,
    )
    for images, labels in batches:
        with plan.autocast(device):
            logits = model(data.normalize(images)).float()
        loss += F.cross_entropy(logits, labels, reduction="sum")
        correct += (logits.argmax(1) == labels).sum()
    return loss.item() / len(split), int(correct.item())


def require_finite(losses: Tensor, steps_before: int) -> None:
    """Raise FloatingPointError naming the first step whose loss is not a finite number."""
    wrong = (~losses.isfinite()).nonzero()
    if len(wrong):
        step = int(wrong[0].item())
        raise FloatingPointError(
            f"the loss is {losses[step].item()} at step {steps_before + step + 1}"
        )


def augmented_batches(
    split: Split, augment: Policy, order: Tensor, draws: Tensor, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of images and labels in ``order``, augmented about a chunk at a time."""
    chunk = batch_size * max(1, augment.chunk // batch_size)
    for index, drawn in zip(order.split(chunk), draws.split(chunk), strict=True):
        images, labels = augment(split.images[index], drawn), split.labels[index]
        yield from zip(images.split(batch_size), labels.split(batch_size), strict=True)


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Take one step down the gradient of the loss; return the gradient's norm."""
    optimizer.zero_grad()
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    optimizer.step()
    return norm


def train_epoch(
    model: nn.Module,
    data: Data,
    augment: Policy,
    mix: Mix,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    epoch: int,
    bar: tqdm,
) -> dict[str, float]:
    """Train on every image once; return the mean loss, top-1 and gradient norm.

    The order of images, the augmentation, mixing and dropout are functions of (seed, epoch). Where
    a batch was mixed top-1 is nan, as images of two classes have no right answer.
    """
    model.train()
    split, device = data.train, data.train.labels.device
    torch.manual_seed(seed_of(plan.seed, "dropout", epoch))
    order = torch.randperm(len(split), generator=generator(plan.seed, "order", epoch)).to(device)
    draws = augment.draw(len(split), generator(plan.seed, "augment", epoch))
    sizes = torch.tensor([len(index) for index in order.split(plan.batch_size)], device=device)
    losses, norms = torch.zeros(len(sizes), device=device), torch.zeros(len(sizes), device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    recipes = mix.draw(epoch, len(sizes), numpy_generator(plan.seed, "mix", epoch))
    checked, due = 0, time.monotonic() + 1
    batches = augmented_batches(split, augment, order, draws, plan.batch_size)
    for step, ((images, labels), recipe) in enumerate(zip(batches, recipes, strict=True)):
        mixed, share = recipe(data.normalize(images))
        with plan.autocast(device):
            logits = model(mixed).float()
        loss = cross_entropy(logits, labels, share, plan.label_smoothing)
        norms[step] = descend(model, optimizer, loss)
        losses[step] = loss.detach()
        correct += (logits.argmax(1) == labels).sum()
        bar.update(len(labels))
        if time.monotonic() > due:  # waits for the device, so not at every step
            require_finite(losses[checked : step + 1], epoch * len(sizes) + checked)
            checked, due = step + 1, time.monotonic() + 1
    require_finite(losses, epoch * len(sizes))
    return {
        "loss": (losses * sizes).sum().item() / len(split),
        "top1": 100 * correct.item() / len(split) if set(recipes) == {unmixed} else math.nan,
        "gradient_norm": norms.mean().item(),
    }


def fit(
    model: nn.Module,
    data: Data,
    augment: Policy,
    mix: Mix,
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float],
    record: Record,
    plan: Plan,
    configuration: dict[str, Any],
) -> None:
    """Train from the epoch after the record's last to the plan's last, recording each.

    After every epoch ``last.pt`` holds the state to go on from, and ``best.pt`` that of the best
    epoch on the test set. Raises FloatingPointError when the loss is not finite.
    """
    start, count = len(record.rows), len(data.train)
    with tqdm(
        total=plan.epochs * count,
        initial=start * count,
        unit=" images",
        unit_scale=True,
        dynamic_ncols=True,
        leave=False,
        disable=None,
    ) as bar:
        for epoch in range(start, plan.epochs):
            bar.set_description(f"Epoch {epoch + 1}/{plan.epochs}")
            began = time.monotonic()
            rate = schedule(epoch)
            set_learning_rate(optimizer, rate)
            trained = train_epoch(model, data, augment, mix, optimizer, plan, epoch, bar)
            training_seconds = time.monotonic() - began
            test_loss, correct = evaluate(model, data, data.test, plan)
            if not math.isfinite(test_loss):
                raise FloatingPointError(f"the test loss is {test_loss} after epoch {epoch + 1}")
            row = {
                "epoch": epoch + 1,
                "lr": rate,
                "train_loss": trained["loss"],
                "train_top1": trained["top1"],
                "test_loss": test_loss,
                "test_top1": 100 * correct / len(data.test),
                "test_correct": correct,
                "test_count": len(data.test),
                "seconds": time.monotonic() - began,
                "images_per_second": count / training_seconds,
            }
            record.add_epoch(row, trained["gradient_norm"])
            save(record.out, model, optimizer, epoch + 1, configuration, record.best["epoch"])


def save(
    out: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    configuration: dict[str, Any],
    best_epoch: int,
) -> None:
    """Write ``last.pt``, and ``best.pt`` first where this epoch is the best."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
        "config": configuration,
        "versions": versions(),
    }
    for name in ("best.pt", "last.pt") if epoch == best_epoch else ("last.pt",):
        checkpoint.save(out / name, **state)
