"""What every mixer promises, for every yaml in conf/mixer, and what each one computes.

[1] to [17] mark the reference tests of the specification, with its exact values. Weights are
large, so that the maps are far from uniform: a wrong softmax axis does not show in a uniform map.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor, nn

from cct.config import compose, options
from cct.mixers.attention import Attention, MixtureAttention
from cct.model import cost

MIXERS = options("mixer")
INPUT_INDEPENDENT = ["random", "fixed_random", "factorized_random"]
IMAGES, DIM, HEADS = 2, 12, 3
WIDTH = DIM // HEADS


@cache
def factory(name: str, *overrides: str) -> Callable[..., Any]:
    cfg = compose([f"mixer={name}", "data=digits", *overrides]).cfg
    return instantiate(cfg.mixer, _convert_="all")


def build(
    name: str,
    *overrides: str,
    grid: tuple[int, int] = (3, 5),
    dim: int = DIM,
    heads: int = HEADS,
    dropout: float = 0.0,
) -> Any:
    return factory(name, *overrides)(dim, math.prod(grid), heads, grid, 0, dropout)


def loud(name: str, *overrides: str, **sizes: Any) -> Any:
    """A mixer in evaluation, in float64, whose map is far from uniform."""
    mixer = build(name, *overrides, **sizes).double().eval()
    for tensor in mixer.state_dict().values():
        tensor.normal_(std=0.5 if tensor.ndim == 2 else 1.0)
    return mixer


def tokens_like(mixer: Any, images: int = IMAGES, dim: int = DIM) -> Tensor:
    dtype = next(mixer.parameters()).dtype
    return torch.randn(images, mixer.tokens, dim, dtype=dtype)


def before_projection(mixer: Any, x: Tensor) -> Tensor:
    seen = []
    handle = mixer.project.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    mixer(x)
    handle.remove()
    return seen[0]


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    assert actual.shape == expected.shape
    return bool((actual - expected).abs().max() <= tolerance)


MAPPED = [name for name in MIXERS if hasattr(build(name), "map")]
ATTENTION = [name for name in MIXERS if isinstance(build(name), Attention)]


# What every mixer promises


def test_the_seven_mixers_of_the_paper_are_offered_and_have_maps():
    seven = {"self_attention", "dense", "random", "fixed_random"}
    seven |= {"factorized_dense", "factorized_random", "mixture"}
    assert seven <= set(ATTENTION) <= set(MAPPED)


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_returns_what_it_was_given_in_shape(name):
    mixer = build(name)
    for images in (1, 5):
        x = torch.randn(images, 15, DIM)
        assert mixer(x).shape == x.shape


@pytest.mark.parametrize("name", MIXERS)
def test_images_do_not_see_each_other(name):  # [11]
    mixer = loud(name)
    x = torch.randn(4, 15, DIM, dtype=torch.float64)
    together = mixer(x)
    assert close(mixer(x[:1]), together[:1])
    changed = torch.cat([x[:1], torch.randn_like(x[1:])])
    assert close(mixer(changed)[:1], together[:1])


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", MAPPED)
def test_the_rows_of_a_map_are_distributions_in_every_precision(name, precision):  # [7]
    mixer = loud(name)
    if precision != "float64":
        mixer.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        weights = mixer.map(tokens_like(mixer))
    assert weights.dtype == (torch.float64 if precision == "float64" else torch.float32)
    assert weights.shape[1:] == (HEADS, 15, 15)
    assert len(weights) == (1 if name in INPUT_INDEPENDENT else IMAGES)
    assert bool((weights >= 0).all())
    assert close(weights.sum(-1), torch.ones_like(weights[..., 0]), 1e-6)
    assert not close(weights.sum(-2), torch.ones_like(weights[..., 0]), 0.1)


@pytest.mark.parametrize("name", ATTENTION)
def test_the_map_times_the_values_is_what_is_projected(name):  # [11]
    mixer = loud(name)
    x = tokens_like(mixer)
    values = mixer.value(x).view(IMAGES, 15, HEADS, WIDTH).transpose(1, 2)
    mixed = (mixer.map(x) @ values).transpose(1, 2).reshape(IMAGES, 15, DIM)
    assert close(before_projection(mixer, x), mixed)
    assert close(mixer(x), F.linear(mixed, mixer.project.weight, mixer.project.bias))


@pytest.mark.parametrize("wrong", [1, 14, 16])
@pytest.mark.parametrize("name", MIXERS)
def test_another_number_of_tokens_is_refused_with_both_numbers(name, wrong):  # [15]
    mixer = build(name)
    if not isinstance(mixer, Attention):
        pytest.skip("built for no particular number of tokens")
    x = torch.randn(IMAGES, wrong, DIM)
    for use in (mixer, getattr(mixer, "map", mixer)):
        with pytest.raises(ValueError, match=rf"\b15\b.*\b{wrong}\b|\b{wrong}\b.*\b15\b"):
            use(x)


@pytest.mark.parametrize("name", MIXERS)
def test_every_trainable_parameter_gets_a_gradient_at_initialisation(name):  # [17]
    mixer = build(name)
    (mixer(torch.randn(IMAGES, 15, DIM)) * torch.randn(15, DIM)).sum().backward()
    for key, parameter in mixer.named_parameters():
        assert parameter.grad is not None, key
        parts = parameter.grad.flatten(1) if parameter.ndim > 1 else parameter.grad[None]
        assert bool((parts.abs().amax(1) > 0).all()), f"{key}: a part of it is dead"


@pytest.mark.parametrize("name", MIXERS)
def test_evaluation_ignores_dropout_and_repeats_bit_for_bit(name):  # [13]
    dropping = build(name, dropout=0.9).eval()
    plain = build(name)
    plain.load_state_dict(dropping.state_dict())
    x = torch.randn(IMAGES, 15, DIM)
    assert torch.equal(dropping(x), dropping(x))
    assert torch.equal(dropping(x), plain(x))


@pytest.mark.parametrize("name", MIXERS)
def test_the_mean_over_dropout_is_the_evaluation(name):  # [13]
    mixer = loud(name, dropout=0.3)
    x = torch.randn(IMAGES, 15, DIM, dtype=torch.float64)
    with torch.no_grad():
        expected = mixer(x)
        mixer.train()
        draws = torch.stack([mixer(x) for _ in range(400)])
    error = draws.std(0) / 400**0.5
    assert bool(((draws.mean(0) - expected).abs() <= 5.5 * error + 1e-9).all())


@pytest.mark.parametrize("name", ATTENTION)
def test_dropout_changes_the_mixing_but_not_the_returned_map(name):  # [13]
    mixer = loud(name, dropout=0.3)
    x = tokens_like(mixer)
    weights = mixer.map(x)
    mixer.train()
    assert torch.equal(mixer.map(x), weights)
    assert not close(mixer(x), mixer(x), 1e-2)


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_compiles_as_one_graph(name):
    mixer = build(name)
    x = torch.randn(IMAGES, 15, DIM)
    torch.compiler.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    for training in (True, False):
        mixer.train(training)
        assert torch.equal(compiled(x), mixer(x))


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_is_restored_from_its_state_alone(name):  # [14]
    first, second = build(name).eval(), build(name).eval()
    x = torch.randn(IMAGES, 15, DIM)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


# Each mixer against its definition, in loops over images, heads, queries and keys


def dot_product(scores: Any, x: Tensor, head: int, i: int, j: int) -> Tensor:
    rows = slice(head * WIDTH, (head + 1) * WIDTH)
    query, key = scores.query_key.weight.chunk(2)
    return (query[rows] @ x[i]) @ (key[rows] @ x[j]) / math.sqrt(WIDTH)


def hidden(scores: Any, token: Tensor, head: int) -> Tensor:
    rows = slice(head * WIDTH, (head + 1) * WIDTH)
    return (scores.hidden.weight[rows] @ token + scores.hidden.bias[rows]).clamp(min=0)


def dense(scores: Any, x: Tensor, head: int, i: int, j: int) -> Tensor:
    weight, bias = scores.output.weight[head, :, j], scores.output.bias[head, 0, j]
    return hidden(scores, x[i], head) @ weight + bias


def factorized_dense(scores: Any, x: Tensor, head: int, i: int, j: int) -> Tensor:
    inner, count = hidden(scores, x[i], head), scores.columns.weight.shape[-1]
    a = inner @ scores.rows.weight[head] + scores.rows.bias[head, 0]
    c = inner @ scores.columns.weight[head] + scores.columns.bias[head, 0]
    return a[j // count] * c[j % count]


def random(scores: Any, _x: Tensor, head: int, i: int, j: int) -> Tensor:
    return scores.logits[0, head, i, j]


def factorized_random(scores: Any, _x: Tensor, head: int, i: int, j: int) -> Tensor:
    return (scores.query[head, i] * scores.key[head, j]).sum()


def mixture(scores: Any, x: Tensor, head: int, i: int, j: int) -> Tensor:
    shares = scores.weight.exp() / scores.weight.exp().sum()
    kinds = {"Random": random, "DotProduct": dot_product, "Dense": dense}
    logits = [kinds[type(part).__name__](part, x, head, i, j) for part in scores.parts]
    return torch.stack([s * one for s, one in zip(shares, logits, strict=True)]).sum()


LOGIT: dict[str, Callable[..., Tensor]] = {
    "self_attention": dot_product,
    "dense": dense,
    "random": random,
    "fixed_random": random,
    "factorized_dense": factorized_dense,
    "factorized_random": factorized_random,
    "mixture": mixture,
}


@torch.no_grad()
def by_definition(name: str, mixer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The map (B, H, N, N) and the output, one number at a time."""
    count, logit = x.shape[1], LOGIT[name]
    weights = x.new_zeros(len(x), HEADS, count, count)
    output = torch.zeros_like(x)
    for b, image in enumerate(x):
        for i in range(count):
            mixed = []
            for head in range(HEADS):
                row = [logit(mixer.scores, image, head, i, j).exp() for j in range(count)]
                weights[b, head, i] = torch.stack(row) / sum(row)
                values = mixer.value.weight[head * WIDTH : (head + 1) * WIDTH]
                mixed.append(
                    sum(weights[b, head, i, j] * (values @ image[j]) for j in range(count))
                )
            output[b, i] = mixer.project.weight @ torch.cat(mixed) + mixer.project.bias
    return weights, output


