"""The augmentation policies that ``conf/augment`` offers.

Draws are float64 (count, columns) on the CPU, each policy's columns in the order of its ``draw``.
"""

import math

import torch
from torch import Tensor

from cct.augment.geometry import erase, flip, shift_crop
from cct.augment.operations import NAMES, apply, numbers, signed
from cct.limits import Few, Fraction, Level, Margin, NonNegative


class NoAugmentation:
    """Leave the images as they are."""

    chunk = 1000

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return torch.empty(count, 0)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        return images


class CropFlip:
    """Pad with ``padding`` black pixels, crop at random, mirror half of the images if ``flip``.

    Then fill one rectangle with probability ``random_erasing`` (Zhong et al. 2017,
    arXiv:1708.04896): 2 to 33 % of the area, 0.3 to 3.3 times as high as wide, grey, which is near
    the mean pixel. A side longer than the image's is cut to it, not drawn again.
    """

    chunk = 1000

    def __init__(self, *, padding: Margin, flip: bool, random_erasing: Fraction) -> None:
        self.padding, self.flip, self.random_erasing = padding, flip, random_erasing

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        shifts = torch.randint(2 * self.padding + 1, (count, 2), generator=generator)
        flips = torch.randint(2, (count, 1), generator=generator)
        erasing = _uniform(count, 5, generator)
        return torch.cat([shifts, flips, erasing], 1)  # down, right, mirrored, see _rectangles

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        down, right, mirrored = _whole(draws[:, :3], images)
        images = shift_crop(images, down, right, self.padding)
        if self.flip:
            images = flip(images, mirrored.bool())
        if self.random_erasing > 0:
            rectangles = self._rectangles(draws[:, 3:], *images.shape[-2:])
            images = erase(images, *_whole(rectangles, images))
        return images

    def _rectangles(self, draws: Tensor, height: int, width: int) -> Tensor:
        """Return top, left, height and width in pixels: five numbers below 1 (B, 5) -> (B, 4).

        A longer side than the image's begins above or left of it, so that it covers that side.
        """
        chance, size, shape, top, left = draws.unbind(1)
        area = (0.02 + 0.31 * size) * height * width
        ratio = (math.log(0.3) + math.log(11) * shape).exp()
        high = (area * ratio).sqrt().round() * (chance < self.random_erasing)
        wide = (area / ratio).sqrt().round()
        corner = [top * (height - high + 1), left * (width - wide + 1)]
        return torch.stack([*corner, high, wide], 1).floor()


