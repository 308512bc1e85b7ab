"""Augmentation against loops over images and pixels."""

from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from cct.augment.geometry import flip, shift_crop
from cct.config import compose, options

POLICIES = options("augment")


def build(name: str, *overrides: str) -> Any:
    cfg = compose(["data=digits", f"augment={name}", *overrides]).cfg
    return instantiate(cfg.augment, _convert_="all")


def images(count: int, height: int = 5, width: int = 7) -> Tensor:
    """Without a black pixel, so that padding can be told from content."""
    return torch.randint(1, 256, (count, 3, height, width), dtype=torch.uint8)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shifted(image: Tensor, down: int, right: int, padding: int) -> Tensor:
    result = torch.zeros_like(image)
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            from_row, from_column = row + down - padding, column + right - padding
            if 0 <= from_row < height and 0 <= from_column < width:
                result[:, row, column] = image[:, from_row, from_column]
    return result


def mirrored(image: Tensor) -> Tensor:
    width = image.shape[-1]
    return torch.stack([image[..., width - 1 - column] for column in range(width)], -1)


@pytest.mark.parametrize("padding", [0, 2, 4])
def test_each_image_is_cut_out_at_its_own_place_in_black_padding(padding):
    places = [(d, r) for d in range(2 * padding + 1) for r in range(2 * padding + 1)]
    batch = images(len(places))
    down, right = torch.tensor(places).unbind(1)
    cropped = shift_crop(batch, down, right, padding)
    assert cropped.dtype == torch.uint8
    for image, result, place in zip(batch, cropped, places, strict=True):
        assert torch.equal(result, shifted(image, *place, padding))


def test_only_the_named_images_are_mirrored_left_to_right():
    batch, which = images(4), torch.tensor([True, False, False, True])
    flipped = flip(batch, which)
    for image, result, turn in zip(batch, flipped, which, strict=True):
        assert torch.equal(result, mirrored(image) if turn else image)


@pytest.mark.parametrize("mirror", [True, False])
def test_crop_flip_applies_each_row_of_draws_to_its_image(mirror):
    policy = build("crop_flip", "augment.padding=2", f"augment.flip={str(mirror).lower()}")
    batch = images(40)
    draws = policy.draw(40, seeded(0))
    for image, result, row in zip(batch, policy(batch, draws), draws.int().tolist(), strict=True):
        expected = shifted(image, row[0], row[1], 2)
        assert torch.equal(result, mirrored(expected) if mirror and row[2] else expected)


def test_the_usual_augmentation_pads_by_four_and_mirrors_half():
    cfg = compose([]).cfg
    assert (cfg.augment.padding, cfg.augment.flip) == (4, True)
    draws = build("crop_flip").draw(4000, seeded(1))[:, :3]
    for shifts in draws[:, :2].int().T:
        counts = torch.bincount(shifts)
        assert len(counts) == 9
        assert bool((counts > 4000 / 9 * 0.75).all())
        assert bool((counts < 4000 / 9 * 1.25).all())
    assert 0.45 < draws[:, 2].float().mean() < 0.55
    assert abs(torch.corrcoef(draws.T.double()) - torch.eye(3)).max() < 0.06


def test_digits_are_cropped_but_never_mirrored():
    cfg = compose(["data=digits"]).cfg
    assert (cfg.augment.padding, cfg.augment.flip) == (4, False)
    policy = build("crop")
    one = images(1, 9, 9)
    results = policy(one.expand(200, -1, -1, -1), policy.draw(200, seeded(2)))
    possible = [shifted(one[0], d, r, 4) for d in range(9) for r in range(9)]
    assert all(any(torch.equal(result, other) for other in possible) for result in results)


def test_images_of_a_batch_do_not_share_their_draws():
    policy = build("crop_flip")
    one = images(1, 8, 8).expand(100, -1, -1, -1)
    results = policy(one, policy.draw(100, seeded(3)))
    assert len(results.flatten(1).unique(dim=0)) > 60  # of 162 possible


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_draws_the_same_again(name):
    policy = build(name)
    assert torch.equal(policy.draw(50, seeded(4)), policy.draw(50, seeded(4)))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_another_seed_and_the_next_draw_are_different(name):
    policy, generator = build(name), seeded(4)
    first, second = policy.draw(50, generator), policy.draw(50, generator)
    assert not torch.equal(first, second)
    assert not torch.equal(first, policy.draw(50, seeded(5)))


@pytest.mark.parametrize("name", POLICIES)
def test_drawing_and_applying_leave_the_global_random_state_alone(name):
    policy = build(name)
    batch, before = images(6), torch.get_rng_state()
    policy(batch, policy.draw(6, seeded(6)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [(5, 7), (32, 32), (3, 1)])
@pytest.mark.parametrize("name", POLICIES)
def test_bytes_in_bytes_out_and_the_original_is_kept(name, size):
    policy = build(name)
    batch = images(6, *size)
    before = batch.clone()
    draws = policy.draw(6, seeded(7))
    assert len(draws) == 6
    result = policy(batch, draws)
    assert result.dtype == torch.uint8
    assert result.shape == batch.shape
    assert torch.equal(batch, before)


def test_none_leaves_the_images_as_they_are():
    policy = build("none")
    batch = images(5)
    assert torch.equal(policy(batch, policy.draw(5, seeded(8))), batch)
