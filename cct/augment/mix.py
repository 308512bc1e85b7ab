"""Mixing: each image of a normalised batch with its neighbour, the one before it in the batch.

``mix.draw(epoch, batches, generator)`` draws a recipe for every batch of an epoch, counted from 0.
``recipe(images)`` returns the batch (B, 3, h, w) mixed, and the share of each result that is the
image itself; the rest is its neighbour's. The first image's neighbour is the last, so that a batch
of one stays as it is. A recipe holds plain numbers, so that no device is waited for.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from cct.limits import Fraction, Later, Positive

Recipe = Callable[[Tensor], tuple[Tensor, float]]


class Mix(Protocol):
    def draw(self, epoch: int, batches: int, generator: Generator) -> list[Recipe]: ...


def unmixed(images: Tensor) -> tuple[Tensor, float]:
    return images, 1.0


def blend(images: Tensor, share: float) -> tuple[Tensor, float]:
    """Add the neighbour's pixels to each image's own (mixup)."""
    return images.lerp(images.roll(1, 0), 1 - share), share


def paste(images: Tensor, share: float, down: float, right: float) -> tuple[Tensor, float]:
    """Put the neighbour's pixels into one box, the same in all images of the batch (cutmix).

    The box is shaped like the image, of 1 - ``share`` of its area, with its centre at these parts
    of height and width. What lies outside is cut off; the share returned is the true one.
    """
    height, width = images.shape[-2:]
    rows, columns = _span(height, share, down), _span(width, share, right)
    mixed = images.clone()
    mixed[:, :, rows, columns] = images[:, :, rows, columns].roll(1, 0)
    pasted = (rows.stop - rows.start) * (columns.stop - columns.start)
    return mixed, 1 - pasted / (height * width)


def _span(length: int, share: float, place: float) -> slice:
    """Return the box's extent along one side, even unless cut off, as in the authors' code."""
    half, center = int(length * (1 - share) ** 0.5) // 2, int(length * place)
    return slice(max(center - half, 0), min(center + half, length))


def cross_entropy(logits: Tensor, labels: Tensor, share: float, label_smoothing: float) -> Tensor:
    """Return the mean loss (B C), (B) -> () of images with this share of their own label."""
    own = F.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    if share == 1:
        return own
    neighbour = F.cross_entropy(logits, labels.roll(1, 0), label_smoothing=label_smoothing)
    return share * own + (1 - share) * neighbour


class NoMix:
    """Leave every batch as it is."""

    def draw(self, epoch: int, batches: int, generator: Generator) -> list[Recipe]:  # noqa: ARG002
        return [unmixed] * batches


class Mixup:
    """Blend a batch with ``probability``, the share drawn from Beta(``mixup``, ``mixup``).

    Zhang et al. 2018 (arXiv:1710.09412). ``off_epoch``, counted from 1 as the console does, is the
    first epoch without mixing.
    """

    def __init__(self, *, mixup: Positive, probability: Fraction, off_epoch: Later | None) -> None:
        self.mixup, self.probability, self.off_epoch = mixup, probability, off_epoch

    def draw(self, epoch: int, batches: int, generator: Generator) -> list[Recipe]:
        recipes = _blends(self.mixup, batches, generator)
        return _sometimes(recipes, self.probability, self.off_epoch, epoch, generator)


class Cutmix:
    """Paste into a batch with ``probability``, the share drawn from Beta(``cutmix``, ``cutmix``).

    Yun et al. 2019 (arXiv:1905.04899). ``off_epoch`` is that of ``Mixup``.
    """

    def __init__(self, *, cutmix: Positive, probability: Fraction, off_epoch: Later | None) -> None:
        self.cutmix, self.probability, self.off_epoch = cutmix, probability, off_epoch

    def draw(self, epoch: int, batches: int, generator: Generator) -> list[Recipe]:
        recipes = _pastes(self.cutmix, batches, generator)
        return _sometimes(recipes, self.probability, self.off_epoch, epoch, generator)


class MixupCutmix:
    """Mix a batch with ``probability``: like ``Cutmix`` with that of ``switch``, else ``Mixup``."""

    def __init__(
        self,
        *,
        mixup: Positive,
        cutmix: Positive,
        probability: Fraction,
        switch: Fraction,
        off_epoch: Later | None,
    ) -> None:
        self.mixup, self.cutmix, self.switch = mixup, cutmix, switch
        self.probability, self.off_epoch = probability, off_epoch

    def draw(self, epoch: int, batches: int, generator: Generator) -> list[Recipe]:
        blends = _blends(self.mixup, batches, generator)
        pastes = _pastes(self.cutmix, batches, generator)
        cuts = (generator.random(batches) < self.switch).tolist()
        recipes = [two[cut] for cut, *two in zip(cuts, blends, pastes, strict=True)]
        return _sometimes(recipes, self.probability, self.off_epoch, epoch, generator)


def _blends(alpha: float, batches: int, generator: Generator) -> list[Recipe]:
    shares = generator.beta(alpha, alpha, batches).tolist()
    return [partial(blend, share=share) for share in shares]


def _pastes(alpha: float, batches: int, generator: Generator) -> list[Recipe]:
    shares = generator.beta(alpha, alpha, batches).tolist()
    places = generator.random((batches, 2)).tolist()
    return [
        partial(paste, share=share, down=down, right=right)
        for share, (down, right) in zip(shares, places, strict=True)
    ]


def _sometimes(
    recipes: list[Recipe],
    probability: float,
    off_epoch: int | None,
    epoch: int,
    generator: Generator,
) -> list[Recipe]:
    """Keep a recipe with ``probability``, and none from ``off_epoch`` on; ``epoch`` is from 0."""
    chances = generator.random(len(recipes))
    on = off_epoch is None or epoch + 1 < off_epoch
    return [
        recipe if on and chance < probability else unmixed
        for recipe, chance in zip(recipes, chances, strict=True)
    ]
