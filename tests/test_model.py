"""The model against the reference numbers, and its parts against definitions.

``tests/reference`` holds what the authors' code computes (SHI-Labs Compact-Transformers, commit
cd11f09, float32 on a CPU): weights, outputs, gradients, three steps of training, sizes.
"""

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from cct.config import compose, options
from cct.dropout import Dropout
from cct.model import CCT, Block, Cost, Tokenizer, cost, sine_table
from cct.optim import adamw

REFERENCE = Path(__file__).parent / "reference"
MIXERS, POOLS = options("mixer"), options("pool")
TINY = ("model.dim=16",)
RATES = ("dropout", "attention_dropout", "stochastic_depth")
RATE_KEYS = tuple(f"model.{rate}=" for rate in RATES)


@cache
def factories(*overrides: str) -> tuple[Callable[..., CCT], Any, Any]:
    # Rates are set past the check, which refuses those that a mixer has no use for.
    rates = [override for override in overrides if override.startswith(RATE_KEYS)]
    cfg = compose(["data=digits", *(one for one in overrides if one not in rates)]).cfg
    for key, _, rate in (override.partition("=") for override in rates):
        OmegaConf.update(cfg, key, float(rate))
    model, mixer, pool = (
        instantiate(node, _convert_="all") for node in (cfg.model, cfg.mixer, cfg.pool)
    )
    return model, mixer, pool


def build(*overrides: str, classes: int = 10, image_size: tuple[int, int] = (32, 32)) -> CCT:
    model, mixer, pool = factories(*overrides)
    return model(classes, image_size, mixer, pool)


def tiny(*overrides: str) -> CCT:
    """Two blocks over 4x4 tokens of 16 numbers."""
    return build(*TINY, *overrides, image_size=(16, 16))


def redraw(module: nn.Module, std: float = 0.5) -> None:
    """Make every weight large, so that nothing is hidden by being near zero, one or uniform."""
    for tensor in module.state_dict().values():
        tensor.normal_(std=std)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    assert actual.shape == expected.shape
    return bool((actual - expected).abs().max() <= tolerance)


# The reference's numbers


RENAMED = [  # replaced one after the other
    ("tokenizer.conv_layers.0.0.", "tokenizer.convolutions.0."),
    ("tokenizer.conv_layers.1.0.", "tokenizer.convolutions.1."),
    ("classifier.positional_emb", "position"),
    ("classifier.attention_pool.", "pool.score."),
    ("classifier.fc.", "head."),
    ("classifier.", ""),
    (".norm1.", ".norm2."),
    (".pre_norm.", ".norm1."),
    (".self_attn.proj.", ".mixer.project."),
    (".linear1.", ".mlp.0."),
    (".linear2.", ".mlp.3."),
]


def our_name(name: str) -> str:
    for public, ours in RENAMED:
        name = name.replace(public, ours)
    return name