SEVEN_TOKENS: dict[str, list[str]] = {
    **{name: [] for name in LOGIT},
    "factorized_random": ["mixer.scores.rank=2"],
}


@pytest.mark.parametrize("name", LOGIT)
def test_a_mixer_is_its_definition(name):  # [10]
    mixer = loud(name, *SEVEN_TOKENS[name], grid=(7, 1))
    x = tokens_like(mixer)
    weights, output = by_definition(name, mixer, x)
    assert weights.amax(-1).mean() > 0.3  # uniform would be 1/7
    assert close(mixer.map(x).expand_as(weights), weights)
    assert close(mixer(x), output, 1e-11)


def test_a_mixture_of_three_is_its_definition():
    mixer = loud("mixture", "mixer.components=[dense,random,self_attention]", grid=(7, 1))
    x = tokens_like(mixer)
    weights, output = by_definition("mixture", mixer, x)
    assert close(mixer.map(x), weights)
    assert close(mixer(x), output, 1e-11)


# Exact values


def uniform(name: str) -> Any:
    """A mixer with random weights but for one score parameter, which makes all logits zero."""
    mixer = loud(name, *SEVEN_TOKENS[name], grid=(7, 1))
    scores = mixer.scores
    zero = {
        "self_attention": lambda: [scores.query_key.weight[:DIM]],
        "dense": lambda: [scores.output.weight, scores.output.bias],
        "random": lambda: [scores.logits],
        "fixed_random": lambda: [scores.logits],
        "factorized_random": lambda: [scores.query],
        "factorized_dense": lambda: [scores.rows.weight, scores.rows.bias],
        "mixture": lambda: [scores.parts[0].logits, scores.parts[1].query_key.weight[DIM:]],
    }
    with torch.no_grad():
        for tensor in zero[name]():
            tensor.zero_()
    return mixer


