"""Colour operations on image batches, each equal to Pillow's, pixel for pixel.

Images are uint8 (B, 3, h, w), settings (B) on the CPU, one an image. Torchvision's kernels take one
setting a call and round otherwise in autocontrast, color, contrast and sharpness, hence these. No
kernel waits for the device or needs float64 on it.
"""

from functools import cache

import torch
from torch import Tensor


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """ImageEnhance.Brightness: from black (0) over the image (1) to a brighter one."""
    return _enhance(torch.zeros((), device=images.device), images, factors)


def color(images: Tensor, factors: Tensor) -> Tensor:
    """ImageEnhance.Color: from grey (0) over the image (1) to stronger colours."""
    return _enhance(_grey(images).float(), images, factors)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """ImageEnhance.Contrast: from the mean grey (0) over the image (1) to more contrast."""
    grey = _grey(images)
    pixels = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)  # rounded, half up
    return _enhance(mean.float(), images, factors)


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """ImageEnhance.Sharpness: from smooth (0) over the image (1) to sharper; the border stays.

    Smooth is the mean of 3 x 3 pixels of which the middle one counts five times.
    """
    whole = images.short()
    rows = whole[:, :, :-2] + whole[:, :, 1:-1] + whole[:, :, 2:]
    sums = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    sums += 4 * whole[..., 1:-1, 1:-1]
    smooth = images.float()
    # a sum of whole numbers / 13 + 1/2 is never within 1/26 of the next whole number
    smooth[..., 1:-1, 1:-1] = (sums.float() * (1 / 13)).add_(0.5).floor_()
    return _enhance(smooth, images, factors)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """ImageOps.posterize: keep the highest 1 to 8 ``bits`` of each pixel."""
    masks = 256 - 2 ** (8 - bits.long())
    return images & _beside(masks.byte(), images)


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """ImageOps.solarize: invert the pixels of at least ``thresholds``, 0 to 256."""
    bright = images >= _beside(thresholds.ceil().short(), images)
    return images ^ 255 * bright.byte()  # torch.where takes five times as long on CPU


def solarize_add(images: Tensor, added: Tensor) -> Tensor:
    """Add 0 to 128 to each pixel below 128, as RandAugment's reference implementation does."""
    return images + _beside(added.byte(), images) * (images < 128)  # at most 127 + 128


def autocontrast(images: Tensor) -> Tensor:
    """ImageOps.autocontrast: stretch each channel from its darkest and brightest to 0, 255."""
    low, high = images.amin((2, 3)).long(), images.amax((2, 3)).long()
    return _look_up(_stretches(images.device)[low, high], images)


def equalize(images: Tensor) -> Tensor:
    """ImageOps.equalize: map each channel so that its values are spread evenly."""
    counts = _histograms(images)
    last = counts.gather(2, images.flatten(2).amax(2, keepdim=True).long())
    steps = (images[0, 0].numel() - last) // 255
    before = counts.cumsum(2, dtype=torch.int32) - counts
    spread = (steps // 2 + before) // steps.clamp(min=1)
    values = torch.arange(256, dtype=torch.int32, device=images.device)
    return _look_up(torch.where(steps > 0, spread.clamp_(max=255), values).byte(), images)


def invert(images: Tensor) -> Tensor:
    """ImageOps.invert: 255 - pixel."""
    return ~images


def _beside(settings: Tensor, images: Tensor) -> Tensor:
    return settings.to(images.device, non_blocking=True).view(-1, 1, 1, 1)


def _enhance(zero: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """Image.blend in Pillow's float32 steps, on the line from ``zero`` (factor 0) to the image."""
    difference = images.float().sub_(zero)
    return difference.mul_(_beside(factors.float(), images)).add_(zero).clamp_(0, 255).byte()


def _grey(images: Tensor) -> Tensor:
    """Image.convert("L"), in whole numbers: int32 (B, 1, h, w)."""
    red, green, blue = images.int().split(1, 1)
    return (19595 * red).add_(green, alpha=38470).add_(blue, alpha=7471).add_(32768) >> 16


def _histograms(images: Tensor) -> Tensor:
    """Count the values of each channel: uint8 (B, 3, h, w) -> int32 (B, 3, 256)."""
    size, device = len(images), images.device
    counts = torch.zeros(size * 3 * 256, dtype=torch.int32, device=device)
    first = 256 * torch.arange(size * 3, device=device).view(size, 3, 1)
    ones = torch.ones((), dtype=torch.int32, device=device).expand(images.numel())
    places = images.flatten(2).long().add_(first).flatten()
    return counts.scatter_add_(0, places, ones).view(size, 3, 256)


def _look_up(tables: Tensor, images: Tensor) -> Tensor:
    """Replace each pixel by its entry in the table of its channel: uint8 (B, 3, 256)."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


@cache
def _stretches(device: torch.device) -> Tensor:
    """Tables of autocontrast for each lowest and highest value: uint8 (256, 256, 256), 16 MB.

    Made once, because Pillow computes them in float64, which not every device has.
    """
    tables = torch.arange(256, dtype=torch.uint8).repeat(256, 256, 1)  # low high value
    values = torch.arange(256, dtype=torch.float64)
    for low in range(255):
        scale = values[255] / (values[low + 1 :, None] - low)  # 255 / tensor is rounded twice
        tables[low, low + 1 :] = (values * scale + -low * scale).clamp_(0, 255).byte()
    return tables.to(device)
