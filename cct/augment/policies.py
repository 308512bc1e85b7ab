"""The augmentation policies that ``conf/augment`` offers."""

import torch
from torch import Tensor

from cct.augment.geometry import flip, shift_crop
from cct.limits import Whole


class CropFlip:
    """Pad with ``padding`` black pixels, crop at random, mirror half of the images if ``flip``."""

    def __init__(self, *, padding: Whole, flip: bool) -> None:
        self.padding, self.flip = padding, flip

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        shifts = torch.randint(2 * self.padding + 1, (count, 2), generator=generator)
        flips = torch.randint(2, (count, 1), generator=generator)
        return torch.cat([shifts, flips], 1)  # down, right, mirrored

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        down, right, mirrored = draws.unbind(1)
        images = shift_crop(images, down, right, self.padding)
        return flip(images, mirrored.bool()) if self.flip else images


class NoAugmentation:
    """Leave the images as they are."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return torch.empty(count, 0)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        return images