# Operation, probability, level of the first and the second step: table 7 of Cubuk et al. 2019.
SUB_POLICIES = [
    [("invert", 0.1, 0), ("contrast", 0.2, 6)],
    [("rotate", 0.7, 2), ("translate_x", 0.3, 9)],
    [("sharpness", 0.8, 1), ("sharpness", 0.9, 3)],
    [("shear_y", 0.5, 8), ("translate_y", 0.7, 9)],
    [("autocontrast", 0.5, 0), ("equalize", 0.9, 0)],
    [("shear_y", 0.2, 7), ("posterize", 0.3, 7)],
    [("color", 0.4, 3), ("brightness", 0.6, 7)],
    [("sharpness", 0.3, 9), ("brightness", 0.7, 9)],
    [("equalize", 0.6, 0), ("equalize", 0.5, 0)],
    [("contrast", 0.6, 7), ("sharpness", 0.6, 5)],
    [("color", 0.7, 7), ("translate_x", 0.5, 8)],
    [("equalize", 0.3, 0), ("autocontrast", 0.4, 0)],
    [("translate_y", 0.4, 3), ("sharpness", 0.2, 6)],
    [("brightness", 0.9, 6), ("color", 0.2, 8)],
    [("solarize", 0.5, 2), ("invert", 0.0, 0)],
    [("equalize", 0.2, 0), ("autocontrast", 0.6, 0)],
    [("equalize", 0.2, 0), ("equalize", 0.6, 0)],
    [("color", 0.9, 9), ("equalize", 0.6, 0)],
    [("autocontrast", 0.8, 0), ("solarize", 0.2, 8)],
    [("brightness", 0.1, 3), ("color", 0.7, 0)],
    [("solarize", 0.4, 5), ("autocontrast", 0.9, 0)],
    [("translate_y", 0.9, 9), ("translate_y", 0.7, 9)],
    [("autocontrast", 0.9, 0), ("solarize", 0.8, 3)],
    [("equalize", 0.8, 0), ("invert", 0.1, 0)],
    [("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)],
]


class AutoAugment:
    """One of 25 pairs of operations found for CIFAR-10, then ``CropFlip``.

    Cubuk et al. 2019 (arXiv:1805.09501), with the magnitudes of torchvision's table.
    """

    chunk = 1000

    def __init__(self, *, padding: Margin, flip: bool, random_erasing: Fraction) -> None:
        self.crop_flip = CropFlip(padding=padding, flip=flip, random_erasing=random_erasing)
        names, chances, levels = zip(
            *(zip(*pair, strict=True) for pair in SUB_POLICIES), strict=True
        )
        self.operations = torch.stack([numbers(list(pair)) for pair in names])  # 25 2
        self.chances, self.levels = torch.tensor(chances), torch.tensor(levels)  # 25 2

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        which = torch.randint(len(SUB_POLICIES), (count,), generator=generator)
        applied = _uniform(count, 2, generator) < self.chances[which]
        signs = _signs(count, 2, generator)
        rest = self.crop_flip.draw(count, generator)
        return torch.cat([which[:, None], applied, signs, rest], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        most = {
            **dict.fromkeys(["shear_x", "shear_y"], 0.3),
            "translate_x": 150 / 331 * width,
            "translate_y": 150 / 331 * height,
            "rotate": 30.0,
        }
        scale = _scale(10, most, change=0.9, bits=4)
        which = draws[:, 0].long()
        for step in range(2):
            operations, levels = self.operations[which, step], self.levels[which, step]
            magnitudes = signed(operations, scale[operations, levels], draws[:, 3 + step])
            images = apply(images, operations * draws[:, 1 + step].bool(), magnitudes)
        return self.crop_flip(images, draws[:, 5:])


class TrivialAugment:
    """One of 14 operations at one of 31 levels, all equally likely, then ``CropFlip``.

    The wide space of Müller and Hutter 2021 (arXiv:2103.10158).
    """

    chunk = 1000
    operations = numbers([name for name in NAMES if name not in ("invert", "solarize_add")])
    levels = 31

    def __init__(self, *, padding: Margin, flip: bool, random_erasing: Fraction) -> None:
        self.crop_flip = CropFlip(padding=padding, flip=flip, random_erasing=random_erasing)
        most = dict.fromkeys(["shear_x", "shear_y"], 0.99)
        most |= {"translate_x": 32.0, "translate_y": 32.0, "rotate": 135.0}
        self.scale = _scale(self.levels, most, change=0.99, bits=6)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        drawn = torch.randint(len(self.operations), (count,), generator=generator)
        levels = torch.randint(self.levels, (count, 1), generator=generator)
        signs = _signs(count, 1, generator)
        rest = self.crop_flip.draw(count, generator)
        return torch.cat([self.operations[drawn, None], levels, signs, rest], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        operations, levels = draws[:, :2].long().unbind(1)
        magnitudes = signed(operations, self.scale[operations, levels], draws[:, 2])
        return self.crop_flip(apply(images, operations, magnitudes), draws[:, 3:])


class RandAugment:
    """``operations`` times one of 15 operations with ``probability``, then ``CropFlip``.

    Cubuk et al. 2020 (arXiv:1909.13719) in timm's form whose severities increase with the level:
    the level of 0 to 10 is drawn around ``magnitude`` with deviation ``magnitude_std``. At the
    highest level, where timm would keep 0 bits and Pillow refuses, posterize keeps 1.
    """

    chunk = 1000
    choices = numbers([name for name in NAMES if name != "identity"])

    def __init__(
        self,
        *,
        operations: Few,
        magnitude: Level,
        magnitude_std: NonNegative,
        probability: Fraction,
        padding: Margin,
        flip: bool,
        random_erasing: Fraction,
    ) -> None:
        self.operations, self.probability = operations, probability
        self.magnitude, self.magnitude_std = magnitude, magnitude_std
        self.crop_flip = CropFlip(padding=padding, flip=flip, random_erasing=random_erasing)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        size = (count, self.operations)
        drawn = self.choices[torch.randint(len(self.choices), size, generator=generator)]
        applied = _uniform(*size, generator) < self.probability
        noise = torch.randn(size, generator=generator, dtype=torch.float64)
        levels = (self.magnitude + self.magnitude_std * noise).clamp(0, 10)
        signs = _signs(*size, generator)
        rest = self.crop_flip.draw(count, generator)
        return torch.cat([drawn * applied, levels, signs, rest], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        drawn, levels, signs = draws[:, : 3 * self.operations].chunk(3, 1)
        for operations, level, sign in zip(drawn.long().T, levels.T, signs.T, strict=True):
            magnitudes = _increasing(level / 10, *images.shape[-2:])
            chosen = magnitudes.gather(0, operations[None]).squeeze(0)
            images = apply(images, operations, signed(operations, chosen, sign))
        return self.crop_flip(images, draws[:, 3 * self.operations :])


def _uniform(count: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, columns, generator=generator, dtype=torch.float64)


def _signs(count: int, columns: int, generator: torch.Generator) -> Tensor:
    return 2 * torch.randint(2, (count, columns), generator=generator) - 1


def _whole(columns: Tensor, images: Tensor) -> tuple[Tensor, ...]:
    """Return columns of whole numbers one by one, where the images are."""
    return columns.long().to(images.device, non_blocking=True).unbind(1)


def _scale(levels: int, most: dict[str, float], change: float, bits: int) -> Tensor:
    """Return the magnitudes of each operation, a row, at each level: nothing to the most.

    Enhancements ``change`` their factor by up to that much, posterize takes away up to ``bits``.
    The steps are float32 as torchvision's, and pixels whole numbers.
    """
    scale = torch.zeros(len(NAMES), levels, dtype=torch.float64)
    most = {**most, **dict.fromkeys(["brightness", "color", "contrast", "sharpness"], change)}
    for name, magnitude in most.items():
        scale[NAMES.index(name)] = torch.linspace(0, magnitude, levels)
    pixels = numbers(["translate_x", "translate_y"])
    scale[pixels] = scale[pixels].trunc()
    scale[NAMES.index("solarize")] = torch.linspace(255, 0, levels)
    scale[NAMES.index("posterize")] = 8 - (torch.arange(levels) / ((levels - 1) / bits)).round()
    return scale


def _increasing(share: Tensor, height: int, width: int) -> Tensor:
    """Return the magnitude of each operation for a ``share`` of the severest: (B) -> (NAMES, B)."""
    magnitudes = {
        **dict.fromkeys(["shear_x", "shear_y"], share * 0.3),
        "translate_x": share * 0.45 * width,
        "translate_y": share * 0.45 * height,
        "rotate": share * 30,
        **dict.fromkeys(["brightness", "color", "contrast", "sharpness"], share * 0.9),
        "posterize": (4 - (share * 4).floor()).clamp(min=1),
        "solarize": 256 - (share * 256).floor(),
        "solarize_add": (share * 110).floor(),
    }
    return torch.stack([magnitudes.get(name, torch.zeros_like(share)) for name in NAMES])
