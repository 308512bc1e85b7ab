import math
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cct.synthesizer import (
    FactorizedSynthesizerDense,
    FactorizedSynthesizerRandom,
    MixtureSynthesizers,
    SynthesizerDense,
    SynthesizerRandom,
    Transformer,
    calculate_flops,
    get_n_params,
)

SCRIPT = Path(__file__).parents[1] / "scripts" / "synthesizer_table.py"

LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "vanilla": lambda dim, _: Transformer(dim),
    "dense": SynthesizerDense,
    "random": SynthesizerRandom,
    "random, fixed": lambda dim, length: SynthesizerRandom(dim, length, fixed=True),
    "factorized random": lambda dim, _: FactorizedSynthesizerRandom(dim),
    "factorized dense": FactorizedSynthesizerDense,
    "mixture": MixtureSynthesizers,
}
ANY_LENGTH = ("vanilla", "factorized random")

# dim 1024, 32 tokens: (n_params, flops, maps per batch of 2, true multiply-adds for one sample)
PRINTED = {
    "vanilla": (3148800, 3145729, 2, 102760448),
    "dense": (1083456, 1082370, 2, 35684352),
    "random": (1050624, 1048577, 1, 34603008),
    "random, fixed": (1050624, 1048577, 1, 34603008),
    "factorized random": (1066000, 1064961, 2, 35135488),
    "factorized dense": (1061900, 1060865, 2, 34996224),
    "mixture": (3149824, 3145729, 2, 102760448),
}


def affine(linear, token: Tensor) -> Tensor:
    return linear.weight @ token + linear.bias


def dot_product(layer, x: Tensor, i: int, j: int) -> Tensor:
    return affine(layer.query, x[i]) @ affine(layer.key, x[j])


def outer_product(layer, x: Tensor, i: int, j: int) -> Tensor:
    columns = (len(x) + 3) // 4
    return affine(layer.slow, x[i])[j // columns] * affine(layer.fast, x[i])[j % columns]


# The logit of query i for key j in one sample x (tokens, dim).
LOGIT: dict[str, Callable[..., Tensor]] = {
    "vanilla": lambda layer, x, i, j: dot_product(layer, x, i, j) / math.sqrt(x.shape[1]),
    "dense": lambda layer, x, i, j: affine(layer.second, affine(layer.first, x[i]).clamp(min=0))[j],
    "random": lambda layer, x, i, j: layer.matrix[0, i, j],  # noqa: ARG005
    "random, fixed": lambda layer, x, i, j: layer.matrix[0, i, j],  # noqa: ARG005
    "factorized random": dot_product,
    "factorized dense": outer_product,
    "mixture": lambda layer, x, i, j: (
        layer.matrix[0, i, j] + dot_product(layer, x, i, j) / math.sqrt(x.shape[1])
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_the_printed_shapes_and_counts(name: str) -> None:
    parameters, flops, maps, _ = PRINTED[name]
    layer = LAYERS[name](1024, 32)
    output, attention_map = layer(torch.randn(2, 32, 1024))
    assert output.shape == (2, 32, 1024)
    assert attention_map.shape == (maps, 32, 32)
    assert (get_n_params(layer), calculate_flops(layer.children())) == (parameters, flops)


@pytest.mark.parametrize("tokens", [1, 3, 7, 8])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_definition_written_with_loops(name: str, tokens: int) -> None:
    torch.manual_seed(tokens)
    layer = LAYERS[name](6, tokens).double()
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            tensor.normal_(std=0.7)  # far from uniform maps, which would hide a wrong axis
    x = torch.randn(2, tokens, 6, dtype=torch.float64)
    output, attention_map = layer(x)
    attention_map = attention_map.expand(2, tokens, tokens)
    for sample in range(2):
        values = [affine(layer.value, token) for token in x[sample]]
        for i in range(tokens):
            scores = [LOGIT[name](layer, x[sample], i, j) for j in range(tokens)]
            total = sum(score.exp() for score in scores)
            row = [score.exp() / total for score in scores]
            torch.testing.assert_close(attention_map[sample, i], torch.stack(row))
            mixed = torch.stack([weight * v for weight, v in zip(row, values, strict=True)])
            torch.testing.assert_close(output[sample, i], mixed.sum(0))


@pytest.mark.parametrize("name", LAYERS)
def test_every_row_of_a_map_sums_to_one(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](64, 13)
    _, attention_map = layer(3 * torch.randn(4, 13, 64))
    assert (attention_map >= 0).all()
    torch.testing.assert_close(attention_map.sum(-1), torch.ones(attention_map.shape[:2]))


def test_only_an_unfixed_matrix_is_trained() -> None:
    torch.manual_seed(0)
    for fixed in (True, False):
        layer = SynthesizerRandom(8, 5, fixed=fixed)
        before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
        layer(torch.randn(2, 5, 8))[0].square().sum().backward()
        optimizer.step()
        after = layer.state_dict()
        assert torch.equal(after["matrix"], before["matrix"]) == fixed
        assert not torch.equal(after["value.weight"], before["value.weight"])


def test_the_state_dict_brings_a_fixed_matrix_back() -> None:
    first, second = SynthesizerRandom(8, 5, fixed=True), SynthesizerRandom(8, 5, fixed=True)
    x = torch.randn(2, 5, 8)
    assert not torch.equal(first(x)[1], second(x)[1])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x)[0], second(x)[0])


def test_a_fixed_matrix_starts_wide_and_a_trained_one_narrow() -> None:
    torch.manual_seed(0)
    trained = SynthesizerRandom(2, 256).matrix, MixtureSynthesizers(2, 256).matrix
    assert SynthesizerRandom(2, 256, fixed=True).matrix.std().item() == pytest.approx(1, rel=0.02)
    for matrix in trained:
        assert matrix.std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ANY_LENGTH])
@pytest.mark.parametrize("tokens", [1, 6, 17])
def test_a_wrong_length_is_refused_with_both_numbers(name: str, tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"\b13\b.*\b{tokens}\b"):
        LAYERS[name](8, 13)(torch.randn(2, tokens, 8))


@pytest.mark.parametrize("name", ANY_LENGTH)
def test_a_layer_without_a_length_takes_any(name: str) -> None:
    layer = LAYERS[name](8, 13)
    for tokens in (1, 6, 17):
        assert layer(torch.randn(2, tokens, 8))[1].shape == (2, tokens, tokens)


def test_flops_are_weights_of_linear_layers_and_one_for_every_other_leaf() -> None:
    nested = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Sequential(nn.Linear(5, 7), nn.ReLU()))
    leaves = [nn.Softmax(dim=-1), nn.LayerNorm(7), nn.Conv2d(3, 4, 3)]
    assert calculate_flops([nested, *leaves]) == 3 * 5 + 5 * 7 + 1 + 3
    assert calculate_flops(nn.Linear(3, 5).children()) == 0


def test_the_table_shows_printed_and_true_counts() -> None:
    rows = runpy.run_path(str(SCRIPT))["layer_rows"](1024, 32)
    expected = []
    for name, (parameters, flops, _, multiply_adds) in PRINTED.items():
        frozen = 32 * 32 if name == "random, fixed" else 0
        expected.append((name, parameters, flops, parameters - frozen, frozen, multiply_adds))
    assert rows == expected


@pytest.mark.parametrize("arguments", [["--dim", "0"], ["--length", "x"], ["--model", "vgg"]])
def test_the_table_refuses_a_wrong_argument_in_one_line(arguments: list[str], capsys) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert arguments[0] in message
    assert arguments[1] in message