@pytest.mark.parametrize("name", LOGIT)
def test_zero_logits_give_the_mean_over_tokens(name):  # [1]
    mixer = uniform(name)
    x = tokens_like(mixer)
    assert close(mixer.map(x), torch.full_like(mixer.map(x), 1 / 7), 1e-16)
    mean = mixer.project(mixer.value(x).mean(1, keepdim=True))
    assert close(mixer(x), mean.expand_as(x))


def with_logits(logits: Tensor) -> tuple[Any, Tensor]:
    """A ``random`` mixer of one head with these logits, and tokens for it."""
    count = len(logits)
    mixer = build("random", grid=(count, 1), heads=1).double()
    mixer.scores.logits.data = logits.double().view(1, 1, count, count)
    return mixer, tokens_like(mixer)


def test_log_three_on_the_diagonal_of_four_tokens_gives_one_half_and_one_sixth():  # [2]
    mixer, x = with_logits(math.log(3) * torch.eye(4, dtype=torch.float64))
    expected = torch.full((4, 4), 1 / 6, dtype=torch.float64).fill_diagonal_(1 / 2)
    assert close(mixer.map(x)[0, 0], expected, 1e-15)


def test_the_logarithm_of_a_distribution_gives_that_distribution():  # [3]
    wanted = torch.rand(6, 6, dtype=torch.float64)
    wanted /= wanted.sum(1, keepdim=True)
    mixer, x = with_logits(wanted.log())
    assert close(mixer.map(x)[0, 0], wanted, 1e-15)