def our_tensors(public: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under their public names, as ours: ``qkv`` is split into scores and values."""
    ours = {}
    for name, tensor in public.items():
        if name.endswith("self_attn.qkv.weight"):
            mixer = our_name(name).removesuffix("self_attn.qkv.weight") + "mixer"
            query, key, value = tensor.chunk(3)
            ours[f"{mixer}.scores.query_key.weight"] = torch.cat([query, key])
            ours[f"{mixer}.value.weight"] = value
        else:
            ours[our_name(name)] = tensor
    return ours


class Reference:
    """The numbers of one file and our model with the file's weights, in evaluation."""

    def __init__(self, positional_embedding: str) -> None:
        with np.load(REFERENCE / f"cct_2_3x2_32_{positional_embedding}.npz") as file:
            self.numbers = {key: torch.from_numpy(file[key]) for key in file.files}
        self.model = build(f"model.positional_embedding={positional_embedding}").eval()
        self.model.load_state_dict(our_tensors(self.group("state.")))

    def group(self, prefix: str) -> dict[str, Tensor]:
        keys = [key for key in self.numbers if key.startswith(prefix)]
        return {key.removeprefix(prefix): self.numbers[key] for key in keys}

    def loss(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        return F.cross_entropy(logits, self.numbers["target"], label_smoothing=0.1)


@pytest.fixture(params=["learnable", "sine", "none"])
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


def equal_to_rounding(actual: Tensor, expected: Tensor, roundings: float = 20) -> bool:
    """Equal up to so many float32 roundings of the largest number."""
    unit = torch.finfo(torch.float32).eps * expected.abs().max().item()
    return close(actual, expected, roundings * unit)


def test_outputs_and_gradients_are_the_references(reference):
    numbers = reference.numbers
    images = numbers["input"].requires_grad_()
    loss = reference.loss(images)
    assert equal_to_rounding(reference.model(images), numbers["logits"])
    assert equal_to_rounding(loss, numbers["loss_smoothing_0.1"])
    loss.backward()
    assert images.grad is not None
    assert equal_to_rounding(images.grad, numbers["input_grad"], 50)


def test_the_gradient_norm_of_every_parameter_is_the_references(reference):
    reference.loss(reference.numbers["input"]).backward()
    ours = {key: parameter.grad for key, parameter in reference.model.named_parameters()}
    seen = set()
    for public, norm in reference.group("gradnorm.").items():
        names = our_tensors({public: torch.zeros(3, 1)})
        seen |= set(names)
        if public.endswith("attention_pool.bias"):  # zero but for rounding
            assert ours["pool.score.bias"].norm() < 1e-6
            continue
        squares = [ours[name].double().square().sum() for name in names]
        assert torch.stack(squares).sum().sqrt().item() == pytest.approx(norm.item(), rel=1e-5), (
            public
        )
    assert seen == set(ours)


def test_three_steps_of_training_are_the_references(reference):
    numbers = reference.numbers
    optimizer = adamw(reference.model, lr=5e-4, weight_decay=3e-2, betas=[0.9, 0.999], eps=1e-8)
    losses = []
    for _ in range(3):
        loss = reference.loss(numbers["input"])
        losses.append(loss.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert equal_to_rounding(torch.stack(losses), numbers["loss_adamw_steps"], 50)
    # Adam divides by the gradient's own size, which magnifies the rounding of small gradients.
    assert equal_to_rounding(
        reference.model(numbers["input"]), numbers["logits_after_3_steps"], 1e3
    )


def test_the_sine_table_is_the_references_and_is_used():
    reference = Reference("sine")
    table = reference.group("state.")["classifier.positional_emb"]
    assert close(sine_table(64, 128), table, 4e-6)  # the reference's angles are in float32
    fresh = build("model.positional_embedding=sine").eval()
    state = our_tensors(reference.group("state."))
    state["position"] = fresh.state_dict()["position"]
    fresh.load_state_dict(state)
    logits = reference.numbers["logits"]
    assert close(fresh(reference.numbers["input"]), logits, 1e-5)
    assert isinstance(fresh.position, Tensor)
    fresh.position.zero_()
    assert not close(fresh(reference.numbers["input"]), logits, 1e-2)
    assert "position" not in dict(fresh.named_parameters())


def test_without_positional_embedding_there_is_no_table():
    model = build("model.positional_embedding=none")
    assert "position" not in model.state_dict()


def test_the_sine_table_is_that_of_the_paper():
    table = sine_table(5, 6)
    for token in range(5):
        for pair in range(3):
            angle = token / 10000 ** (2 * pair / 6)
            assert table[0, token, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[0, token, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)


# Sizes

DEPTHS = {  # name: blocks, heads, MLP ratio, dim
    2: (2, 2, 1, 128),
    4: (4, 2, 1, 128),
    6: (6, 4, 2, 256),
    7: (7, 4, 2, 256),
    14: (14, 6, 3, 384),
}
ZOO = {
    name: facts
    for name, facts in json.loads((REFERENCE / "zoo.json").read_text()).items()
    if name.startswith("cct_")
}


@pytest.mark.parametrize("name", ZOO)
def test_a_published_size_has_its_parameters_and_tokens(name):
    found = re.match(r"cct_(\d+)_(\d)x(\d)_(\d+)", name)
    assert found is not None
    size, kernel, layers, side = map(int, found.groups())
    preset = f"cct_{size}_{kernel}x{layers}"
    if preset in options("model"):
        overrides = [f"model={preset}"]
    else:
        keys = ("depth", "heads", "mlp_ratio", "dim", "kernel_size", "conv_layers")
        values = (*DEPTHS[size], kernel, layers)
        overrides = [f"model.{key}={value}" for key, value in zip(keys, values, strict=True)]
    if "_sine" in name:
        overrides.append("model.positional_embedding=sine")
    facts = ZOO[name]
    model = build(*overrides, classes=facts["classes"], image_size=(side, side))
    assert sum(tensor.numel() for tensor in model.state_dict().values()) == facts["params"]
    assert model.tokens == facts["tokens"]


@pytest.mark.parametrize("name", options("model"))
def test_a_preset_has_the_sizes_in_its_name(name):
    found = re.fullmatch(r"cct_(\d+)_(\d)x(\d)", name)
    assert found is not None
    size, kernel, layers = map(int, found.groups())
    cfg = compose([f"model={name}", "data=digits"]).cfg
    keys = ("depth", "heads", "mlp_ratio", "dim", "kernel_size", "conv_layers")
    assert tuple(cfg.model[key] for key in keys) == (*DEPTHS[size], kernel, layers)
    rates = ("dropout", "attention_dropout", "stochastic_depth")
    assert tuple(cfg.model[key] for key in rates) == (0, 0.1, 0.1)
    assert cfg.model.positional_embedding == "learnable"


SIZES = ["cct_2_3x2", "cct_4_3x2", "cct_6_3x1", "cct_7_3x2", "cct_7_3x1"]
COMPONENTS = "mixer.components=[{}]".format
TABLE = {  # parameters and millions of multiply-adds of the sizes above, without scores' biases
    (
        "self_attention",
    ): "283,723/35.3 482,123/50.0 3,233,803/1013.8 3,853,259/289.1 3,760,139/1181.6",
    ("dense",): "267,339/33.2 449,355/45.8 3,233,803/913.2 3,509,195/259.8 3,760,139/1064.2",
    ("random",): "234,571/30.1 383,819/39.5 4,020,235/711.9 3,050,443/223.1 4,677,643/829.3",
    ("fixed_random",): "218,187/30.1 351,051/39.5 2,447,371/711.9 2,935,755/223.1 2,842,635/829.3",
    (
        "factorized_random",
    ): "222,283/30.2 359,243/39.8 2,545,675/724.4 2,964,427/224.0 2,957,323/844.0",
    (
        "factorized_dense",
    ): "255,051/32.5 424,779/44.3 2,889,739/825.1 3,423,179/254.2 3,358,731/961.4",
    ("mixture", COMPONENTS("random,self_attention")): (
        "300,111/35.3 514,899/50.0 4,806,679/1013.8 3,967,961/289.1 5,595,161/1181.6"
    ),
    ("mixture", COMPONENTS("dense,self_attention")): (
        "332,879/38.5 580,435/56.3 4,020,247/1215.2 4,426,713/325.8 4,677,657/1416.5"
    ),
    ("mixture", COMPONENTS("random,dense")): (
        "283,727/33.2 482,131/45.8 4,806,679/913.2 3,623,897/259.8 5,595,161/1064.2"
    ),
}


def biases_per_block(mixer: tuple[str, ...], model: CCT, dim: int, heads: int) -> int:
    """d + h l of a dense part, d + h (a + b) of a factorized dense one."""
    if mixer == ("factorized_dense",):
        return dim + heads * 2 * math.isqrt(model.tokens)
    return dim + heads * model.tokens if "dense" in "".join(mixer) else 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mixer", TABLE, ids="-".join)
def test_costs_are_those_of_the_specification(mixer, size):
    cfg = compose(["data=digits", f"model={size}"]).cfg
    model = build(f"mixer={mixer[0]}", *mixer[1:], f"model={size}")
    parameters, millions = TABLE[mixer].split()[SIZES.index(size)].split("/")
    biases = cfg.model.depth * biases_per_block(mixer, model, cfg.model.dim, cfg.model.heads)
    counted = cost(model, torch.randn(1, 3, 32, 32))
    assert counted.trainable == int(parameters.replace(",", "")) + biases
    assert f"{counted.multiply_adds / 1e6:.1f}" == millions
    maps = cfg.model.depth * cfg.model.heads * model.tokens**2
    assert counted.frozen == (maps if mixer[0] == "fixed_random" else 0)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("size", [(16, 32), (28, 28), (33, 17)])
def test_the_token_grid_follows_from_the_image(size, mixer):
    model = build(*TINY, f"mixer={mixer}", image_size=size)
    height, width = model.grid
    assert (height, width) == (math.ceil(size[0] / 4), math.ceil(size[1] / 4))
    assert model.tokens == height * width
    assert model(torch.randn(2, 3, *size)).shape == (2, 10)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 7])
def test_the_predicted_grid_is_the_one_the_convolutions_make(kernel, layers):
    tokenizer = Tokenizer(8, kernel, layers)
    for size in [(32, 32), (17, 50), (1, 5)]:
        height, width = tokenizer.grid(size)
        assert tokenizer(torch.randn(1, 3, *size)).shape == (1, height * width, 8)


def test_sizes_that_do_not_fit_together_are_refused_by_name():
    with pytest.raises(ValueError, match=r"model\.heads=3.*model\.dim=16"):
        tiny("model.heads=3")
    with pytest.raises(ValueError, match=r"model\.mlp_ratio=0\.01.*dim=16"):
        tiny("model.mlp_ratio=0.01")


def test_the_mlp_ratio_gives_the_hidden_width():
    mlp = tiny("model.mlp_ratio=1.5").blocks[0].get_submodule("mlp")
    assert [tuple(weight.shape) for weight in mlp.parameters() if weight.ndim == 2] == [
        (24, 16),
        (16, 24),
    ]


# Initialisation


def expected_spread(name: str, tensor: Tensor) -> tuple[float, float]:
    """The mean and standard deviation that a tensor is to start with."""
    kinds = {
        r"tokenizer\.convolutions\.\d\.weight": (0, (2 / tensor[0].numel()) ** 0.5),
        r"position": (0, 0.2),
        r"(blocks\.\d\.)?norm\d?\.weight": (1, 0),
        r"(blocks\.\d\.)?norm\d?\.bias": (0, 0),
        r"pool\.token": (0, 0),
        r"(pool\.score|head|blocks\.\d\.mlp\.\d)\.weight": (0, 0.02),
        r"(pool\.score|head|blocks\.\d\.mlp\.\d)\.bias": (0, 0),
        r"mixer\.(value|project)\.weight": (0, 0.02),
        r"mixer\.project\.bias": (0, 0),
        r"mixer\.scores\.(parts\.\d\.)?query_key\.weight": (0, 0.02),
        r"mixer\.scores\.(hidden|output|rows|columns)\.weight": (0, 0.02),
        r"mixer\.scores\.(hidden|output|rows|columns)\.bias": (0, 0),
        r"mixer\.scores\.(parts\.\d\.)?(logits|query|key)": (0, 0.02),
        r"mixer\.scores\.weight": (0, 0),
    }
    found = [kind for kind in kinds if re.fullmatch(rf"(blocks\.\d\.)?{kind}", name)]
    assert len(found) == 1, f"{name}: {found}"
    return kinds[found[0]]


PAPER = ["dense", "factorized_dense", "factorized_random", "fixed_random"]
PAPER += ["mixture", "random", "self_attention"]


@pytest.mark.parametrize("pool", ["baseline", "class_token"])
@pytest.mark.parametrize("mixer", PAPER)
def test_every_tensor_starts_as_in_the_reference(mixer, pool):
    states = [build(f"mixer={mixer}", f"pool={pool}").state_dict() for _ in range(4)]
    for name, tensor in states[0].items():
        values = torch.stack([state[name] for state in states]).double()
        mean, std = expected_spread(name, tensor)
        if mixer == "fixed_random" and name.endswith("logits"):
            std = 1.0
        if std == 0:
            assert bool((values == mean).all()), name
            continue
        count = values.numel()
        assert abs(values.mean() - mean) < 5 * std / count**0.5, name
        assert abs(values.std() / std - 1) < 5 / (2 * count) ** 0.5, name
        assert count < 1000 or values.abs().max() > 2.5 * std, f"{name}: not normal"
        assert not torch.equal(values[0], values[1]), name


@pytest.mark.parametrize("mixer", PAPER)
def test_no_two_blocks_or_heads_start_with_the_same_scores(mixer):
    first, second = (block.get_submodule("mixer") for block in tiny(f"mixer={mixer}").blocks)
    for name, tensor in first.state_dict().items():
        if tensor.unique().numel() > 1:
            assert not torch.equal(tensor, second.state_dict()[name]), name
    x = torch.randn(1, 16, 16)
    one, other = first.get_submodule("scores")(x)[0]
    assert not torch.equal(one, other)


def test_the_model_builds_without_memory():
    with torch.device("meta"):
        model = tiny()
    assert all(tensor.is_meta for tensor in model.state_dict().values())


# Tokenizer and block against their definitions


def test_relu_after_the_maximum_is_the_maximum_after_relu():
    tokenizer = Tokenizer(6, 3, 2).double()
    images = torch.randn(2, 3, 9, 14, dtype=torch.float64, requires_grad=True)
    x = images
    for convolution in tokenizer.convolutions:
        weight = convolution.get_parameter("weight")
        x = F.max_pool2d(F.conv2d(x, weight, None, 1, 1).relu(), 3, 2, 1)
    expected = torch.stack([x[:, :, i, j] for i in range(x.shape[2]) for j in range(x.shape[3])], 1)
    actual = tokenizer(images)
    assert torch.equal(actual, expected)
    assert bool((actual == 0).any())  # where ReLU decides
    direction = torch.randn_like(actual)
    inputs = [images, *tokenizer.parameters()]
    ours = torch.autograd.grad((actual * direction).sum(), inputs)
    theirs = torch.autograd.grad((expected * direction).sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        assert close(one, other, 1e-12)


def test_kernel_seven_strides_by_two():
    tokenizer = Tokenizer(6, 7, 1)
    weight = tokenizer.convolutions[0].get_parameter("weight")
    images = torch.randn(2, 3, 20, 20)
    expected = F.max_pool2d(F.conv2d(images, weight, None, 2, 3).relu(), 3, 2, 1)
    assert close(tokenizer(images), expected.flatten(2).transpose(1, 2), 1e-6)


def affine(linear: nn.Module, x: Tensor) -> Tensor:
    return x @ linear.get_parameter("weight").T + linear.get_parameter("bias")


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * norm.weight + norm.bias


def block_by_definition(block: Block, x: Tensor, dropout: float = 0.0) -> Tensor:
    """Dropout in the order in which the block draws: mixer, GELU, second linear layer."""
    first, second = (block.mlp.get_submodule(key) for key in ("0", "3"))
    mixed = Dropout(dropout)(block.mixer(layer_norm(block.norm1, x)))
    normed = layer_norm(block.norm2, x + mixed)
    inner = affine(first, normed)
    inner = Dropout(dropout)(inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2))))
    return normed + Dropout(dropout)(affine(second, inner))


