"""Optimisers with their parameter groups, and learning rates as functions of the epoch."""

import math

import torch
from torch import Tensor, nn

from cct.limits import BelowOne, NonNegative, Positive, Whole


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Split the trainable parameters: decayed, and those a module lists in ``no_weight_decay``."""
    spared = {
        id(module.get_parameter(name))
        for module in model.modules()
        for name in getattr(module, "no_weight_decay", ())
    }
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if id(p) not in spared], "weight_decay": weight_decay},
        {"params": [p for p in trainable if id(p) in spared], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    model: nn.Module,
    *,
    lr: Positive,
    weight_decay: NonNegative,
    betas: list[BelowOne],
    eps: Positive,
) -> torch.optim.Optimizer:
    """Return AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) over the model's parameters.

    On CUDA its state and learning rate are tensors there, so that a step reads nothing from here.
    """
    if len(betas) != 2:
        raise ValueError(f"optimizer.betas={list(betas)}: two numbers are needed")
    groups = parameter_groups(model, weight_decay)
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    rate = torch.tensor(lr, device=device) if cuda else lr
    return torch.optim.AdamW(
        groups, lr=rate, betas=(betas[0], betas[1]), eps=eps, fused=True, capturable=cuda
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class WarmupCosine:
    """The schedule of the authors' example script, per epoch.

    While warming up, peak / (warm-up epochs left); then half a cosine from the peak towards 0.
    ``warmup_epochs`` null means min(5, epochs // 2). Raises ValueError when it exceeds ``epochs``.
    """

    def __init__(self, epochs: int, peak: float, *, warmup_epochs: Whole | None) -> None:
        if warmup_epochs is None:
            warmup_epochs = min(5, epochs // 2)
        if warmup_epochs > epochs:
            raise ValueError(f"schedule.warmup_epochs={warmup_epochs} exceeds epochs={epochs}")
        self.epochs, self.peak, self.warmup_epochs = epochs, peak, warmup_epochs

    def __call__(self, epoch: int) -> float:
        """Return the learning rate of ``epoch``, counted from 0."""
        if epoch < self.warmup_epochs:
            return self.peak / (self.warmup_epochs - epoch)
        done = (epoch - self.warmup_epochs) / (self.epochs - self.warmup_epochs)
        return self.peak * 0.5 * (1 + math.cos(math.pi * done))


class Constant:
    """The same learning rate in every epoch."""

    def __init__(self, epochs: int, peak: float) -> None:
        self.epochs, self.peak = epochs, peak

    def __call__(self, epoch: int) -> float:  # noqa: ARG002
        return self.peak