def test_factors_of_rank_one_give_the_map_worked_out_by_hand():  # [4]
    mixer = build("factorized_random", "mixer.scores.rank=1", grid=(2, 1), heads=1).double()
    mixer.scores.query.data = torch.tensor([[[0.0], [math.log(2)]]], dtype=torch.float64)
    mixer.scores.key.data = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    expected = torch.tensor([[1 / 2, 1 / 2], [1 / 3, 2 / 3]], dtype=torch.float64)
    x = tokens_like(mixer)
    assert close(mixer.map(x)[0, 0], expected, 1e-15)
    assert torch.equal(mixer.map(x), mixer.map(10 * x[:1]))


@pytest.mark.parametrize("rank", [1, 3])
def test_factorized_random_logits_have_at_most_the_rank_asked_for(rank):  # [4]
    mixer = loud("factorized_random", f"mixer.scores.rank={rank}")
    for logits in mixer.scores(tokens_like(mixer))[0]:
        assert torch.linalg.matrix_rank(logits) == rank


@pytest.mark.parametrize("name", INPUT_INDEPENDENT)
def test_the_random_family_never_looks_at_the_input(name):  # [4]
    mixer = loud(name)
    x = tokens_like(mixer)
    assert torch.equal(mixer.map(x), mixer.map(torch.randn_like(x)))


@pytest.mark.parametrize(
    ("rows", "columns", "logits"),
    [
        ([1, 2], [10, 20, 30], [10, 20, 30, 20, 40, 60]),
        ([1, 2], [10, 20], [10, 20, 20, 40]),
        ([1, 2], [10, 20, 30], [10, 20, 30, 20, 40]),
    ],
)
def test_factorized_dense_is_an_outer_product_cut_to_the_tokens(rows, columns, logits):  # [5]
    factors = f"mixer.scores.factors=[{len(rows)},{len(columns)}]"
    mixer = build("factorized_dense", factors, grid=(len(logits), 1), heads=1)
    for layer, values in ((mixer.scores.rows, rows), (mixer.scores.columns, columns)):
        layer.weight.data.zero_()
        layer.bias.data = torch.tensor(values, dtype=torch.float32).view(1, 1, -1)
    got = mixer.scores(tokens_like(mixer))
    assert got.tolist() == [[[logits] * len(logits)]] * IMAGES


def test_the_gradient_of_one_weight_reaches_only_its_row():  # [6]
    mixer, x = with_logits(torch.zeros(2, 2))
    mixer.map(x)[0, 0, 0, 0].backward()
    assert mixer.scores.logits.grad.tolist() == [[[[0.25, -0.25], [0.0, 0.0]]]]


def test_the_gradient_of_random_logits_is_that_of_a_softmax():  # [6]
    mixer = loud("random")
    x = tokens_like(mixer)
    direction = torch.randn(1, HEADS, 15, 15, dtype=torch.float64)
    weights = mixer.map(x)
    (weights * direction).sum().backward()
    pulled = (weights * direction).detach()
    expected = pulled - weights.detach() * pulled.sum(-1, keepdim=True)
    assert close(mixer.scores.logits.grad, expected)
    mixer.zero_grad()
    mixer(x).square().sum().backward()
    assert mixer.scores.logits.grad.norm() > 1e-3
    assert mixer.scores.logits.grad.sum(-1).abs().max() < 1e-12


