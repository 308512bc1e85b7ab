"""The training loop, whole."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from cct.augment import Policy
from cct.augment.mix import Mix, cross_entropy, unmixed
from cct.checkpoint import Checkpoints
from cct.data import Data, Split
from cct.optim import set_learning_rate
from cct.randomness import Seeds, generator, numpy_generator, seed_of
from cct.record import Record
from cct.signals import stop_if_asked


@dataclass(frozen=True)
class Plan:
    """The numbers that steer training; sizes in images, the precision is fp32 or bf16."""

    epochs: int
    batch_size: int
    eval_batch_size: int
    label_smoothing: float
    seeds: Seeds
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
        stop_if_asked()
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
    torch.manual_seed(seed_of(plan.seeds.dropout, "dropout", epoch))
    order = torch.randperm(len(split), generator=generator(plan.seeds.order, "order", epoch)).to(
        device
    )
    draws = augment.draw(len(split), generator(plan.seeds.augment, "augment", epoch))
    sizes = torch.tensor([len(index) for index in order.split(plan.batch_size)], device=device)
    losses, norms = torch.zeros(len(sizes), device=device), torch.zeros(len(sizes), device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    recipes = mix.draw(epoch, len(sizes), numpy_generator(plan.seeds.augment, "mix", epoch))
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
        stop_if_asked()
        if time.monotonic() > due:  # waits for the device, so not at every step
            require_finite(losses[checked : step + 1], epoch * len(sizes) + checked)
            checked, due = step + 1, time.monotonic() + 1
    require_finite(losses, epoch * len(sizes))
    return {
        "loss": (losses * sizes).sum().item() / len(split),
        "top1": 100 * correct.item() / len(split) if set(recipes) == {unmixed} else math.nan,
        "gradient_norm": norms.mean().item(),
    }


def tested(model: nn.Module, data: Data, plan: Plan, epoch: int) -> dict[str, Any]:
    """Return the columns of a row that tell of the test images."""
    loss, correct = evaluate(model, data, data.test, plan)
    if not math.isfinite(loss):
        raise FloatingPointError(f"the test loss is {loss} after epoch {epoch}")
    count = len(data.test)
    return {
        "test_loss": loss,
        "test_top1": 100 * correct / count,
        "test_correct": correct,
        "test_count": count,
    }


def record_untrained(
    model: nn.Module,
    data: Data,
    optimizer: torch.optim.Optimizer,
    record: Record,
    checkpoints: Checkpoints,
    plan: Plan,
) -> None:
    """Record the fresh weights as epoch 0, which is all that ``epochs=0`` asks for."""
    began = time.monotonic()
    row = {"epoch": 0, "lr": None, "train_loss": None, "train_top1": None}
    row |= tested(model, data, plan, 0)
    row |= {"seconds": time.monotonic() - began, "images_per_second": None}
    record.add_epoch(row, math.nan)
    checkpoints.save(model, optimizer, 0, best=True, final=True)


def fit(
    model: nn.Module,
    data: Data,
    augment: Policy,
    mix: Mix,
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float],
    record: Record,
    checkpoints: Checkpoints,
    plan: Plan,
) -> None:
    """Train from the epoch after the record's last to the plan's last, recording each.

    Raises FloatingPointError when the loss is not finite.
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
            row = {
                "epoch": epoch + 1,
                "lr": rate,
                "train_loss": trained["loss"],
                "train_top1": trained["top1"],
                **tested(model, data, plan, epoch + 1),
                "seconds": time.monotonic() - began,
                "images_per_second": count / training_seconds,
            }
            record.add_epoch(row, trained["gradient_norm"])
            best = record.best["epoch"] == epoch + 1
            final = epoch + 1 == plan.epochs
            if checkpoints.save(model, optimizer, epoch + 1, best=best, final=final):
                record.resumable = epoch + 1