def block_of_linear(dropout: float = 0.0, stochastic_depth: float = 0.0) -> Block:
    """A block with large weights that mixes by a linear layer."""
    rates = {"dropout": dropout, "stochastic_depth": stochastic_depth}
    block = Block(8, nn.Linear(8, 8), hidden=12, **rates).double()
    redraw(block)
    return block


def test_the_block_is_its_definition():
    block = block_of_linear().eval()
    x = 2 + 3 * torch.randn(4, 5, 8, dtype=torch.float64)
    assert close(block(x), block_by_definition(block, x), 1e-12)


def test_dropout_acts_after_mixing_after_gelu_and_after_the_second_layer():
    block = block_of_linear(dropout=0.4)
    x = torch.randn(4, 5, 8, dtype=torch.float64)
    torch.manual_seed(1)
    actual = block(x)
    torch.manual_seed(1)
    assert close(actual, block_by_definition(block, x, 0.4), 1e-12)


def test_dropout_acts_on_the_embedded_tokens():
    model = tiny("model.dropout=0.5")
    images = torch.randn(64, 3, 16, 16)
    plain = model.eval().embed(images)
    dropped = model.train().embed(images)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert close(dropped[kept], plain[kept] / 0.5, 1e-5)


def test_the_model_is_its_parts_in_order():
    model = tiny("model.depth=3", "pool=softmax_plus_x").double().eval()
    redraw(model)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = model.tokenizer(images) + model.position
    for block in model.blocks:
        assert isinstance(block, Block)
        x = block_by_definition(block, x)
    pooled = model.pool(layer_norm(model.norm, x))
    assert close(model(images), affine(model.head, pooled), 1e-10)


