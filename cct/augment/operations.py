"""The operations that policies draw from, by name, and their application to a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from cct.augment import color, geometry

# What a magnitude is: a slope, pixels, degrees; a change of the factor whose 1 is the image as it
# is; the threshold of solarize, the bits that posterize keeps. Others have none.
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda images, _: images,  # number 0: what is drawn but not applied
    "shear_x": geometry.shear_x,
    "shear_y": geometry.shear_y,
    "translate_x": geometry.translate_x,
    "translate_y": geometry.translate_y,
    "rotate": geometry.rotate,
    "brightness": lambda images, change: color.brightness(images, 1 + change),
    "color": lambda images, change: color.color(images, 1 + change),
    "contrast": lambda images, change: color.contrast(images, 1 + change),
    "sharpness": lambda images, change: color.sharpness(images, 1 + change),
    "posterize": color.posterize,
    "solarize": color.solarize,
    "solarize_add": color.solarize_add,
    "autocontrast": lambda images, _: color.autocontrast(images),
    "equalize": lambda images, _: color.equalize(images),
    "invert": lambda images, _: color.invert(images),
}
NAMES = list(OPERATIONS)
SIGNED = ["shear_x", "shear_y", "translate_x", "translate_y", "rotate"]
SIGNED += ["brightness", "color", "contrast", "sharpness"]  # a draw also decides the direction


def numbers(names: list[str]) -> Tensor:
    """Return the places of operations in ``NAMES``, by which draws name them."""
    return torch.tensor([NAMES.index(name) for name in names])


def signed(operations: Tensor, magnitudes: Tensor, signs: Tensor) -> Tensor:
    """Return the magnitudes times their sign, 1 or -1, where the operation has one."""
    return torch.where(torch.isin(operations, numbers(SIGNED)), magnitudes * signs, magnitudes)


def apply(images: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Apply to each image its own operation, those of one operation together.

    ``operations`` (B), numbers of ``NAMES``, and ``magnitudes`` (B), float64, are on the CPU, so
    that grouping does not wait for the device.
    """
    result = images.clone()
    for number in operations.unique().tolist():
        members = (operations == number).nonzero().flatten()
        rows = members.to(images.device, non_blocking=True)
        if NAMES[number] != "identity":
            result[rows] = OPERATIONS[NAMES[number]](images[rows], magnitudes[members])
    return result
