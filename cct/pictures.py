"""Pictures of what a model does: its mixing maps and its pooling weights.

Shapes: B images, N tokens, H heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cct.data import Data
from cct.model import CCT

SHOWN = 8  # images whose pooling weights are drawn, and over whose maps the mean is taken
MOST_TOKENS = 512  # a map has N x N values for each head and image


def pictures(model: CCT, data: Data) -> dict[str, Tensor]:
    """Return pictures (1 or 3, height, width) from 0 to 1 for the first test images, by name."""
    images = data.test.images[:SHOWN]
    inputs = data.normalize(images)
    weights = model.pooling_weights(inputs)
    drawn = {"pooling_weights": pooling_picture(images / 255, weights, model.grid)}
    if model.tokens <= MOST_TOKENS:
        for number, one in enumerate(model.mixing_maps(inputs), 1):
            if one is not None:
                drawn[f"mixing_map/block{number}"] = map_picture(one)
    return drawn


def map_picture(one: Tensor) -> Tensor:
    """Draw one block's map (B or 1, H, N, N), meaned over images: heads beside each other."""
    heads = one.float().mean(0)  # H N N
    scale = max(1, 256 // heads.shape[-1])
    heads = heads / heads.amax((-2, -1), keepdim=True)
    heads = heads.repeat_interleave(scale, -2).repeat_interleave(scale, -1)
    gap = torch.ones(heads.shape[-2], 4, device=heads.device)
    return torch.cat([x for head in heads for x in (head, gap)][:-1], -1).unsqueeze(0)


def pooling_picture(images: Tensor, weights: Tensor, grid: tuple[int, int]) -> Tensor:
    """Draw images (B, 3, h, w) from 0 to 1 above their tokens' weights (B, N), on the ``grid``."""
    on_grid = weights.float()[:, -math.prod(grid) :].unflatten(1, grid)  # B rows columns
    on_grid = on_grid / on_grid.amax((-2, -1), keepdim=True).clamp_min(1e-12)
    shown = F.interpolate(on_grid.unsqueeze(1), images.shape[-2:])  # B 1 h w
    stacked = torch.cat([images, shown.expand(-1, 3, -1, -1)], -2)
    return torch.cat(list(stacked), -1)
