"""Learning rates, which parameters decay, and one optimiser step by the textbook."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from cct.config import compose
from cct.model import CCT
from cct.optim import adamw, parameter_groups, set_learning_rate

REFERENCE = Path(__file__).parent / "reference" / "lr_example_200.txt"


def schedule(*overrides: str) -> Any:
    cfg = compose(["data=digits", *overrides]).cfg
    return instantiate(cfg.schedule, _convert_="all")(cfg.epochs, cfg.optimizer.lr)


def rates(one: Any, epochs: int) -> list[float]:
    return [one(epoch) for epoch in range(epochs)]


@cache
def model(mixer: str) -> CCT:
    sizes = ["model.dim=16", "model.depth=2", "data.image_size=16"]
    components = ["mixer.components=[random,fixed_random,dense]"] if mixer == "mixture" else []
    cfg = compose([f"mixer={mixer}", "data=digits", *sizes, *components]).cfg
    mixer_factory, pool = (instantiate(node, _convert_="all") for node in (cfg.mixer, cfg.pool))
    return instantiate(cfg.model, _convert_="all")(10, (16, 16), mixer_factory, pool)


# Learning rates


def test_the_default_schedule_is_that_of_the_reference_script():
    cfg = compose([]).cfg
    assert (cfg.epochs, cfg.optimizer.lr) == (200, 5e-4)
    expected = [float(line) for line in REFERENCE.read_text().split()]
    assert rates(schedule("optimizer.lr=5e-4"), 200) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("epochs", "warmup"), [(200, 5), (10, 5), (9, 4), (3, 1), (2, 1), (1, 0)])
def test_the_default_warm_up_depends_on_the_epochs(epochs, warmup):
    one = schedule(f"epochs={epochs}", "optimizer.lr=1")
    assert one.warmup_epochs == warmup
    assert rates(one, warmup) == pytest.approx([1 / (warmup - i) for i in range(warmup)])
    assert one(warmup) == 1  # the cosine starts at its peak


@pytest.mark.parametrize("warmup", [0, 3, 8])
def test_the_cosine_falls_from_the_peak_over_what_is_left(warmup):
    one = schedule("epochs=8", "optimizer.lr=2", f"schedule.warmup_epochs={warmup}")
    left = 8 - warmup
    cosine = [1 + math.cos(math.pi * i / left) for i in range(left)]
    assert rates(one, 8)[warmup:] == pytest.approx(cosine)
    assert rates(one, 8)[:warmup] == pytest.approx([2 / (warmup - i) for i in range(warmup)])


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match=r"schedule\.warmup_epochs=9.*epochs=8"):
        schedule("epochs=8", "schedule.warmup_epochs=9")


def test_a_constant_schedule_stays_at_the_peak():
    assert rates(schedule("schedule=constant", "optimizer.lr=3e-3"), 200) == [3e-3] * 200


# Weight decay

SPARED = {  # of a block's mixer
    "self_attention": [],
    "dense": [],
    "factorized_dense": [],
    "fixed_random": [],
    "random": ["scores.logits"],
    "factorized_random": ["scores.query", "scores.key"],
    "mixture": ["scores.weight", "scores.parts.0.logits"],
}


@pytest.mark.parametrize("mixer", SPARED)
def test_only_the_random_familys_matrices_and_mixture_weights_do_not_decay(mixer):
    named = dict(model(mixer).named_parameters())
    spared = {f"blocks.{i}.mixer.{name}" for i in range(2) for name in SPARED[mixer]}
    names = {id(parameter): name for name, parameter in named.items()}
    decay = {}
    for group in parameter_groups(model(mixer), 0.03):
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert name not in decay, "in two groups"
            decay[name] = group["weight_decay"]
    assert decay == {name: 0.0 if name in spared else 0.03 for name in named}


def test_frozen_parameters_are_not_given_to_the_optimiser():
    module = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)])
    module[0].requires_grad_(False)
    (group,) = parameter_groups(module, 0.1)
    assert [id(p) for p in group["params"]] == [id(p) for p in module[1].parameters()]


def test_a_spared_parameter_that_is_frozen_is_in_no_group():
    class Spared(nn.Linear):
        no_weight_decay = ("weight",)

    module = Spared(2, 3)
    module.weight.requires_grad_(False)
    (group,) = parameter_groups(module, 0.1)
    assert [id(p) for p in group["params"]] == [id(module.bias)]


# The optimiser


def test_two_steps_are_those_of_the_textbook():
    class Spared(nn.Linear):
        no_weight_decay = ("weight",)

    module = nn.ModuleDict({"decayed": nn.Linear(3, 4), "spared": Spared(3, 4)}).double()
    lr, decay, betas, eps = 0.1, 0.2, [0.8, 0.95], 1e-2
    optimizer = adamw(module, lr=lr, weight_decay=decay, betas=betas, eps=eps)
    expected = {key: p.detach().clone() for key, p in module.named_parameters()}
    first = {key: torch.zeros_like(p) for key, p in expected.items()}
    second = {key: torch.zeros_like(p) for key, p in expected.items()}
    for step in (1, 2):
        for key, parameter in module.named_parameters():
            gradient = torch.randn_like(parameter)
            parameter.grad = gradient
            first[key] = betas[0] * first[key] + (1 - betas[0]) * gradient
            second[key] = betas[1] * second[key] + (1 - betas[1]) * gradient**2
            mean = first[key] / (1 - betas[0] ** step)
            size = (second[key] / (1 - betas[1] ** step)).sqrt()
            kept = 1 - lr * (0 if key == "spared.weight" else decay)
            expected[key] = kept * expected[key] - lr * mean / (size + eps)
        optimizer.step()
    for key, parameter in module.named_parameters():
        assert torch.allclose(parameter, expected[key], rtol=0, atol=1e-12), key


def test_the_yaml_values_reach_the_optimiser():
    cfg = compose(["data=digits", "optimizer.lr=0.25", "optimizer.betas=[0.5,0.75]"]).cfg
    optimizer = instantiate(cfg.optimizer, _convert_="all")(nn.Linear(2, 2))
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["eps"]) == (0.25, 0.03, 1e-8)
    assert tuple(group["betas"]) == (0.5, 0.75)


@pytest.mark.parametrize("betas", [[0.9], [0.9, 0.99, 0.5]])
def test_betas_that_are_not_two_are_refused(betas):
    with pytest.raises(ValueError, match=r"optimizer\.betas=\["):
        adamw(nn.Linear(2, 2), lr=1e-3, weight_decay=0, betas=betas, eps=1e-8)


def test_the_learning_rate_is_set_in_place_where_it_is_a_tensor():
    weight = torch.nn.Parameter(torch.zeros(1))
    rate = torch.tensor(1.0)
    held = torch.optim.AdamW([{"params": [weight]}], lr=rate, fused=True)
    plain = torch.optim.AdamW([{"params": [weight]}], lr=1.0, fused=True)
    for optimizer in (held, plain):
        set_learning_rate(optimizer, 0.25)
        assert float(optimizer.param_groups[0]["lr"]) == 0.25
    assert held.param_groups[0]["lr"] is rate
