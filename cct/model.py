"""Compact Convolutional Transformer (Hassani et al. 2021, arXiv:2104.05704).

Shapes: B images, N tokens, D dim, H heads.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cct.dropout import Dropout
from cct.limits import BelowOne, Few, Ratio, Width
from cct.pooling import ClassToken, SequencePooling


class Tokenizer(nn.Module):
    """Convolutions, each with ReLU and a 3x3 max-pool of stride 2: (B, 3, h, w) to (B, N, D).

    ``grid(image_size)`` is the (height, width) of the N tokens; one pixel still has one.
    """

    def __init__(self, dim: int, kernel_size: int, conv_layers: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride, self.padding = max(1, kernel_size // 2 - 1), max(1, kernel_size // 2)
        channels = [3, *[64] * (conv_layers - 1), dim]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size, self.stride, self.padding, bias=False)
            for before, after in pairwise(channels)
        )
        for convolution in self.convolutions:
            nn.init.kaiming_normal_(convolution.get_parameter("weight"))
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        sides = []
        for side in image_size:
            length = side
            for _ in self.convolutions:
                length = (length + 2 * self.padding - self.kernel_size) // self.stride + 1
                length = (length - 1) // 2 + 1
            sides.append(length)
        return sides[0], sides[1]

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for convolution in self.convolutions:
            # ReLU commutes with the maximum; after it there is a quarter of the values left.
            x = self.pool(convolution(x)).relu()
        return x.flatten(2).transpose(1, 2)  # B N D


class Block(nn.Module):
    """The encoder block of the authors' code, which is not the standard pre-norm block.

    Standard: x + mixer(norm1(x)), then x + mlp(norm2(x)). Here norm2 is applied to the sum itself,
    so it lies on the residual path: the MLP and the residual around it both start from the normed
    tokens. Stochastic depth drops a branch for whole images (Huang et al. 2016, arXiv:1603.09382).
    """

    def __init__(
        self, dim: int, mixer: nn.Module, *, hidden: int, dropout: float, stochastic_depth: float
    ) -> None:
        super().__init__()
        from timm.layers.drop import DropPath  # slow to import, and not needed to refuse a setting

        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixer = mixer
        self.dropout = Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(hidden, dim),
            Dropout(dropout),
        )
        self.drop_path = DropPath(stochastic_depth)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm2(x + self.drop_path(self.dropout(self.mixer(self.norm1(x)))))
        return x + self.drop_path(self.mlp(x))


def sine_table(tokens: int, dim: int) -> Tensor:
    """Return the fixed positional table (1, N, D) of Vaswani et al. 2017 (arXiv:1706.03762)."""
    pairs = torch.arange(dim, dtype=torch.float64).div(2, rounding_mode="floor")
    angles = torch.arange(tokens, dtype=torch.float64).unsqueeze(1) / 10000 ** (2 * pairs / dim)
    table = torch.where(torch.arange(dim) % 2 == 0, angles.sin(), angles.cos())
    return table.float().unsqueeze(0)


class CCT(nn.Module):
    """Tokenize by convolution, mix in blocks, pool, classify: (B, 3, h, w) to (B, classes).

    ``image_size`` is (height, width) in pixels; ``mixer`` and ``pool`` are called with the sizes
    that ``cct.mixers`` and ``cct.pooling`` name. ``stochastic_depth`` rises linearly from 0 at the
    first block to this rate at the last. Initialisation is that of the authors' code. Raises
    ValueError for sizes that do not fit together.
    """

    def __init__(
        self,
        classes: int,
        image_size: tuple[int, int],
        mixer: Callable[..., nn.Module],
        pool: Callable[..., SequencePooling | ClassToken],
        *,
        dim: Width,
        depth: Few,
        heads: Few,
        mlp_ratio: Ratio,
        kernel_size: Few,
        conv_layers: Few,
        positional_embedding: Literal["learnable", "sine", "none"],
        dropout: BelowOne,
        attention_dropout: BelowOne,
        stochastic_depth: BelowOne,
    ) -> None:
        super().__init__()
        if dim % heads:
            divisors = ", ".join(str(n) for n in range(1, 65) if dim % n == 0)
            raise ValueError(
                f"model.heads={heads} does not divide model.dim={dim}; of use: {divisors}"
            )
        if int(dim * mlp_ratio) < 1:
            raise ValueError(f"model.mlp_ratio={mlp_ratio} leaves no hidden unit at dim={dim}")
        self.tokenizer = Tokenizer(dim, kernel_size, conv_layers)
        self.image_size, self.grid = tuple(image_size), self.tokenizer.grid(image_size)
        self.pool = pool(dim)
        self.tokens = math.prod(self.grid) + self.pool.prefix
        if positional_embedding == "learnable":
            self.position = nn.Parameter(torch.empty(1, self.tokens, dim))
            nn.init.trunc_normal_(self.position, std=0.2)
        else:
            table = sine_table(self.tokens, dim) if positional_embedding == "sine" else None
            self.register_buffer("position", table)
        self.dropout = Dropout(dropout)
        sizes = (dim, self.tokens, heads, self.grid, self.pool.prefix, attention_dropout)
        mixers = [mixer(*sizes) for _ in range(depth)]
        rates = [stochastic_depth * block / max(1, depth - 1) for block in range(depth)]
        self.blocks = nn.Sequential(
            *(
                Block(dim, one, hidden=int(dim * mlp_ratio), dropout=dropout, stochastic_depth=rate)
                for one, rate in zip(mixers, rates, strict=True)
            )
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.apply(_initialise_linear)

    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens (B, N, D) before the first block; ValueError for another image size."""
        if images.shape[-2:] != self.image_size:
            given = tuple(images.shape[-2:])
            raise ValueError(f"this model was built for {self.image_size} pixels, not {given}")
        x = self.pool.prepend(self.tokenizer(images))
        return self.dropout(x if self.position is None else x + self.position)  # B N D

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.norm(self.blocks(self.embed(images)))))

    @torch.no_grad()
    def mixing_maps(self, images: Tensor) -> list[Tensor | None]:
        """Return each block's map in evaluation, (B or 1, H, N, N); nothing else changes.

        None for a block whose mixer has no map.
        """
        with _evaluating(self):
            x, maps = self.embed(images), []
            for block in self.blocks:
                mixer: Any = block.get_submodule("mixer")
                norm = block.get_submodule("norm1")
                maps.append(mixer.map(norm(x)) if hasattr(mixer, "map") else None)
                x = block(x)
        return maps

    @torch.no_grad()
    def pooling_weights(self, images: Tensor) -> Tensor:
        """Return how much each token counts in evaluation, (B, N); nothing else changes."""
        with _evaluating(self):
            return self.pool.weights(self.norm(self.blocks(self.embed(images))))


def _initialise_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@dataclass(frozen=True)
class Cost:
    """What a module costs: numbers of parameters, and multiply-adds of its matrix products."""

    trainable: int
    frozen: int
    multiply_adds: int


@torch.no_grad()
def cost(module: nn.Module, *inputs: Tensor) -> Cost:
    """Count the parameters of ``module``, tables in buffers as frozen, and run it on ``inputs``.

    Multiply-adds are those of matrix products and convolutions for the whole batch given;
    elementwise work is not counted.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel  # not needed to refuse a setting
    from torch.utils.flop_counter import FlopCounterMode

    plain_attention = sdpa_kernel(SDPBackend.MATH)  # the products of the fused are not counted
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    tables = [*module.parameters(), *module.buffers()]
    with _evaluating(module), plain_attention, FlopCounterMode(display=False) as counter:
        module(*inputs)
    frozen = sum(table.numel() for table in tables) - trainable
    return Cost(trainable, frozen, counter.get_total_flops() // 2)
