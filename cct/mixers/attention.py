"""Attention of any kind: values mixed by the softmax of some scores.

Shapes: B images, N tokens, D dim, H heads, P = D / H; M = N where a token is mixed over.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cct.dropout import Dropout
from cct.mixers.scores import DotProduct, Mixture


class Attention(nn.Module):
    """Mix values by the softmax over keys of scores, per head, then project.

    (B, N, D) to (B, N, D). Raises ValueError for another number of tokens than it was built for.
    Where the scores do not depend on the input, the map is computed once for the whole batch, and
    dropout draws one mask per step that all images share: a mask per image would need the map
    once per image and so cost what the sharing saves.
    """

    def __init__(
        self,
        dim: int,
        tokens: int,
        heads: int,
        grid: tuple[int, int],
        prefix: int,
        dropout: float,
        *,
        scores: Callable[..., nn.Module],
    ) -> None:
        super().__init__()
        self.tokens, self.heads = tokens, heads
        self.scores = scores(dim, tokens, heads)
        self.value = nn.Linear(dim, dim, bias=False)
        self.project = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def _require_tokens(self, x: Tensor) -> None:
        if x.shape[1] != self.tokens:
            raise ValueError(f"this mixer was built for {self.tokens} tokens, not {x.shape[1]}")

    def map(self, x: Tensor) -> Tensor:
        """Return the mixing map (B or 1, H, N, N) before dropout; each row sums to one."""
        self._require_tokens(x)
        scores = self.scores(x)
        # In bfloat16 the rows would sum to one only within a thousandth.
        return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        values = self.value(x).unflatten(-1, (self.heads, -1))  # B M H P
        return self.project(self.mix(x, values).flatten(2))  # B N D

    def mix(self, x: Tensor, values: Tensor) -> Tensor:
        """Mix the values (B, M, H, P) by the map of the tokens: (B, N, H, P)."""
        rate = self.dropout.rate if self.training else 0.0
        # On a CPU there is no fused attention with dropout, and what stands in for it is slow.
        # The fused one knows this formula only, not what a subclass makes of it.
        fusible = type(self).map is Attention.map and (rate == 0 or x.is_cuda)
        if fusible and type(self.scores) is DotProduct:
            self._require_tokens(x)
            query, key, value = (part.transpose(1, 2) for part in (*self.scores.project(x), values))
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=rate)
            return mixed.transpose(1, 2)
        weights = self.dropout(self.map(x)).to(values.dtype)  # (B or 1) H N M
        if len(weights) == 1:  # one product over heads; broadcasting would copy the map B times
            return torch.einsum("hnm,bmhp->bnhp", weights[0], values)
        return torch.einsum("bhnm,bmhp->bnhp", weights, values)


class MixtureAttention(Attention):
    """Attention over a learned mixture of other mixers' scores (Tay et al. 2020, arXiv:2005.00743).

    ``components`` names two or more of ``parts``, whose scores are added with learned weights that
    sum to one, before the one softmax. Raises ValueError for fewer or for parts without scores.
    """

    def __init__(
        self,
        dim: int,
        tokens: int,
        heads: int,
        grid: tuple[int, int],
        prefix: int,
        dropout: float,
        *,
        components: list[str],
        parts: dict[str, Callable[..., Attention]],
    ) -> None:
        if len(components) < 2:
            raise ValueError(f"mixer.components={components}: a mixture has two or more")
        sizes = (dim, tokens, heads, grid, prefix, dropout)
        built = [parts[name](*sizes) for name in components]
        for name, one in zip(components, built, strict=True):
            if not hasattr(one, "scores"):
                raise ValueError(f"mixer.components: {name} has no scores that could be mixed")
        mixed = [one.scores for one in built]
        super().__init__(*sizes, scores=lambda *_: Mixture(mixed))