def test_the_class_token_comes_first_and_has_a_position():
    model = tiny("pool=class_token").eval()
    redraw(model)
    images = torch.randn(2, 3, 16, 16)
    embedded = model.embed(images)
    assert isinstance(model.position, Tensor)
    assert embedded.shape == (2, 17, 16)
    token = model.pool.get_parameter("token")
    assert torch.equal(embedded[:, 0], (token + model.position)[0, :1].expand(2, -1))
    assert torch.equal(embedded[:, 1:], model.tokenizer(images) + model.position[:, 1:])


# Randomness in training and none in evaluation


def test_stochastic_depth_drops_a_branch_for_whole_images():
    block = block_of_linear(stochastic_depth=0.5)
    x = torch.randn(1, 5, 8, dtype=torch.float64).expand(64, -1, -1)
    mixed = block.mixer(block.norm1(x[:1]))
    possible = []
    for first in (0, 2):  # dropped, or kept and scaled
        for second in (0, 2):
            normed = block.norm2(x[:1] + first * mixed)
            possible.append(normed + second * block.mlp(normed))
    outputs = block(x)
    which = [[close(one[None], other, 1e-12) for other in possible] for one in outputs]
    assert all(sum(row) == 1 for row in which)
    assert all(4 <= sum(column) <= 32 for column in zip(*which, strict=True))


