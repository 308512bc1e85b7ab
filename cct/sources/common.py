"""What several sources need: sizes, subsets, resizing. N images, H height, W width."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from cct.data import Data, Split, balanced_subset, channel_statistics, fingerprint

VALUES_AT_ONCE = 2**24  # pixel values of a chunk, which bounds the memory of resizing


def height_and_width(image_size: int | list[int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    if isinstance(image_size, int):
        return image_size, image_size
    if len(image_size) != 2:
        raise ValueError(
            f"data.image_size={list(image_size)}: one number or [height, width] is needed"
        )
    return image_size[0], image_size[1]


def at_most(half: str, size: int | None, available: int) -> int:
    """The number of images to use of one half; ValueError if there are not that many."""
    if size is not None and size > available:
        kind = {"train": "training", "test": "test"}[half]
        raise ValueError(f"data.{half}_size={size}: there are {available} {kind} images")
    return available if size is None else size


def balanced(half: str, size: int | None, labels: Tensor, classes: list[str]) -> Tensor:
    """Indices of the images to use; ValueError if equal shares of ``size`` cannot be had."""
    if size is None:
        return torch.arange(len(labels))
    at_most(half, size, len(labels))
    try:
        return balanced_subset(labels, size, len(classes))
    except ValueError as error:
        poorest = int(labels.bincount(minlength=len(classes)).argmin())
        raise ValueError(
            f"data.{half}_size={size}: {error} ({half} images; class {poorest} is "
            f"{classes[poorest]})"
        ) from error


def subset(split: Split, size: int | None, classes: int) -> Split:
    if size is None:
        return split
    chosen = balanced_subset(split.labels, size, classes)
    return Split(split.images[chosen], split.labels[chosen])


def resized(split: Split, size: tuple[int, int]) -> Split:
    """The split with images of ``size``, antialiased where they shrink."""
    if split.images.shape[-2:] == size:
        return split
    images = torch.empty(len(split), 3, *size, dtype=torch.uint8)  # N 3 H W
    chunk = max(1, VALUES_AT_ONCE // max(images[0].numel(), split.images[0].numel()))
    for source, target in zip(split.images.split(chunk), images.split(chunk), strict=True):
        exact = interpolate(source.float(), size=size, mode="bilinear", antialias=True)
        target.copy_(exact.round_().clamp_(0, 255))
    return Split(images, split.labels)


def self_measured(name: str, classes: list[str], train: Split, test: Split) -> Data:
    """Data normalised by the statistics of its own training images."""
    mean, std = channel_statistics(train.images)
    return Data(
        name=name,
        classes=classes,
        train=train,
        test=test,
        mean=mean,
        std=torch.where(std > 0, std, 1),  # a channel without contrast has nothing to scale
        measured_mean=mean,
        measured_std=std,
        fingerprint=fingerprint(train, test),
    )
