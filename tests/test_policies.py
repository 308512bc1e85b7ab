"""The policies against torchvision's and timm's definitions, replayed image by image on Pillow."""

from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from scipy.stats import binomtest, chisquare
from timm.data.auto_augment import _RAND_INCREASING_TRANSFORMS, LEVEL_TO_ARG, NAME_TO_OP
from torch import Tensor
from torchvision.transforms import InterpolationMode, autoaugment

from cct.augment.operations import NAMES
from cct.augment.policies import SUB_POLICIES
from cct.config import options
from tests.test_augment import build, seeded
from tests.test_operations import flat, from_pillow, smooth, to_pillow

FILL = [128.0, 128.0, 128.0]
NEAREST = InterpolationMode.NEAREST
LEARNED = ["autoaugment", "randaugment", "trivialaugment"]
ERASING = [name for name in options("augment") if name != "none"]
ROUNDED = 0.005  # share of images with a pixel that a geometric operation rounds otherwise
UNLIKELY = 1e-4  # seeds are fixed, so a test that passes once always does


def finished(image: Image.Image, draws: list[float]) -> Tensor:
    """Crop and mirror as the last columns of the draws say."""
    down, right, mirrored = (int(value) for value in draws[-8:-5])
    left, top = right, down
    padded = ImageOps.expand(image, 4)
    cropped = padded.crop((left, top, left + image.width, top + image.height))
    return from_pillow(ImageOps.mirror(cropped) if mirrored else cropped)


def differing(name: str, replay: Any, size: tuple[int, int], *overrides: str) -> float:
    """Return the share of images that a policy changes otherwise than a replay of its draws."""
    batch, policy = smooth(1500, *size), build(name, *overrides)
    draws = policy.draw(len(batch), seeded(11))
    expected = [
        finished(replay(to_pillow(image), row), row)
        for image, row in zip(batch, draws.tolist(), strict=True)
    ]
    differ = (policy(batch, draws) != torch.stack(expected)).flatten(1).any(1)
    return differ.double().mean().item()


@pytest.mark.parametrize("size", [(32, 32), (20, 28)])
def test_autoaugment_is_torchvisions_policy_for_cifar(size):
    def replay(image: Image.Image, row: list[float]) -> Image.Image:
        class Replay(autoaugment.AutoAugment):
            @staticmethod
            def get_params(transform_num: int) -> Any:  # noqa: ARG004
                chances = torch.tensor([-1.0 if applied else 2.0 for applied in row[1:3]])
                return int(row[0]), chances, torch.tensor([sign > 0 for sign in row[3:5]])

        return Replay(autoaugment.AutoAugmentPolicy.CIFAR10, fill=FILL)(image)

    assert differing("autoaugment", replay, size) <= ROUNDED


def test_the_probabilities_are_torchvisions():
    policy: Any = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
    theirs = [[chance for _, chance, _ in pair] for pair in policy.policies]
    assert [[chance for _, chance, _ in pair] for pair in SUB_POLICIES] == theirs


@pytest.mark.parametrize("size", [(32, 32), (20, 28)])
def test_trivialaugment_is_torchvisions_wide_one(size):
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    names = {name.lower(): name for name in space}

    def replay(image: Image.Image, row: list[float]) -> Image.Image:
        name = names[NAMES[int(row[0])].replace("_", "")]
        levels, has_sign = space[name]
        magnitude = levels[int(row[1])].item() if levels.ndim else 0.0
        magnitude *= row[2] if has_sign else 1
        return autoaugment._apply_op(image, name, magnitude, NEAREST, FILL)  # type: ignore

    assert differing("trivialaugment", replay, size) <= ROUNDED


def timm_name(number: int) -> str:
    """Find timm's name of an operation, the increasing or relative form where there is one."""
    ours = NAMES[number].replace("_", "")
    endings = ("", "increasing", "rel")
    return next(n for n in _RAND_INCREASING_TRANSFORMS if n.lower() in [ours + e for e in endings])


def timm_arguments(name: str, level: float, sign: float) -> tuple:
    """Return what timm would pass for a level, in the drawn direction instead of its own draw."""
    level_to_argument = LEVEL_TO_ARG[name]
    if level_to_argument is None:
        return ()
    (value,) = level_to_argument(level, {}) if name != "SolarizeAdd" else (int(level * 11),)
    if name in ("ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing"):
        return (1 + sign * abs(value - 1),)
    if name == "SharpnessIncreasing":
        return (1 + sign * abs(value - 1),)
    if name == "PosterizeIncreasing":
        return (max(value, 1),)
    if name.startswith("Translate"):
        return (-sign * abs(value),)  # timm's moves to the left
    return (sign * abs(value) if name in ("Rotate", "ShearX", "ShearY") else value,)


