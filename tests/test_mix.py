"""Mixup and cutmix against one image at a time, and their draws against their distributions."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from tqdm import tqdm

from cct.augment.mix import (
    Cutmix,
    Mix,
    Mixup,
    MixupCutmix,
    NoMix,
    blend,
    cross_entropy,
    paste,
    unmixed,
)
from cct.augment.policies import CropFlip
from cct.data import Data
from cct.loop import train_epoch
from cct.randomness import generator, numpy_generator
from cct.sources import Synthetic
from tests.test_loop import plan

SIZES = [1, 2, 3, 7]
BLEND, PASTE = partial(blend, share=0.3), partial(paste, share=0.3, down=0.5, right=0.5)


def images_of(size: int, height: int = 8, width: int = 12) -> Tensor:
    return torch.randn(size, 3, height, width).contiguous(memory_format=torch.channels_last)


def mixup(**changes) -> Mixup:
    return Mixup(**{"mixup": 0.8, "probability": 1.0, "off_epoch": None, **changes})


def cutmix(**changes) -> Cutmix:
    return Cutmix(**{"cutmix": 1.0, "probability": 1.0, "off_epoch": None, **changes})


def both(**changes) -> MixupCutmix:
    settings = {"mixup": 0.8, "cutmix": 1.0, "probability": 1.0, "switch": 0.5, "off_epoch": None}
    return MixupCutmix(**{**settings, **changes})


def settings_of_draws(mix: Mix, epoch: int = 0, batches: int = 1000, seed: int = 0) -> list:
    """What was drawn for each batch: a name and its numbers."""
    recipes = mix.draw(epoch, batches, numpy_generator(seed, "mix", epoch))
    return [
        (recipe.func.__name__, recipe.keywords) if isinstance(recipe, partial) else "unmixed"
        for recipe in recipes
    ]


def shares(mix: Mix, batches: int = 20000) -> Tensor:
    return torch.tensor([drawn[1]["share"] for drawn in settings_of_draws(mix, batches=batches)])


@pytest.mark.parametrize("size", SIZES)
def test_mixup_adds_the_pixels_of_the_image_before(size):
    images = images_of(size)
    before = images.clone()
    mixed, share = blend(images, 0.7)
    assert share == 0.7
    for i in range(size):
        expected = 0.7 * before[i] + 0.3 * before[i - 1]  # -1 is the last
        torch.testing.assert_close(mixed[i], expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.75, 0.999, 1.0])
@pytest.mark.parametrize("place", [(0.0, 0.0), (0.5, 0.5), (0.99, 0.1), (0.3, 0.999)])
def test_cutmix_pastes_a_box_of_the_image_before_and_counts_its_pixels(size, share, place):
    images = images_of(size)
    before = images.clone()
    mixed, kept = paste(images, share, *place)
    ratio = math.sqrt(1 - share)
    row, column = math.floor(8 * place[0]), math.floor(12 * place[1])
    up, left = math.floor(8 * ratio) // 2, math.floor(12 * ratio) // 2
    pasted = 0
    for i in range(size):
        for y in range(8):
            for x in range(12):
                inside = row - up <= y < row + up and column - left <= x < column + left
                source = before[i - 1] if inside else before[i]
                assert torch.equal(mixed[i, :, y, x], source[:, y, x])
                pasted += inside
    assert kept == pytest.approx(1 - pasted / (size * 8 * 12), abs=1e-12)
    assert torch.equal(images, before)


def test_one_image_mixed_with_itself_is_unchanged():
    images = images_of(1)
    assert torch.equal(blend(images, 0.3)[0], images)
    assert torch.equal(paste(images, 0.3, 0.5, 0.5)[0], images)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recipe", [BLEND, PASTE])
def test_the_order_in_memory_stays_that_of_the_faster_convolutions(size, recipe):
    mixed, _ = recipe(images_of(size))
    assert mixed.stride() == images_of(size).stride()
    assert mixed.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("recipe", [unmixed, BLEND, PASTE])
def test_no_recipe_looks_at_a_value_on_the_device(recipe):
    """On the meta device there is none to look at."""
    images = torch.empty(4, 3, 8, 8, device="meta")
    labels = torch.empty(4, dtype=torch.int64, device="meta")
    mixed, share = recipe(images)
    assert mixed.shape == images.shape
    assert cross_entropy(torch.empty(4, 3, device="meta"), labels, share, 0.1).shape == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_soft_targets(size, share, smoothing):
    logits, labels = torch.randn(size, 5), torch.randint(5, (size,))
    targets = torch.zeros(size, 5)
    for i in range(size):
        targets[i, labels[i]] += share
        targets[i, labels[i - 1]] += 1 - share
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(cross_entropy(logits, labels, share, smoothing), expected)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
@pytest.mark.parametrize(
    "of_alpha",
    [
        lambda alpha: mixup(mixup=alpha),
        lambda alpha: cutmix(cutmix=alpha),
        lambda alpha: both(mixup=alpha, cutmix=9.0, switch=0.0),
        lambda alpha: both(cutmix=alpha, mixup=9.0, switch=1.0),
    ],
)
def test_shares_are_from_a_beta_distribution(alpha, of_alpha):
    drawn = shares(of_alpha(alpha)).double()
    variance = 1 / (4 * (2 * alpha + 1))
    assert drawn.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(variance / 20000))
    assert drawn.var().item() == pytest.approx(variance, rel=0.05)
    assert 0 <= drawn.min() < drawn.max() <= 1


def test_the_centre_of_the_box_is_uniform():
    drawn = [drawn[1] for drawn in settings_of_draws(cutmix(), batches=16000)]
    counts = torch.zeros(8, 8)
    for one in drawn:
        counts[int(8 * one["down"]), int(8 * one["right"])] += 1
    chi_square = ((counts - 250) ** 2 / 250).sum().item()
    assert chi_square < 63 + 4 * math.sqrt(2 * 63)
    places = np.array([[one["share"], one["down"], one["right"]] for one in drawn])
    assert np.abs(np.corrcoef(places.T) - np.eye(3)).max() < 0.04


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_batches_are_mixed_with_their_probability(probability):
    for mix in (mixup(probability=probability), cutmix(probability=probability)):
        drawn = settings_of_draws(mix, batches=10000)
        fraction = 1 - drawn.count("unmixed") / 10000
        assert fraction == pytest.approx(probability, abs=0.02 if 0 < probability < 1 else 0)


@pytest.mark.parametrize("switch", [0.0, 0.2, 1.0])
def test_a_mixed_batch_is_cut_with_the_probability_of_the_switch(switch):
    drawn = settings_of_draws(both(switch=switch, probability=0.5), batches=10000)
    mixed = [one[0] for one in drawn if one != "unmixed"]
    assert len(mixed) == pytest.approx(5000, abs=200)
    fraction = mixed.count("paste") / len(mixed)
    assert fraction == pytest.approx(switch, abs=0.03 if 0 < switch < 1 else 0)


@pytest.mark.parametrize("mix", [mixup(), cutmix(), both()])
def test_draws_are_a_function_of_seed_and_epoch(mix):
    np.random.seed(5)
    following = np.random.random()
    np.random.seed(5)
    torch_state = torch.get_rng_state()
    first = settings_of_draws(mix)
    assert settings_of_draws(mix) == first
    assert settings_of_draws(mix, epoch=1) != first
    assert settings_of_draws(mix, seed=1) != first
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.random() == following


@pytest.mark.parametrize("make", [mixup, cutmix, both])
def test_mixing_ends_before_the_epoch_that_the_console_counts(make):
    mix, always = make(off_epoch=3), make()
    assert settings_of_draws(mix, epoch=1) == settings_of_draws(always, epoch=1)  # its second
    for epoch in (2, 3, 9):
        assert settings_of_draws(mix, epoch=epoch) == ["unmixed"] * 1000


@pytest.fixture
def data() -> Data:
    return Synthetic(classes=3, image_size=8, train_size=10, test_size=15).load()


def epoch_of(data: Data, mix: Mix, chunk: int = 1000, **changes) -> tuple[dict, list, list]:
    """The result of an epoch, the weights after it and the batches that the model saw."""
    torch.manual_seed(0)
    seen = []
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 8 * 8, 3))
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    augment = CropFlip(padding=2, flip=True, random_erasing=0.5)
    augment.chunk = chunk
    result = train_epoch(model, data, augment, mix, sgd, plan(**changes), 0, tqdm(disable=True))
    return result, nn.utils.parameters_to_vector(model.parameters()).tolist(), seen


def test_each_batch_of_the_loop_is_mixed_by_its_own_draw_and_nothing_else_changes(data):
    plain, mixed = epoch_of(data, NoMix())[2], epoch_of(data, both())[2]
    drawn = settings_of_draws(both(), batches=3)
    assert {name for name, _ in drawn} == {"blend", "paste"}  # both occur among the three
    for before, after, (name, numbers) in zip(plain, mixed, drawn, strict=True):
        recipe = {"blend": blend, "paste": paste}[name]
        expected, share = recipe(before, **numbers)
        assert torch.equal(after, expected)
        assert torch.equal(after, before) == (share == 1)


def test_the_loop_descends_the_loss_of_the_soft_targets(data):
    linear = nn.Linear(3 * 8 * 8, 3)
    weight, bias = linear.weight.detach().clone(), linear.bias.detach().clone()
    seen = []
    model = nn.Sequential(nn.Flatten(), linear)
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    augment = CropFlip(padding=0, flip=False, random_erasing=0.0)
    result = train_epoch(model, data, augment, both(), still, plan(), 0, tqdm(disable=True))
    order = torch.randperm(10, generator=generator(0, "order", 0)).split(4)
    total = 0.0
    for images, index, (_, numbers) in zip(
        seen, order, settings_of_draws(both(), batches=3), strict=True
    ):
        plain = data.normalize(data.train.images[index])
        share = numbers["share"]
        if "down" in numbers:
            share = paste(plain, **numbers)[1]
        labels = F.one_hot(data.train.labels[index], 3).double()
        targets = share * labels + (1 - share) * labels.roll(1, 0)
        logits = (images.flatten(1) @ weight.T + bias).double()
        total += len(index) * F.cross_entropy(logits, targets, label_smoothing=0.1).item()
    assert result["loss"] == pytest.approx(total / 10, rel=1e-5)


def test_the_probability_0_is_no_mixing(data):
    assert epoch_of(data, both(probability=0.0))[:2] == epoch_of(data, NoMix())[:2]


def test_top1_of_mixed_images_is_left_out(data):
    for mix in (mixup(), cutmix(), both()):
        assert math.isnan(epoch_of(data, mix)[0]["top1"])
    assert 0 <= epoch_of(data, NoMix())[0]["top1"] <= 100


def test_the_chunk_of_augmentation_does_not_change_how_batches_are_mixed(data):
    found = [epoch_of(data, both(), chunk=chunk)[1] for chunk in (1, 4, 9, 1000)]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mix", [mixup(), cutmix(), both()])
def test_every_batch_size_trains(data, mix, size):
    result, weights, _ = epoch_of(data, mix, batch_size=size)
    assert math.isfinite(result["loss"])
    assert all(math.isfinite(one) for one in weights)


@pytest.mark.parametrize("choice", ["mixup", "cutmix", "mixup_cutmix"])
def test_rows_have_a_train_top1_from_the_epoch_without_mixing_on(trained, choice):
    done = trained(f"mix={choice}", "epochs=3", "mix.off_epoch=3")
    assert [row["train_top1"] is None for row in done.rows] == [True, True, False]
    assert all(math.isfinite(row["train_loss"]) for row in done.rows)


def test_tensorboard_has_no_point_for_a_top1_that_is_left_out(trained):
    done = trained("mix=mixup", "epochs=3", "mix.off_epoch=3")
    events = EventAccumulator(str(done.out))
    events.Reload()
    assert [point.step for point in events.Scalars("top1/train")] == [3]
    assert [point.step for point in events.Scalars("loss/train")] == [1, 2, 3]


def test_the_probability_0_is_the_run_without_mixing(trained):
    assert trained("mix=mixup_cutmix", "mix.probability=0").numbers == trained().numbers
