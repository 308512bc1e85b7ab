"""Shifts, flips, erased rectangles and affine maps of image batches, one draw per image.

Images are uint8 (B, 3, h, w), B images of h x w pixels. Affine maps take the nearest pixel as
Pillow does, and their settings (B) are on the CPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FILL = 128  # of pixels that come from outside the image, but for the crop's black


def shift_crop(images: Tensor, down: Tensor, right: Tensor, padding: int) -> Tensor:
    """Pad with black on all sides, then cut each image (h, w) out at its own (down, right).

    ``down`` and ``right`` (B) run from 0 to 2 * padding; ``padding`` is in pixels.
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, [padding] * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: B 3 down right h w
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def flip(images: Tensor, which: Tensor) -> Tensor:
    """Mirror left and right those images that ``which`` (B, bool) names."""
    return torch.where(which.view(-1, 1, 1, 1), images.flip(-1), images)


def erase(images: Tensor, tops: Tensor, lefts: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
    """Fill a rectangle of each image; the four (B) are in pixels, a height of 0 erases nothing."""
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    down = (rows >= tops[:, None]) & (rows < (tops + heights)[:, None])  # B h
    right = (columns >= lefts[:, None]) & (columns < (lefts + widths)[:, None])  # B w
    return images.masked_fill((down[:, :, None] & right[:, None]).unsqueeze(1), FILL)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Image.rotate: counterclockwise around the centre."""
    height, width = images.shape[-2:]
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    x = width / 2 - cos * (width / 2) + sin * (height / 2)
    y = height / 2 - sin * (width / 2) - cos * (height / 2)
    return affine(images, torch.stack([cos, -sin, x, sin, cos, y], 1))


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Show at (x, y) the pixel at (x + slope * y, y)."""
    return affine(images, _matrices(len(images), {1: slopes}))


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Show at (x, y) the pixel at (x, y + slope * x)."""
    return affine(images, _matrices(len(images), {3: slopes}))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Move to the right."""
    return affine(images, _matrices(len(images), {2: -pixels}))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Move down."""
    return affine(images, _matrices(len(images), {5: -pixels}))


def _matrices(count: int, entries: dict[int, Tensor]) -> Tensor:
    """Return the identity's matrices (count, 6) with some entries replaced."""
    matrices = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64).repeat(count, 1)
    for place, values in entries.items():
        matrices[:, place] = values
    return matrices


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Show at (x, y) the pixel at (a x + b y + c, d x + e y + f): Image.transform, nearest.

    ``matrices`` (B, 6) are a to f, float64 on the CPU; sides are below 10,000 pixels.
    """
    height, width = images.shape[-2:]
    a, b, c, d, e, f = matrices.unbind(1)
    centred = torch.stack([a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5], 1)
    fixed = (centred * 65536 + 0.5).floor().int()  # Pillow's numbers: 16 bits behind the point
    a, b, c, d, e, f = fixed.to(images.device, non_blocking=True).view(-1, 6, 1, 1).unbind(1)
    x = torch.arange(width, dtype=torch.int32, device=images.device)
    y = torch.arange(height, dtype=torch.int32, device=images.device)[:, None]
    column = ((a * x + (b * y + c)) >> 16).clamp_(-1, width)  # B h w
    row = ((d * x + (e * y + f)) >> 16).clamp_(-1, height)
    framed = F.pad(images, [1] * 4, value=FILL).flatten(2)  # whatever is outside is on the frame
    source = ((row + 1) * (width + 2) + column + 1).long().view(-1, 1, height * width)
    return framed.gather(2, source.expand(-1, 3, -1)).view_as(images)
