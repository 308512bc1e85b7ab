"""Scores for ``Attention``: (B, N, D) tokens to (B or 1, H, N, M) logits, M = N.

All but DotProduct are the Synthesizers of Tay et al. 2020 (arXiv:2005.00743), one set of matrices
per head and block. A leading 1 says that the logits do not depend on the input.

Shapes: B images, N tokens, D dim, H heads, P = D / H; M = N where a token is mixed over.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from cct.limits import Count, NonNegative


class DotProduct(nn.Module):
    """Query times key over the root of P (Vaswani et al. 2017, arXiv:1706.03762)."""

    def __init__(self, dim: int, tokens: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key = nn.Linear(dim, 2 * dim, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query (B, N, H, P) and the key (B, M, H, P)."""
        query, key = self.query_key(x).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return query, key

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.project(x)
        return torch.einsum("bnhp,bmhp->bhnm", query * query.shape[-1] ** -0.5, key)


class HeadwiseLinear(nn.Module):
    """A linear layer of its own for each head: (B, N, H, P) to (B, H, N, outputs)."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(heads, 1, outputs))
        nn.init.trunc_normal_(self.weight, std=0.02)  # as the model initialises every nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bnhp,hpo->bhno", x, self.weight) + self.bias


class Dense(nn.Module):
    """Each token scores all tokens by itself: relu(x W1 + b1) W2 + b2, no query meets a key."""

    def __init__(self, dim: int, tokens: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.hidden = nn.Linear(dim, dim)
        self.output = HeadwiseLinear(heads, dim // heads, tokens)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x).relu().unflatten(-1, (self.heads, -1))  # B N H P
        return self.output(hidden)


class FactorizedDense(nn.Module):
    """Dense whose logits are an outer product of short rows a and c: logit[i|c| + j] = a_i c_j.

    ``factors`` = [len(a), len(c)]; null means the most square pair, ceil(sqrt(N)) first. Where the
    product exceeds N the last logits are cut off, so any N works, prime ones too. Raises
    ValueError when it is below N. Tile and repeat as in Tay et al. 2020 (arXiv:2009.06732).
    """

    def __init__(self, dim: int, tokens: int, heads: int, *, factors: list[Count] | None) -> None:
        super().__init__()
        if factors is None:
            rows = math.isqrt(tokens - 1) + 1
            factors = [rows, -(-tokens // rows)]
        if len(factors) != 2 or factors[0] * factors[1] < tokens:
            raise ValueError(
                f"mixer.scores.factors={list(factors)}: two numbers are needed whose product "
                f"reaches {tokens} tokens"
            )
        self.tokens, self.heads = tokens, heads
        self.hidden = nn.Linear(dim, dim)
        self.rows = HeadwiseLinear(heads, dim // heads, factors[0])
        self.columns = HeadwiseLinear(heads, dim // heads, factors[1])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x).relu().unflatten(-1, (self.heads, -1))  # B N H P
        outer = self.rows(hidden).unsqueeze(-1) * self.columns(hidden).unsqueeze(-2)
        return outer.flatten(-2)[..., : self.tokens]  # B H N M


class Random(nn.Module):
    """Learned logits that ignore the input, initially normal with standard deviation ``std``."""

    no_weight_decay = ("logits",)

    def __init__(self, dim: int, tokens: int, heads: int, *, std: NonNegative) -> None:
        super().__init__()
        self.logits = nn.Parameter(std * torch.randn(1, heads, tokens, tokens))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits


class FixedRandom(nn.Module):
    """Random logits that stay as drawn; a small ``std`` makes it the mean over tokens."""

    logits: Tensor

    def __init__(self, dim: int, tokens: int, heads: int, *, std: NonNegative) -> None:
        super().__init__()
        self.register_buffer("logits", std * torch.randn(1, heads, tokens, tokens))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits


class FactorizedRandom(nn.Module):
    """Learned logits of rank ``rank`` that ignore the input: the product of two thin matrices.

    Each factor is initially normal with standard deviation ``std``. Raises ValueError for a rank
    above N, which would only cost more than Random.
    """

    no_weight_decay = ("query", "key")

    def __init__(
        self,
        dim: int,
        tokens: int,
        heads: int,
        *,
        rank: Count,
        std: NonNegative,
    ) -> None:
        super().__init__()
        if rank > tokens:
            raise ValueError(f"mixer.scores.rank={rank}: at most the number of tokens, {tokens}")
        self.query = nn.Parameter(std * torch.randn(heads, tokens, rank))
        self.key = nn.Parameter(std * torch.randn(heads, tokens, rank))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("hnr,hmr->hnm", self.query, self.key).unsqueeze(0)


class Mixture(nn.Module):
    """The sum of other scores with learned weights, which are the softmax of ``weight``."""

    no_weight_decay = ("weight",)

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.weight = nn.Parameter(torch.zeros(len(parts)))

    def forward(self, x: Tensor) -> Tensor:
        shares = zip(self.weight.softmax(0), self.parts, strict=True)
        return reduce(torch.add, (share * part(x) for share, part in shares))