@pytest.mark.parametrize(
    ("depth", "rates"), [(1, [0]), (2, [0, 0.1]), (5, [0, 0.025, 0.05, 0.075, 0.1])]
)
def test_stochastic_depth_rises_linearly_from_zero(depth, rates):
    model = tiny(f"model.depth={depth}")
    got = [block.get_submodule("drop_path").drop_prob for block in model.blocks]
    assert got == pytest.approx(rates)
    model(torch.randn(2, 3, 16, 16)).sum().backward()


def with_rates(**rates: float) -> list[str]:
    return [f"model.{key}={rates.get(key, 0)}" for key in RATES]


@pytest.mark.parametrize("pool", ["baseline", "class_token"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_nothing_is_dropped_in_evaluation_and_it_repeats_bit_for_bit(mixer, pool):
    choices = (f"mixer={mixer}", f"pool={pool}")
    dropping = tiny(*choices, *with_rates(**dict.fromkeys(RATES, 0.9))).eval()
    plain = tiny(*choices, *with_rates())
    plain.load_state_dict(dropping.state_dict())
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(dropping(images), dropping(images))
    assert torch.equal(dropping(images), plain.eval()(images))
    assert torch.equal(dropping(images), plain.train()(images))


@pytest.mark.parametrize("rate", RATES)
def test_each_rate_acts_in_training(rate):
    model = tiny(*with_rates(**{rate: 0.5}))
    redraw(model)
    images = torch.randn(8, 3, 16, 16)
    assert not close(model(images), model(images), 1e-2)


@pytest.mark.parametrize("mixer", PAPER)
def test_attention_dropout_reaches_every_mixer(mixer):
    model = tiny(f"mixer={mixer}", *with_rates(attention_dropout=0.5))
    redraw(model)
    images = torch.randn(4, 3, 16, 16)
    assert not close(model(images), model(images), 1e-2)


# Looking inside


@pytest.mark.parametrize("pool", ["softmax_plus_x", "class_token"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_mixing_maps_are_those_that_evaluation_uses(mixer, pool):
    model = tiny(f"mixer={mixer}", f"pool={pool}", *with_rates(**dict.fromkeys(RATES, 0.5)))
    redraw(model)
    images = torch.randn(3, 3, 16, 16)
    mixers: list[Any] = [block.get_submodule("mixer") for block in model.blocks]
    maps = model.mixing_maps(images)
    inputs: list[Tensor] = []
    for one in mixers:
        one.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    model.eval()(images)
    assert len(maps) == len(mixers) == len(inputs) == 2
    for weights, one, x in zip(maps, mixers, inputs, strict=True):
        if not hasattr(one, "map"):
            assert weights is None
            continue
        assert weights is not None
        assert weights.shape[0] in (1, 3)
        assert weights.shape[1:] == (2, model.tokens, model.tokens)
        assert torch.equal(weights, one.map(x))
        assert not weights.requires_grad


def test_a_block_whose_mixer_has_no_map_has_none():
    factory, _, pool = factories(*TINY)
    model = factory(10, (16, 16), lambda *_: nn.Identity(), pool)
    assert model.mixing_maps(torch.randn(2, 3, 16, 16)) == [None, None]


@pytest.mark.parametrize("pool", POOLS)
def test_pooling_weights_are_distributions_over_the_tokens(pool):
    model = tiny(f"pool={pool}", *with_rates(**dict.fromkeys(RATES, 0.5)))
    redraw(model, 2.0)
    images = torch.randn(3, 3, 16, 16)
    weights = model.pooling_weights(images)
    assert weights.shape == (3, model.tokens)
    assert close(weights.sum(1), torch.ones(3), 1e-6)
    if pool == "class_token":
        assert weights[:, 0].tolist() == [1, 1, 1]
        return
    model.eval()
    tokens = model.norm(model.blocks(model.embed(images)))
    expected = model.pool.get_submodule("score")(tokens)[..., 0].softmax(1)
    assert close(weights, expected, 1e-6)
    assert weights.max() > 2 / model.tokens


@pytest.mark.parametrize("pool", ["baseline", "class_token"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_looking_changes_no_output_no_random_state_and_no_mode(mixer, pool):
    model = tiny(f"mixer={mixer}", f"pool={pool}", *with_rates(**dict.fromkeys(RATES, 0.3)))
    model.blocks[0].eval()  # a mode that is neither all training nor all evaluation
    images = torch.randn(3, 3, 16, 16)

    def seen() -> tuple[Tensor, Tensor, dict[str, bool]]:
        torch.manual_seed(3)
        return model(images), torch.get_rng_state(), {k: m.training for k, m in modules()}

    def modules() -> list[tuple[str, nn.Module]]:
        return list(model.named_modules())

    before = seen()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for look in (
        lambda: model.mixing_maps(images),
        lambda: model.pooling_weights(images),
        lambda: cost(model, images),
    ):
        torch.manual_seed(5)
        random_state = torch.get_rng_state()
        look()
        assert torch.equal(torch.get_rng_state(), random_state)
        after = seen()
        assert torch.equal(after[0], before[0])
        assert after[2] == before[2]
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_mode_is_restored_when_looking_fails():
    model = tiny("model.positional_embedding=none")
    with pytest.raises(ValueError, match=r"\(16, 16\) pixels, not \(32, 32\)"):
        model.mixing_maps(torch.randn(1, 3, 32, 32))
    assert all(module.training for module in model.modules())


# Cost


def test_cost_counts_parameters_tables_and_multiply_adds():
    layer = nn.Linear(3, 4)
    assert cost(layer, torch.randn(2, 5, 3)) == Cost(16, 0, 2 * 5 * 3 * 4)
    layer.bias.requires_grad_(False)
    layer.register_buffer("table", torch.zeros(7))
    assert cost(layer, torch.randn(1, 3)) == Cost(12, 4 + 7, 3 * 4)


def test_the_cost_of_a_convolution_counts_each_output():
    layer = nn.Conv2d(3, 6, 3, padding=1, bias=False)
    assert cost(layer, torch.randn(2, 3, 8, 9)) == Cost(162, 0, 2 * 8 * 9 * 162)


def test_the_sine_table_is_counted_as_frozen():
    images = torch.randn(1, 3, 32, 32)
    learned, sine, none = (
        cost(build(f"model.positional_embedding={one}"), images)
        for one in ("learnable", "sine", "none")
    )
    assert learned.trainable - none.trainable == sine.frozen == 64 * 128
    assert sine.trainable == none.trainable
    assert learned.frozen == none.frozen == 0


@pytest.mark.parametrize("embedding", ["learnable", "sine", "none"])
@pytest.mark.parametrize("size", [(16, 16), (4, 4), (16, 64)])
def test_images_of_another_size_are_refused_even_where_they_would_broadcast(embedding, size):
    model = build(f"model.positional_embedding={embedding}")
    with pytest.raises(ValueError, match=rf"built for \(32, 32\) pixels, not \({size[0]}, "):
        model(torch.zeros(2, 3, *size))
