"""Every pooling in conf/pool against its definition in loops and against the reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from cct.config import compose, options

POOLS = options("pool")
REFERENCE = Path(__file__).parent / "reference" / "pools.npz"


def build(name: str, *overrides: str, dim: int = 8) -> Any:
    cfg = compose([f"pool={name}", "data=digits", *overrides]).cfg
    return instantiate(cfg.pool, _convert_="all")(dim)


def loud(name: str) -> Any:
    pool = build(name).double()
    for parameter in pool.parameters():
        parameter.data.normal_()
    return pool


def tokens() -> Tensor:
    return 2 * torch.randn(3, 6, 8, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    assert actual.shape == expected.shape
    return bool((actual - expected).abs().max() <= tolerance)


def over_tokens(x: Tensor, b: int, n: int, d: int) -> Tensor:
    return x[b, n, d].exp() / sum(x[b, other, d].exp() for other in range(x.shape[1]))


def over_batch(x: Tensor, b: int, n: int, d: int) -> Tensor:
    return x[b, n, d].exp() / sum(x[other, n, d].exp() for other in range(x.shape[0]))


VALUE: dict[str, Callable[[Tensor, int, int, int], Tensor]] = {
    "baseline": lambda x, *at: x[at],
    "softmax": over_tokens,
    "softmax_batch": over_batch,
    "softmax_scaled": lambda x, *at: 10 * over_tokens(x, *at),
    "softmax_plus_x": lambda x, *at: over_tokens(x, *at) + x[at],
    "x_minus_softmax": lambda x, *at: x[at] - over_tokens(x, *at),
}


@torch.no_grad()
def by_definition(name: str, pool: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    weights, pooled = torch.zeros_like(x[..., 0]), torch.zeros_like(x[:, 0])
    for b, image in enumerate(x):
        scores = [(pool.score.weight[0] @ token + pool.score.bias[0]).exp() for token in image]
        for n, score in enumerate(scores):
            weights[b, n] = score / sum(scores)
            for d in range(x.shape[2]):
                pooled[b, d] += weights[b, n] * VALUE[name](x, b, n, d)
    return weights, pooled


def test_the_six_poolings_and_the_class_token_are_offered():
    assert {*VALUE, "class_token"} <= set(POOLS)


@pytest.mark.parametrize("name", VALUE)
def test_a_pooling_is_its_definition(name):
    pool, x = loud(name), tokens()
    weights, pooled = by_definition(name, pool, x)
    assert weights.amax(1).mean() > 0.5  # uniform would be 1/6
    assert close(pool.weights(x), weights)
    assert close(pool(x), pooled)


@pytest.mark.parametrize("name", VALUE)
def test_a_pooling_is_the_references(name):
    with np.load(REFERENCE) as file:
        numbers = {key: torch.from_numpy(file[key]) for key in file.files}
    pool = build(name)
    pool.score.weight.data = numbers["weight"][None]
    pool.score.bias.data = numbers["bias"][None]
    expected = numbers[{"softmax_scaled": "softmax_scaled_10"}.get(name, name)]
    assert close(pool(numbers["x"]), expected, 1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_keeps_images_apart_unless_it_looks_across_the_batch(name):
    pool, x = loud(name), tokens()
    apart = close(pool(x[:1]), pool(x)[:1], 1e-12)
    assert apart == (name != "softmax_batch")


@pytest.mark.parametrize("name", POOLS)
def test_weights_say_how_much_each_token_counts(name):
    pool = loud(name)
    weights = pool.weights(pool.prepend(tokens()))
    assert weights.shape == (3, 6 + pool.prefix)
    assert bool((weights >= 0).all())
    assert close(weights.sum(1), torch.ones_like(weights[:, 0]))


@pytest.mark.parametrize("name", POOLS)
def test_the_prefix_is_the_number_of_tokens_put_before_the_grid(name):
    pool, x = loud(name), tokens()
    longer = pool.prepend(x)
    assert longer.shape == (3, 6 + pool.prefix, 8)
    assert torch.equal(longer[:, pool.prefix :], x)
    assert pool(longer).shape == (3, 8)


@pytest.mark.parametrize("name", POOLS)
def test_every_parameter_of_a_pool_gets_a_gradient(name):
    pool = loud(name)
    (pool(pool.prepend(tokens())) * torch.randn(3, 8, dtype=torch.float64)).sum().backward()
    for key, parameter in pool.named_parameters():
        assert parameter.grad is not None, key
        if key != "score.bias":  # shifts all scores alike, so its gradient is zero
            assert parameter.grad.abs().max() > 1e-6, key


@pytest.mark.parametrize("name", [name for name in VALUE if name != "baseline"])
def test_the_softmax_of_a_pool_is_in_float32_under_autocast(name):
    pool = build(name)
    x = tokens().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert pool.weights(x).dtype == torch.float32
        pooled = pool(x).float()
    exact = pool(x.float())
    assert close(pooled, exact, 0.02 * exact.abs().max().item())


def test_the_class_token_is_read_and_nothing_else():
    pool, x = loud("class_token"), tokens()
    longer = pool.prepend(x)
    assert pool.prefix == 1
    assert torch.equal(longer[:, 0], pool.token[0].expand(3, -1))
    assert torch.equal(pool(longer), longer[:, 0])
    assert pool.weights(longer).tolist() == [[1, 0, 0, 0, 0, 0, 0]] * 3


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("baseline", "pool.axis=tokens"),
        ("baseline", "pool.softmax_weight=2"),
        ("softmax", "pool.axis=null"),
        ("softmax_batch", "pool.softmax_weight=0"),
    ],
)
def test_an_axis_that_contradicts_the_weight_is_refused(name, override):
    with pytest.raises(ValueError, match=r"pool\.axis=\w+ and pool\.softmax_weight=[\d.]+"):
        build(name, override)


def test_a_new_formula_is_only_numbers():
    pool, x = (
        build("x_minus_softmax", "pool.identity_weight=3", "pool.softmax_weight=0.5"),
        tokens(),
    )
    pool.double()
    weights = pool.weights(x)
    expected = (weights[..., None] * (3 * x + 0.5 * x.softmax(1))).sum(1)
    assert close(pool(x), expected)