def test_the_fixed_map_stays_bit_for_bit_while_the_rest_trains():  # [6]
    mixer = build("fixed_random")
    before = {key: tensor.clone() for key, tensor in mixer.state_dict().items()}
    assert "scores.logits" in before
    assert "scores.logits" not in dict(mixer.named_parameters())
    optimizer = torch.optim.AdamW(mixer.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        mixer(torch.randn(IMAGES, 15, DIM)).square().sum().backward()
        optimizer.step()
    for key, tensor in mixer.state_dict().items():
        assert torch.equal(tensor, before[key]) == (key == "scores.logits"), key


def test_the_learned_map_changes_with_a_fused_optimiser_step():  # [14]
    mixer = build("random")
    x = torch.randn(IMAGES, 15, DIM)
    with torch.no_grad():
        before = mixer.map(x).clone()
    mixer(x).square().sum().backward()
    torch.optim.AdamW(mixer.parameters(), lr=0.1, fused=True).step()
    assert not close(mixer.map(x), before, 1e-3)


RELATIONS = {  # what a permutation P of the tokens does to the map A
    "self_attention": "P A P^T",
    "dense": "P A",
    "factorized_dense": "P A",
    "random": "A",
    "fixed_random": "A",
    "factorized_random": "A",
    "mixture": "none of these",
}


@pytest.mark.parametrize(("name", "relation"), RELATIONS.items())
def test_permuted_tokens_permute_the_map_as_the_kind_of_mixer_says(name, relation):  # [8]
    mixer = loud(name)
    x = tokens_like(mixer)
    order = torch.randperm(15)
    before, after = mixer.map(x), mixer.map(x[:, order])
    expected = {
        "P A P^T": before[:, :, order][..., order],
        "P A": before[:, :, order],
        "A": before,
    }
    for key, wanted in expected.items():
        assert close(after, wanted, 1e-12 if key == relation else 0.1) == (key == relation), key
    equivariant = relation == "P A P^T"
    assert close(mixer(x[:, order]), mixer(x)[:, order], 1e-12 if equivariant else 0.1) == (
        equivariant
    )


@pytest.mark.parametrize("name", ["dense", "factorized_dense"])
def test_a_row_of_a_dense_map_comes_from_its_own_token_alone(name):  # [10]
    mixer = loud(name)
    x = tokens_like(mixer)
    changed = x.clone()
    changed[:, 4] = torch.randn(DIM, dtype=torch.float64)
    same = (mixer.map(x) == mixer.map(changed)).all(-1)
    assert bool(same[:, :, :4].all())
    assert bool(same[:, :, 5:].all())
    assert not bool(same[:, :, 4].any())


# Mixtures


@pytest.mark.parametrize("chosen", [0, 1])
def test_all_weight_on_one_component_is_that_component(chosen):  # [9]
    mixer = loud("mixture")
    x = tokens_like(mixer)
    mixer.scores.weight.data = torch.tensor([60.0, -60.0]).double().roll(chosen)
    alone = mixer.scores.parts[chosen](x).softmax(-1).expand(IMAGES, -1, -1, -1)
    assert torch.equal(mixer.map(x), alone)


def test_a_mixture_mixes_logits_and_not_maps():  # [9]
    mixer = build("mixture", "mixer.components=[random,random]", grid=(2, 1), heads=1).double()
    first, second = mixer.scores.parts
    first.logits.data = torch.tensor([math.log(4), 0.0]).double().expand(1, 1, 2, 2)
    second.logits.data.zero_()
    expected = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)  # mixed maps: 0.65, 0.35
    assert close(mixer.map(tokens_like(mixer))[0, 0, 0], expected, 1e-7)


def test_a_mixture_of_equal_components_is_the_component():  # [9]
    mixer = loud("mixture", "mixer.components=[dense,dense,dense]")
    for part in mixer.scores.parts:
        part.load_state_dict(mixer.scores.parts[0].state_dict())
    x = tokens_like(mixer)
    assert close(mixer.map(x), mixer.scores.parts[0](x).softmax(-1))


