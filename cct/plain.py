"""The model in its plain form, in which every formula is written as the papers write it.

Where the model takes another way to the same numbers because that way is faster, its plain form is
kept here: tests compare the two, and ``scripts/benchmark.py`` measures what the other way gains.

Shapes: B images, N tokens, D dim, H heads, P = D / H; M = N where a token is mixed over.
"""

import copy
from collections.abc import Callable
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cct.data import Data
from cct.dropout import Dropout
from cct.mixers.attention import Attention
from cct.model import CCT, Tokenizer


def tokenize(tokenizer: Tokenizer, images: Tensor) -> Tensor:
    """Convolve, ReLU, max-pool, in this order."""
    x = images
    for convolution in tokenizer.convolutions:
        x = tokenizer.pool(convolution(x).relu())
    return x.flatten(2).transpose(1, 2)  # B N D


def mix(attention: Attention, x: Tensor, values: Tensor) -> Tensor:
    """Mix the values (B, M, H, P) by a map of each image, its own even where all are equal."""
    weights = attention.map(x).to(values.dtype)
    weights = attention.dropout(weights).expand(len(x), -1, -1, -1)  # B H N M
    return (weights @ values.transpose(1, 2)).transpose(1, 2)  # B N H P


def drop(dropout: Dropout, x: Tensor) -> Tensor:
    return F.dropout(x, dropout.rate, dropout.training)


FORMS: list[tuple[type[nn.Module], str, Callable[..., Tensor]]] = [
    (Tokenizer, "forward", tokenize),
    (Attention, "mix", mix),
    (Dropout, "forward", drop),
]


def plain(model: CCT) -> CCT:
    """Return a copy of a model that computes in the plain form, from the same weights."""
    model = copy.deepcopy(model).to(memory_format=torch.contiguous_format)  # of the weights
    for module in model.modules():
        for kind, name, form in FORMS:
            if isinstance(module, kind):
                setattr(module, name, MethodType(form, module))
    return model


def normalize(data: Data, images: Tensor) -> Tensor:
    """Return ``Data.normalize`` of the images, channels first in memory too."""
    mean, std = data.mean[:, None, None], data.std[:, None, None]
    return (images.float() / 255 - mean) / std
