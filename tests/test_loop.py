"""The loop against descent written by hand, and its evaluation against one image at a time."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import nn
from tqdm import tqdm

from cct import config
from cct.augment.mix import NoMix
from cct.augment.policies import NoAugmentation, TrivialAugment
from cct.config import options
from cct.data import Data
from cct.loop import Plan, augmented_batches, evaluate, require_finite, train_epoch
from cct.randomness import Seeds, generator
from cct.sources import Synthetic


def plan(**changes) -> Plan:
    settings = {
        "epochs": 3,
        "batch_size": 4,
        "eval_batch_size": 7,
        "label_smoothing": 0.1,
        "seeds": Seeds(0, 0, 0, 0),
        "precision": "fp32",
    }
    return Plan(**{**settings, **changes})


@pytest.fixture
def data() -> Data:
    return Synthetic(classes=3, image_size=8, train_size=10, test_size=15).load()


def test_training_is_gradient_descent_in_the_order_of_seed_and_epoch(data):
    linear = nn.Linear(3 * 8 * 8, 3, bias=False)
    weight = linear.weight.detach().clone().requires_grad_()
    losses, hits = [], 0
    for epoch in range(3):
        order = torch.randperm(10, generator=generator(0, "order", epoch))
        for index in order.split(4):  # 4, 4 and the smaller last batch of 2
            images = (data.train.images[index] / 255 - data.mean.view(3, 1, 1)) / data.std.view(
                3, 1, 1
            )
            logits = images.flatten(1) @ weight.T
            labels = F.one_hot(data.train.labels[index], 3) * 0.9 + 0.1 / 3
            loss = -(labels * logits.log_softmax(1)).sum(1).mean()
            (slope,) = torch.autograd.grad(loss, weight)
            if epoch == 2:
                losses += [loss.item()] * len(index)
                hits += int((logits.argmax(1) == data.train.labels[index]).sum())
            weight = (weight - 0.1 * slope).detach().requires_grad_()
    model = nn.Sequential(nn.Flatten(), linear)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    result = {}
    for epoch in range(3):
        result = train_epoch(
            model, data, NoAugmentation(), NoMix(), sgd, plan(), epoch, tqdm(disable=True)
        )
    torch.testing.assert_close(linear.weight, weight)
    assert result["loss"] == pytest.approx(sum(losses) / 10, rel=1e-5)
    assert result["top1"] == 100 * hits / 10


@torch.no_grad()
def test_evaluation_is_over_all_images_without_dropout_or_smoothing(data):
    linear = nn.Linear(3 * 8 * 8, 3)
    correct, loss = 0, 0.0
    for image, label in zip(data.test.images, data.test.labels, strict=True):
        logits = linear(data.normalize(image[None]).flatten(1))[0]
        correct += int(logits.argmax() == label)
        loss -= float(logits.log_softmax(0)[label])
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), linear)
    for size in (1, 7, 15, 100):
        found = evaluate(model, data, data.test, plan(eval_batch_size=size))
        assert found == (pytest.approx(loss / 15, rel=1e-5), correct)


def test_the_gradient_norm_is_that_of_all_parameters_together(data):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    found = train_epoch(
        model, data, NoAugmentation(), NoMix(), still, plan(batch_size=10), 0, tqdm(disable=True)
    )
    model.zero_grad()
    logits = model(data.normalize(data.train.images))
    F.cross_entropy(logits, data.train.labels, label_smoothing=0.1).backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    norm = (gradients**2).sum().sqrt().item()
    assert found["gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_augmentation_reaches_the_model_one_draw_an_image(data):
    seen = []

    class Spy(NoAugmentation):
        def draw(self, count, generator):  # noqa: ARG002
            return torch.arange(count)

        def __call__(self, images, draws):
            seen.append(draws)
            return images

    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    train_epoch(model, data, Spy(), NoMix(), sgd, plan(), 0, tqdm(disable=True))
    assert torch.cat(seen).tolist() == list(range(10))


@pytest.mark.parametrize("size", [3, 4, 10, 99])
def test_the_chunk_of_augmentation_does_not_change_the_numbers(data, size):
    found = []
    for chunk in (1, 4, 9, 1000):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        augment = TrivialAugment(padding=2, flip=True, random_erasing=0.5)
        augment.chunk = chunk
        result = train_epoch(
            model, data, augment, NoMix(), sgd, plan(batch_size=size), 1, tqdm(disable=True)
        )
        found.append((result, nn.utils.parameters_to_vector(model.parameters()).tolist()))
    assert all(one == found[0] for one in found)


def test_no_more_than_a_chunk_is_augmented_at_a_time(data):
    calls = []

    class Spy(NoAugmentation):
        chunk = 7

        def __call__(self, images, draws):
            calls.append((len(images), len(draws)))
            return images

    order, draws = torch.arange(10), torch.zeros(10, 1)
    for size, expected in ((3, [6, 4]), (7, [7, 3]), (8, [8, 2]), (20, [10])):
        calls.clear()
        batches = list(augmented_batches(data.train, Spy(), order, draws, size))
        assert [len(labels) for _, labels in batches] == [len(part) for part in order.split(size)]
        assert calls == [(count, count) for count in expected]


def test_the_first_step_that_is_not_finite_is_named():
    require_finite(torch.tensor([1.0, 2.0]), 5)
    with pytest.raises(FloatingPointError, match="the loss is inf at step 7"):
        require_finite(torch.tensor([1.0, float("inf"), float("nan")]), 5)


def test_bf16_is_used_where_it_is_asked_for(data):
    seen = []

    class Spy(nn.Linear):
        def forward(self, input):
            output = super().forward(input)
            seen.append(output.dtype)
            return output

    model = nn.Sequential(nn.Flatten(), Spy(3 * 8 * 8, 3))
    for precision in ("fp32", "bf16"):
        evaluate(model, data, data.test, plan(eval_batch_size=100, precision=precision))
    assert seen == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("augment", options("augment"))
def test_nothing_waits_for_the_device_before_all_steps_are_given_to_it(data, augment, monkeypatch):
    """On the meta device, where a tensor has no values that could be waited for."""
    cfg = config.compose(["mix=mixup_cutmix", f"augment={augment}"]).cfg
    policy, mix = (instantiate(node, _convert_="all") for node in (cfg.augment, cfg.mix))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3)).to("meta")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    class Bar(tqdm):
        def update(self, n=1):
            seen.append(n)

    monkeypatch.setattr(Plan, "autocast", lambda *_: nullcontext())  # there is none on meta
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        train_epoch(model, data.to("meta"), policy, mix, sgd, plan(), 0, Bar(disable=True))
    assert seen == [4, 4, 2]