def test_the_weights_of_a_mixture_start_equal_and_learn():  # [9]
    mixer = build("mixture", "mixer.components=[random,dense,self_attention]").double()
    x = tokens_like(mixer)
    first, second, third = (part(x) for part in mixer.scores.parts)
    assert close(mixer.map(x), ((first + second + third) / 3).softmax(-1))
    (mixer(x) * torch.randn_like(x)).sum().backward()
    assert bool((mixer.scores.weight.grad.abs() > 0).all())


def test_a_mixture_takes_its_components_settings_from_their_yaml():
    overrides = ["mixer.components=[random,fixed_random]", "mixer.parts.random.scores.std=5"]
    mixer = build("mixture", *overrides, grid=(16, 16))
    learned, fixed = (part.logits.std().item() for part in mixer.scores.parts)
    assert learned == pytest.approx(5, rel=0.02)
    assert fixed == pytest.approx(1, rel=0.02)


def test_a_mixture_of_fewer_than_two_or_of_what_has_no_scores_is_refused():
    sizes = (DIM, 15, HEADS, (3, 5), 0, 0.0)
    parts: dict[str, Callable[..., Attention]] = {"random": factory("random")}
    with pytest.raises(ValueError, match=r"mixer\.components=\['random'\].*two or more"):
        MixtureAttention(*sizes, components=["random"], parts=parts)
    whole: Any = {**parts, "whole": lambda *_: torch.nn.Identity()}
    with pytest.raises(ValueError, match=r"mixer\.components: whole has no scores"):
        MixtureAttention(*sizes, components=["random", "whole"], parts=whole)


# Against PyTorch's own attention


def test_a_subclass_with_other_scores_or_another_map_is_what_is_evaluated():
    mixer = loud("self_attention").eval()
    x = tokens_like(mixer)

    class Sharper(type(mixer.scores)):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Reversed(type(mixer)):
        def map(self, x: Tensor) -> Tensor:
            return super().map(x).flip(-1)

    def mixed() -> Tensor:
        values = mixer.value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return mixer.project((mixer.map(x) @ values).transpose(1, 2).flatten(2))

    usual = mixer(x)
    assert close(usual, mixed())
    mixer.scores.__class__ = Sharper
    assert close(mixer(x), mixed())
    assert not close(mixer(x), usual)
    mixer.scores.__class__ = Sharper.__base__
    mixer.__class__ = Reversed
    assert close(mixer(x), mixed())
    assert not close(mixer(x), usual)


