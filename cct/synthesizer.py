"""The layers of the Synthesizer paper (Tay et al. 2020, arXiv:2005.00743) under public names.

Every layer returns ``(output, map)`` with ``output = map · values``: one head, no dropout, no
projection after it. Shapes and parameter counts are fixed by a published usage script; where they
leave no room for the paper, the docstring says so. The mixers of the CCT are the full form.

Shapes: B batch, N tokens (``sentence_length``), D dim (``in_dims``).
"""

import math
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn

TRAINABLE_STD = 0.02  # the map starts uniform and is learned
FIXED_STD = 1.0  # with a small one the map would stay uniform, a mean over tokens


class Synthesizer(nn.Module):
    """What all layers share: the softmax over keys of some logits, times values.

    ``forward`` takes (B, N, D) and returns the output (B, N, D) and the map (B, N, N), or (1, N, N)
    if the map does not depend on the input. An input of another length than ``sentence_length`` is
    a ValueError; None takes any.
    """

    def __init__(self, in_dims: int, sentence_length: int | None = None) -> None:
        super().__init__()
        self.sentence_length = sentence_length
        self.value = nn.Linear(in_dims, in_dims)
        self.softmax = nn.Softmax(dim=-1)

    def logits(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.shape[1]
        if self.sentence_length not in (None, tokens):
            raise ValueError(
                f"sentence_length is {self.sentence_length}, the input has {tokens} tokens"
            )
        attention_map = self.softmax(self.logits(x))  # B N N or 1 N N
        return attention_map @ self.value(x), attention_map  # B N D


class Transformer(Synthesizer):
    """Dot-product attention, the paper's baseline: softmax(Q Kᵀ / √D), for any length.

    The printed count leaves one head and no output projection.
    """

    def __init__(self, in_dims: int) -> None:
        super().__init__(in_dims)
        self.query = nn.Linear(in_dims, in_dims)
        self.key = nn.Linear(in_dims, in_dims)

    def logits(self, x: Tensor) -> Tensor:
        return self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])  # B N N


class SynthesizerDense(Synthesizer):
    """Dense: each token's row is computed from that token alone, W2 relu(W1 x + b1) + b2.

    The paper's equation, unscaled, but the printed count leaves a hidden width of N where the
    paper has D.
    """

    def __init__(self, in_dims: int, sentence_length: int) -> None:
        super().__init__(in_dims, sentence_length)
        self.first = nn.Linear(in_dims, sentence_length)
        self.relu = nn.ReLU()
        self.second = nn.Linear(sentence_length, sentence_length)

    def logits(self, x: Tensor) -> Tensor:
        return self.second(self.relu(self.first(x)))  # B N N


class SynthesizerRandom(Synthesizer):
    """Random and Fixed Random: the softmax of a matrix that never sees the input; map (1, N, N).

    As in the paper, for one head. ``fixed`` makes the matrix a buffer: never trained, saved in the
    state dict. The paper gives no distribution; here normal with standard deviation 0.02 if
    trained and 1 if fixed.
    """

    matrix: Tensor

    def __init__(self, in_dims: int, sentence_length: int, fixed: bool = False) -> None:
        super().__init__(in_dims, sentence_length)
        matrix = torch.randn(1, sentence_length, sentence_length)
        if fixed:
            self.register_buffer("matrix", FIXED_STD * matrix)
        else:
            self.matrix = nn.Parameter(TRAINABLE_STD * matrix)

    def logits(self, x: Tensor) -> Tensor:  # noqa: ARG002
        return self.matrix  # 1 N N


class FactorizedSynthesizerDense(Synthesizer):
    """Factorized Dense: a token's row is the outer product of two short vectors computed from it.

    The lengths are 4 and ⌈N / 4⌉, the product is cut to N, so any N works, prime ones too: logit
    j = i·⌈N / 4⌉ + k is a_i c_k. The printed count leaves no room for a hidden layer before the
    two projections.
    """

    def __init__(self, in_dims: int, sentence_length: int) -> None:
        super().__init__(in_dims, sentence_length)
        self.slow = nn.Linear(in_dims, 4)
        self.fast = nn.Linear(in_dims, math.ceil(sentence_length / 4))

    def logits(self, x: Tensor) -> Tensor:
        outer = self.slow(x).unsqueeze(-1) * self.fast(x).unsqueeze(-2)  # B N 4 ⌈N/4⌉
        return outer.flatten(-2)[..., : self.sentence_length]  # B N N


class FactorizedSynthesizerRandom(Synthesizer):
    """Not the paper's Factorized Random: the unscaled product of two projections of the input.

    The paper has R1 R2ᵀ with two trained N x 8 matrices that never see the input. The printed
    signature has no length and the printed count no such matrices, so this is a dot product of
    rank 8 for any length. For the paper's, use ``mixer=factorized_random`` of the CCT.
    """

    def __init__(self, in_dims: int) -> None:
        super().__init__(in_dims)
        self.query = nn.Linear(in_dims, 8)
        self.key = nn.Linear(in_dims, 8)

    def logits(self, x: Tensor) -> Tensor:
        return self.query(x) @ self.key(x).mT  # B N N


class MixtureSynthesizers(Transformer):
    """Random + Vanilla: softmax(R + Q Kᵀ / √D), mixed before the softmax as in the paper.

    The printed count leaves no room for the paper's learned weights: both are one. The trained
    matrix R starts normal with standard deviation 0.02.
    """

    def __init__(self, in_dims: int, sentence_length: int) -> None:
        super().__init__(in_dims)
        self.sentence_length = sentence_length
        self.matrix = nn.Parameter(TRAINABLE_STD * torch.randn(1, sentence_length, sentence_length))

    def logits(self, x: Tensor) -> Tensor:
        return self.matrix + super().logits(x)  # B N N


def get_n_params(model: nn.Module) -> int:
    """The numbers a layer stores, frozen matrices (buffers) included."""
    return sum(stored.numel() for stored in chain(model.parameters(), model.buffers()))


def calculate_flops(children: Iterable[nn.Module]) -> int:
    """The printed convention: the weights of linear layers, and one for every other leaf.

    That is the linear layers' multiply-adds for one token, without their biases; products of
    tokens with tokens are left out. ``cct.model.cost`` counts what is really computed.
    """
    modules = chain.from_iterable(child.modules() for child in children)
    leaves = (module for module in modules if not list(module.children()))
    return sum(leaf.weight.numel() if isinstance(leaf, nn.Linear) else 1 for leaf in leaves)
