"""Shifts and flips of image batches, one draw per image.

Shapes: B images of h x w pixels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


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
