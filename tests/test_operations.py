"""Each operation on batches against Pillow's on one image."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from cct.augment.geometry import FILL, affine, erase
from cct.augment.operations import NAMES, OPERATIONS, SIGNED, apply, numbers, signed
from cct.sources import Digits

PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, _: image,
    "shear_x": lambda image, slope: mapped(image, 1, slope, 0, 0, 1, 0),
    "shear_y": lambda image, slope: mapped(image, 1, 0, 0, slope, 1, 0),
    "translate_x": lambda image, pixels: mapped(image, 1, 0, -pixels, 0, 1, 0),
    "translate_y": lambda image, pixels: mapped(image, 1, 0, 0, 0, 1, -pixels),
    "rotate": lambda image, degrees: image.rotate(degrees, fillcolor=(128, 128, 128)),
    "brightness": lambda image, change: ImageEnhance.Brightness(image).enhance(1 + change),
    "color": lambda image, change: ImageEnhance.Color(image).enhance(1 + change),
    "contrast": lambda image, change: ImageEnhance.Contrast(image).enhance(1 + change),
    "sharpness": lambda image, change: ImageEnhance.Sharpness(image).enhance(1 + change),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, threshold: ImageOps.solarize(image, threshold),  # type: ignore
    "solarize_add": lambda image, added: image.point(
        [min(255, value + int(added)) if value < 128 else value for value in range(256)] * 3
    ),
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "invert": lambda image, _: ImageOps.invert(image),
}
GEOMETRIC = {"shear_x", "shear_y", "translate_x", "translate_y", "rotate"}
RANGES = {  # wider than any policy draws from
    **dict.fromkeys(["shear_x", "shear_y"], (-1.5, 1.5)),
    **dict.fromkeys(["translate_x", "translate_y"], (-40.0, 40.0)),
    "rotate": (-360.0, 360.0),
    **dict.fromkeys(["brightness", "color", "contrast", "sharpness"], (-1.0, 1.5)),
    "posterize": (1.0, 8.99),
    "solarize": (0.0, 256.99),
    "solarize_add": (0.0, 128.99),
}
WHOLE = {"posterize", "solarize_add"}


def mapped(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128))


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def from_pillow(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def smooth(count: int, height: int, width: int) -> Tensor:
    """Like photographs: soft shapes, each channel in a range of its own."""
    coarse = F.interpolate(torch.rand(count, 3, 4, 4), (height, width), mode="bicubic")
    low, span = 200 * torch.rand(count, 3, 1, 1), 256 * torch.rand(count, 3, 1, 1)
    return (low + span * coarse).clamp(0, 255).byte()


def flat(height: int, width: int) -> Tensor:
    """Black, white, grey, the fill and one colour."""
    colors = torch.tensor([[0] * 3, [255] * 3, [77] * 3, [128] * 3, [255, 0, 9]])
    return colors.byte()[:, :, None, None].expand(-1, -1, height, width)


def subjects(height: int, width: int) -> Tensor:
    noise = torch.randint(0, 256, (500, 3, height, width), dtype=torch.uint8)
    sparse = torch.where(torch.rand(50, 1, height, width) < 0.02, noise[:50], 20)
    return torch.cat([flat(height, width), noise, smooth(450, height, width), sparse])


def magnitudes(name: str, count: int) -> Tensor:
    low, high = RANGES.get(name, (0.0, 0.0))
    values = low + (high - low) * torch.rand(count, dtype=torch.float64)
    values[::3] = values[::3].round() if name not in WHOLE else values[::3]  # 0, 1, 90 degrees
    return values.floor() if name in WHOLE else values


def differing(name: str, batch: Tensor, values: Tensor) -> float:
    found = OPERATIONS[name](batch, values)
    assert found.dtype == torch.uint8
    expected = [
        from_pillow(PILLOW[name](to_pillow(image), value))
        for image, value in zip(batch, values.tolist(), strict=True)
    ]
    return (found != torch.stack(expected)).double().mean().item()


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_pillows(name):
    batch = subjects(32, 32)
    assert differing(name, batch, magnitudes(name, len(batch))) <= 0.001 * (name in GEOMETRIC)


@pytest.mark.parametrize("size", [(17, 23), (3, 1), (1, 5), (2, 2), (64, 48)])
@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_pillows_on_other_sizes(name, size):
    batch = subjects(*size)[::10]
    assert differing(name, batch, magnitudes(name, len(batch))) <= 0.001 * (name in GEOMETRIC)


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_pillows_on_digits(name):
    digits = Digits(image_size=None, train_size=100, test_size=10).load().train.images
    values = magnitudes(name, len(digits))
    assert differing(name, digits, values) <= 0.001 * (name in GEOMETRIC)


@pytest.mark.parametrize("name", sorted(RANGES))
def test_both_ends_of_every_range(name):
    batch = smooth(40, 32, 32)
    ends = torch.tensor(RANGES[name], dtype=torch.float64)
    ends = ends.floor() if name in WHOLE else ends
    assert differing(name, batch, ends.repeat(20)) <= 0.001 * (name in GEOMETRIC)


def test_autocontrast_is_pillows_for_every_darkest_and_brightest():
    """Pillow's float64 truncates some whole numbers to one less; those count too."""
    for low in range(0, 256, 5):
        values = torch.arange(256).clamp(min=low).repeat(256, 1).minimum(torch.arange(256)[:, None])
        batch = values.byte().view(256, 1, 16, 16).expand(-1, 3, -1, -1)
        assert differing("autocontrast", batch, torch.zeros(256)) == 0


def test_an_affine_map_shows_what_its_matrix_says():
    batch = smooth(100, 20, 30)
    matrices = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64) + torch.rand(100, 6)
    found = affine(batch, matrices)
    expected = [
        from_pillow(mapped(to_pillow(image), *matrix))
        for image, matrix in zip(batch, matrices.tolist(), strict=True)
    ]
    assert (found != torch.stack(expected)).double().mean() <= 0.001


def test_a_rectangle_is_erased_and_the_rest_is_kept():
    batch = torch.full((3, 3, 6, 8), 9, dtype=torch.uint8)
    places = torch.tensor([[1, 2, 3, 4], [0, 0, 6, 8], [2, 2, 0, 3]])
    found = erase(batch, *places.T)
    for image, (top, left, height, width) in zip(found, places.tolist(), strict=True):
        expected = torch.full((3, 6, 8), 9, dtype=torch.uint8)
        expected[:, top : top + height, left : left + width] = FILL
        assert torch.equal(image, expected)


def test_apply_gives_each_image_its_own_operation_and_magnitude():
    batch = smooth(len(NAMES) * 6, 12, 9)
    before = batch.clone()
    operations = numbers(NAMES * 6)[torch.randperm(len(batch))]
    values = torch.stack([magnitudes(NAMES[number], 1) for number in operations]).flatten()
    found = apply(batch, operations, values)
    for i, number in enumerate(operations.tolist()):
        alone = OPERATIONS[NAMES[number]](batch[i : i + 1], values[i : i + 1])
        assert torch.equal(found[i : i + 1], alone)
    assert torch.equal(batch, before)


def test_a_sign_turns_what_has_a_direction_and_nothing_else():
    ones = torch.ones(len(NAMES))
    turned = signed(torch.arange(len(NAMES)), ones, -ones)
    assert {name for name, value in zip(NAMES, turned, strict=True) if value < 0} == set(SIGNED)
    assert set(SIGNED) == GEOMETRIC | {"brightness", "color", "contrast", "sharpness"}