@pytest.mark.parametrize("size", [(32, 32), (20, 28)])
@pytest.mark.parametrize("magnitude", [9, 3, 10])
def test_randaugment_is_timms_with_increasing_severities(magnitude, size):
    keywords = {"resample": Image.Resampling.NEAREST, "fillcolor": (128, 128, 128)}

    def replay(image: Image.Image, row: list[float]) -> Image.Image:
        for number, level, sign in zip(row[:2], row[2:4], row[4:6], strict=True):
            if number > 0:
                name = timm_name(int(number))
                arguments = timm_arguments(name, level, sign)
                image = NAME_TO_OP[name](image, *arguments, **keywords)
        return image

    assert differing("randaugment", replay, size, f"augment.magnitude={magnitude}") <= ROUNDED


def test_autoaugment_draws_every_pair_every_step_and_every_sign_at_its_probability():
    draws = build("autoaugment").draw(100_000, seeded(20))
    which, steps, signs = draws[:, 0].long(), draws[:, 1:3], draws[:, 3:5].long()
    assert chisquare(which.bincount(minlength=25)).pvalue > UNLIKELY
    for number, pair in enumerate(SUB_POLICIES):
        mine = steps[which == number]
        both = mine.prod(1).sum().int().item()
        assert binomtest(both, len(mine), pair[0][1] * pair[1][1]).pvalue > UNLIKELY  # independent
        for column, (_, chance, _) in enumerate(pair):
            applied = int(mine[:, column].sum())
            assert binomtest(applied, len(mine), chance).pvalue > UNLIKELY
    assert signs.unique().tolist() == [-1, 1]
    pairs = (signs[:, 0] + 1) + (signs[:, 1] + 1) // 2
    assert chisquare(pairs.bincount(minlength=4)).pvalue > UNLIKELY
    together = which * 4 + pairs
    assert chisquare(together.bincount(minlength=100)).pvalue > UNLIKELY


def test_trivialaugment_draws_every_operation_level_and_sign_alike():
    draws = build("trivialaugment").draw(100_000, seeded(21)).long()
    operations = draws[:, 0].bincount(minlength=len(NAMES))
    absent = {name for name, count in zip(NAMES, operations, strict=True) if count == 0}
    assert absent == {"invert", "solarize_add"}
    assert chisquare(operations[operations > 0]).pvalue > UNLIKELY
    together = draws[:, 1] * 2 + (draws[:, 2] + 1) // 2
    assert chisquare(together.bincount(minlength=62)).pvalue > UNLIKELY


def test_randaugment_draws_operations_around_its_magnitude():
    draws = build("randaugment").draw(100_000, seeded(22))
    operations, levels, signs = draws[:, :6].chunk(3, 1)
    for column in range(2):
        counts = operations[:, column].long().bincount(minlength=len(NAMES))
        assert binomtest(int(counts[0]), 100_000, 0.5).pvalue > UNLIKELY
        assert chisquare(counts[1:]).pvalue > UNLIKELY
        assert binomtest(int((signs[:, column] > 0).sum()), 100_000, 0.5).pvalue > UNLIKELY
        below = int((levels[:, column] < 9.5).sum())  # one deviation above the mean
        assert binomtest(below, 100_000, 0.8413447).pvalue > UNLIKELY
        assert binomtest(int((levels[:, column] < 8).sum()), 100_000, 0.0227501).pvalue > UNLIKELY
        assert levels[:, column].max() == 10
    correlation = torch.corrcoef(draws[:, :6].T) - torch.eye(6)
    assert correlation.abs().max() < 0.015


@pytest.mark.parametrize("name", LEARNED)
def test_crop_and_mirror_are_drawn_as_crop_flip_draws_them(name):
    draws = build(name).draw(100_000, seeded(23))[:, -8:]
    for shifts in draws[:, :2].long().T:
        assert chisquare(shifts.bincount(minlength=9)).pvalue > UNLIKELY
    assert binomtest(int(draws[:, 2].sum()), 100_000, 0.5).pvalue > UNLIKELY


@pytest.mark.parametrize("name", LEARNED)
def test_digits_are_never_mirrored_when_flip_is_off(name):
    policy = build(name, "augment.flip=false", "augment.padding=0")
    batch, draws = smooth(500, 8, 8), policy.draw(500, seeded(24))
    mirrored = draws.clone()
    mirrored[:, -6] = 1 - mirrored[:, -6]
    assert torch.equal(policy(batch, draws), policy(batch, mirrored))