@pytest.mark.parametrize("name", ["self_attention", "mixture"])
def test_outputs_and_all_gradients_are_those_of_fused_attention(name):  # [12]
    mixer = loud(name)
    x = tokens_like(mixer).requires_grad_()
    direction = torch.randn_like(x)
    parameters = [x, *mixer.parameters()]

    def heads(tensor: Tensor) -> Tensor:
        return tensor.view(IMAGES, 15, HEADS, WIDTH).transpose(1, 2)

    bias, scale, attention = None, 1, mixer.scores
    if name == "mixture":
        learned, attention = mixer.scores.parts
        shares = mixer.scores.weight.softmax(0)
        bias, scale = shares[0] * learned.logits, shares[1]
    query, key = attention.query_key(x).chunk(2, -1)
    fused = F.scaled_dot_product_attention(
        heads(query * scale), heads(key), heads(mixer.value(x)), attn_mask=bias
    )
    expected = mixer.project(fused.transpose(1, 2).flatten(2))
    assert close(mixer(x), expected)
    ours = torch.autograd.grad((mixer(x) * direction).sum(), parameters)
    theirs = torch.autograd.grad((expected * direction).sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        assert close(one, other, 1e-10)


# Dropout


@pytest.mark.parametrize("name", ATTENTION)
def test_one_mask_serves_the_batch_exactly_where_the_map_ignores_the_input(name):
    mixer = loud(name, dropout=0.5).train()
    twice = tokens_like(mixer, 1).expand(2, -1, -1)
    first, second = mixer(twice)
    shared = len(mixer.map(twice)) == 1
    assert shared == (name in INPUT_INDEPENDENT)
    assert close(first, second, 1e-12 if shared else 1e-2) == shared


@pytest.mark.parametrize("name", ["self_attention", "random"])
def test_dropout_draws_every_weight_by_itself_and_scales_the_rest(name):
    mixer = loud(name, dropout=0.25).train()
    dropped = []
    mixer.dropout.register_forward_hook(lambda _m, _i, output: dropped.append(output))
    x = tokens_like(mixer)
    mixer(x)
    weights, kept = mixer.map(x), dropped[0] != 0
    assert close(dropped[0][kept], weights[kept] / 0.75)
    assert 0.65 < kept.double().mean() < 0.85
    for axis in range(1, 4):  # no axis shares a mask
        assert not bool((kept == kept.narrow(axis, 0, 1)).all())


# Sizes


@pytest.mark.parametrize(
    ("tokens", "rows", "columns"),
    [
        (64, 8, 8),
        (256, 16, 16),
        (65, 9, 8),
        (257, 17, 16),
        (197, 15, 14),
        (50, 8, 7),
        (49, 7, 7),
        (7, 3, 3),
        (1, 1, 1),
    ],
)
def test_factorized_dense_chooses_the_most_square_factors(tokens, rows, columns):  # [15]
    mixer = build("factorized_dense", grid=(tokens, 1))
    assert mixer.scores.rows.weight.shape == (HEADS, WIDTH, rows)
    assert mixer.scores.columns.weight.shape == (HEADS, WIDTH, columns)
    assert mixer.map(tokens_like(mixer)).shape == (IMAGES, HEADS, tokens, tokens)


@pytest.mark.parametrize("factors", ["[3,4]", "[15]", "[3,5,1]"])
def test_factors_that_do_not_reach_the_tokens_are_refused(factors):  # [15]
    with pytest.raises(ValueError, match=r"mixer\.scores\.factors=.*\b15\b"):
        build("factorized_dense", f"mixer.scores.factors={factors}")


def test_a_rank_above_the_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match=r"mixer\.scores\.rank=16.*\b15\b"):
        build("factorized_random", "mixer.scores.rank=16")


D, L, H, B = 24, 20, 4, 3  # dim, tokens, heads, images
COSTS = {  # parameters and multiply-adds of the scores, trainable parameters first
    "self_attention": (2 * D**2, 0, B * (2 * L * D**2 + L**2 * D)),
    "dense": (D**2 + D * L + D + H * L, 0, B * (L * D**2 + L**2 * D)),
    "random": (H * L**2, 0, 0),
    "fixed_random": (0, H * L**2, 0),
    "factorized_dense": (D**2 + D * 9 + D + H * 9, 0, B * (L * D**2 + L * D * 9)),  # 20 = 5 * 4
    "factorized_random": (2 * H * L * 8, 0, H * L**2 * 8),
    "mixture": (H * L**2 + 2 * D**2 + 2, 0, B * (2 * L * D**2 + L**2 * D)),
}


@pytest.mark.parametrize("name", COSTS)
def test_parameters_and_multiply_adds_follow_the_formulas(name):  # [16]
    trainable, frozen, multiply_adds = COSTS[name]
    counted = cost(build(name, grid=(4, 5), dim=D, heads=H), torch.randn(B, L, D))
    assert counted.trainable == trainable + 2 * D**2 + D  # values, projection and its bias
    assert counted.frozen == frozen
    assert counted.multiply_adds == multiply_adds + B * (2 * L * D**2 + L**2 * D)


@pytest.mark.parametrize("name", ["random", "fixed_random", "factorized_random"])
def test_the_standard_deviation_of_a_random_map_is_a_setting(name):
    mixer = build(name, "mixer.scores.std=3", grid=(16, 16))
    for key, tensor in mixer.scores.state_dict().items():
        assert tensor.std().item() == pytest.approx(3, rel=0.05), key


def test_a_mixer_without_biases_in_values_and_scores_has_one_in_the_projection():
    linears = {
        key: layer.bias is not None
        for key, layer in build("self_attention").named_modules()
        if isinstance(layer, nn.Linear)
    }
    assert linears == {"scores.query_key": False, "value": False, "project": True}
