"""Pooling: (B, N, D) normed tokens to (B, D), one vector per image.

A pool is built as ``Pool(dim, **settings)``. ``prefix`` is the number of tokens it puts before the
grid, ``prepend(x)`` puts them there, ``weights(x)`` (B, N) tells how much each token counts.

Shapes: B images, N tokens, D dim.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from cct.limits import Number


def _softmax(x: Tensor, axis: int) -> Tensor:
    return x.softmax(axis, dtype=torch.promote_types(x.dtype, torch.float32))


class SequencePooling(nn.Module):
    """Weigh the values a·x + b·softmax(x, axis) by the softmax over tokens of a learned score.

    a = ``identity_weight``, b = ``softmax_weight``; a = 1 and b = 0 is the sequence pooling of
    Hassani et al. 2021 (arXiv:2104.05704). ``axis``: the softmax runs over the ``tokens`` of an
    image or over the images of a ``batch``; null when b = 0. Over the batch, an image's result
    depends on the images beside it, in evaluation too. Raises ValueError when ``axis`` and b
    contradict each other.
    """

    prefix = 0

    def __init__(
        self,
        dim: int,
        *,
        identity_weight: Number,
        softmax_weight: Number,
        axis: Literal["tokens", "batch"] | None,
    ) -> None:
        super().__init__()
        if (axis is None) != (softmax_weight == 0):
            given = "null" if axis is None else axis
            raise ValueError(
                f"pool.axis={given} and pool.softmax_weight={softmax_weight} contradict each "
                "other: the axis is null exactly when the weight is 0"
            )
        self.identity_weight, self.softmax_weight = identity_weight, softmax_weight
        self.axis = {"batch": 0, "tokens": 1, None: None}[axis]
        self.score = nn.Linear(dim, 1)

    def prepend(self, x: Tensor) -> Tensor:
        return x

    def weights(self, x: Tensor) -> Tensor:
        return _softmax(self.score(x).squeeze(-1), 1)  # B N

    def forward(self, x: Tensor) -> Tensor:
        values = self.identity_weight * x
        if self.axis is not None:
            values = values + self.softmax_weight * _softmax(x, self.axis)
        weights = self.weights(x).to(values.dtype)
        with torch.autocast(x.device.type, enabled=False):  # which would round a float32 softmax
            return torch.einsum("bn,bnd->bd", weights, values)


class ClassToken(nn.Module):
    """Read a learned token put before the grid (Dosovitskiy et al. 2021, arXiv:2010.11929)."""

    prefix = 1

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, dim))

    def prepend(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.to(x.dtype).expand(len(x), -1, -1), x], 1)

    def weights(self, x: Tensor) -> Tensor:
        weights = torch.zeros(x.shape[:2], device=x.device)
        weights[:, 0] = 1
        return weights

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]