def rectangles(*overrides: str, size: tuple[int, int], count: int) -> Tensor:
    """Return which pixels of white images were erased, (count, h, w), and check their colour."""
    policy = build("crop", "augment.padding=0", *overrides)
    white = torch.full((count, 3, *size), 255, dtype=torch.uint8)
    found = policy(white, policy.draw(count, seeded(25)))
    erased = (found != 255).all(1)
    assert torch.equal(found, torch.where(erased[:, None], 128, white))
    return erased


def test_random_erasing_fills_one_rectangle_with_its_probability():
    erased = rectangles("augment.random_erasing=0.25", size=(40, 30), count=20_000)
    hit = erased.flatten(1).any(1)
    assert binomtest(int(hit.sum()), len(hit), 0.25).pvalue > UNLIKELY
    erased = erased[hit]
    rows, columns = erased.any(2), erased.any(1)
    assert torch.equal(erased, rows[:, :, None] & columns[:, None])
    high, wide = rows.sum(1), columns.sum(1)
    corners = torch.stack([lines.double().argmax(1).double() for lines in (rows, columns)])
    assert torch.corrcoef(corners)[0, 1].abs() < 0.2  # a large one is near the corner in both
    for lines, length in ((rows, high), (columns, wide)):  # without a gap
        places = torch.arange(lines.shape[1]).expand_as(lines)
        first = places.masked_fill(~lines, 99).amin(1)
        last = places.masked_fill(~lines, -1).amax(1)
        assert torch.equal(last - first + 1, length)
        assert first.min() == 0
        assert last.max() == lines.shape[1] - 1
        room = lines.shape[1] - length
        middle = (first.double() / room)[room > 9].mean()
        assert abs(middle - 0.5) < 0.02  # anywhere it fits
    area, ratio = (high * wide).double() / 1200, high.double() / wide
    assert 0.015 < area.min() < 0.03
    assert 0.3 < area.max() < 0.35
    assert abs(area.mean() - 0.175) < 0.005
    assert 0.2 < ratio.min() < 0.35
    assert 2.8 < ratio.max() < 4.2
    assert abs(ratio.log().mean()) < 0.05


def test_without_random_erasing_nothing_is_erased_and_with_certainty_everything_is():
    assert not rectangles(size=(8, 8), count=1000).any()
    always = rectangles("augment.random_erasing=1", size=(16, 16), count=1000)
    assert bool(always.flatten(1).any(1).all())


def test_a_side_longer_than_the_image_is_cut_to_it():
    erased = rectangles("augment.random_erasing=1", size=(4, 100), count=2000)
    whole = erased.all(1).any(1)  # from top to bottom
    assert whole.double().mean() > 0.9
    assert bool(erased.flatten(1).any(1).all())


@pytest.mark.parametrize("name", options("augment"))
def test_an_image_does_not_depend_on_those_beside_it(name):
    policy = build(name, *["augment.random_erasing=0.5"] * (name in ERASING))
    batch, draws = smooth(300, 16, 20), policy.draw(300, seeded(26))
    whole = policy(batch, draws)
    for size in (1, 7, 128):
        parts = zip(batch.split(size), draws.split(size), strict=True)
        assert torch.equal(torch.cat([policy(*part) for part in parts]), whole)
    back = torch.arange(299, -1, -1)
    assert torch.equal(policy(batch[back], draws[back]), whole[back])


@pytest.mark.parametrize("name", LEARNED)
def test_the_images_of_a_batch_differ(name):
    policy = build(name)
    one = smooth(1, 16, 16).expand(200, -1, -1, -1)
    results = policy(one, policy.draw(200, seeded(27)))
    assert len(results.flatten(1).unique(dim=0)) > 180


@pytest.mark.parametrize(
    ("name", "overrides"),
    [(name, "") for name in options("augment")]
    + [(name, "augment.random_erasing=1") for name in ERASING]
    + [("randaugment", "augment.magnitude_std=5 augment.operations=3 augment.probability=1")],
)
def test_no_draw_fails_whatever_the_image(name, overrides):
    policy = build(name, *overrides.split())
    batch = torch.cat([flat(14, 9), smooth(5, 14, 9)])[torch.arange(2000) % 10]
    draws = policy.draw(50_000, seeded(28))
    for drawn in draws.split(2000):
        result = policy(batch, drawn)
        assert result.dtype == torch.uint8
        assert result.shape == batch.shape
    assert policy(batch[:0], draws[:0]).shape == batch[:0].shape
