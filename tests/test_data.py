"""Statistics, fingerprint and subsets against definitions in numpy and in Python."""

import hashlib
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from cct.data import Data, Split, balanced_subset, channel_statistics, fingerprint

torch.set_num_threads(1)


def random_split(size: int, seed: int, height: int = 4, width: int = 5) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (size, 3, height, width), dtype=torch.uint8, generator=generator)
    return Split(images, torch.arange(size) % 3)


def random_data() -> Data:
    train, test = random_split(30, 1), random_split(12, 2)
    mean, std = channel_statistics(train.images)
    return Data(
        name="random",
        classes=["a", "b", "c"],
        train=train,
        test=test,
        mean=mean,
        std=std,
        measured_mean=mean,
        measured_std=std,
        fingerprint=fingerprint(train, test),
    )


def tensors(data: Data) -> list[Tensor]:
    values = [getattr(data, field.name) for field in fields(data)]
    values += [data.train.images, data.train.labels, data.test.images, data.test.labels]
    return [value for value in values if isinstance(value, Tensor)]


def test_statistics_are_those_of_numpy_over_all_pixels():
    images = random_split(2500, 3).images  # more than two chunks
    images[:, 1] //= 3
    pixels = images.numpy().astype(np.float64) / 255
    mean, std = channel_statistics(images)
    assert mean.dtype == std.dtype == torch.float32
    np.testing.assert_allclose(mean.numpy(), pixels.mean(axis=(0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(std.numpy(), pixels.std(axis=(0, 2, 3)), rtol=1e-7)


def test_statistics_of_one_value_have_no_deviation():
    mean, std = channel_statistics(torch.full((7, 3, 2, 2), 51, dtype=torch.uint8))
    assert mean.tolist() == pytest.approx([0.2] * 3)
    assert std.tolist() == [0.0, 0.0, 0.0]


def test_normalised_images_follow_the_formula_per_channel():
    data = random_data()
    pixels = data.test.images.numpy().astype(np.float64) / 255
    mean = data.mean.numpy().astype(np.float64).reshape(3, 1, 1)
    std = data.std.numpy().astype(np.float64).reshape(3, 1, 1)
    images = data.normalize(data.test.images)
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images.numpy(), (pixels - mean) / std, atol=1e-6)


def test_normalising_leaves_the_pixels_alone():
    data = random_data()
    before = data.train.images.clone()
    data.normalize(data.train.images)
    assert torch.equal(data.train.images, before)


def test_everything_moves_to_the_device():
    data = random_data()
    assert {tensor.device.type for tensor in tensors(data)} == {"cpu"}
    moved = data.to("meta")
    assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
    assert (moved.name, moved.classes) == (data.name, data.classes)
    assert moved.fingerprint == data.fingerprint


def test_a_split_is_as_long_as_its_labels():
    assert len(random_split(11, 0)) == 11


@pytest.mark.parametrize("statistic", ["mean", "std"])
@pytest.mark.parametrize("channel", [0, 1, 2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_deviation_above_a_thousandth_is_one_line(statistic: str, channel: int, sign: int):
    data = random_data()
    shift = sign * torch.eye(3)[channel]
    near = replace(data, **{statistic: getattr(data, statistic) + 0.0009 * shift})
    far = replace(data, **{statistic: getattr(data, statistic) + 0.0011 * shift})
    assert near.warnings() == []
    (line,) = far.warnings()
    assert "\n" not in line
    assert "not the official ones" in line
    assert f"{getattr(far, statistic)[channel].item():.4f}" in line
    assert f"{getattr(data, statistic)[channel].item():.4f}" in line


def test_a_fingerprint_is_the_sha256_of_shapes_pixels_and_labels():
    train, test = random_split(5, 1), random_split(4, 2)
    content = b"".join(
        str(array.shape).encode() + array.tobytes()
        for array in map(Tensor.numpy, (train.images, train.labels, test.images, test.labels))
    )
    assert fingerprint(train, test) == hashlib.sha256(content).hexdigest()


def test_a_fingerprint_tells_pixels_labels_shapes_and_splits_apart():
    train, test = random_split(6, 1), random_split(6, 2)
    pixel, label = train.images.clone(), test.labels.clone()
    pixel[5, 2, 3, 4] ^= 1
    label[0] += 1
    prints = {
        fingerprint(train, test),
        fingerprint(test, train),
        fingerprint(Split(pixel, train.labels), test),
        fingerprint(train, Split(test.images, label)),
        fingerprint(Split(train.images.transpose(2, 3).reshape(6, 3, 4, 5), train.labels), test),
        fingerprint(Split(train.images.reshape(6, 3, 5, 4), train.labels), test),
    }
    assert len(prints) == 6


def test_a_fingerprint_does_not_depend_on_the_memory_layout():
    train, test = random_split(6, 1), random_split(6, 2)
    strided = Split(train.images.contiguous(memory_format=torch.channels_last), train.labels)
    assert fingerprint(strided, test) == fingerprint(train, test)


@pytest.mark.parametrize("size", [1, 3, 10, 11, 29, 30])
def test_class_counts_of_a_subset_differ_by_at_most_one(size: int):
    labels = torch.arange(60) % 3
    chosen = balanced_subset(labels, size, 3).tolist()
    assert len(set(chosen)) == size
    assert chosen == sorted(chosen)
    counts = Counter(labels[chosen].tolist())
    assert max(counts.values()) - min(counts[label] for label in range(3)) <= 1


def test_a_subset_is_fixed_whatever_the_seed():
    labels = torch.arange(60) % 3
    torch.manual_seed(1)
    first = balanced_subset(labels, 20, 3)
    torch.manual_seed(2)
    assert torch.equal(balanced_subset(labels, 20, 3), first)


def test_a_subset_is_not_the_first_images():
    labels = torch.arange(600) % 3
    assert balanced_subset(labels, 30, 3).max() > 200


def test_a_larger_subset_contains_the_smaller():
    labels = torch.tensor([0] * 9 + [1] * 4 + [2] * 5)
    subsets = [set(balanced_subset(labels, size, 3).tolist()) for size in range(1, 15)]
    assert all(small < large for small, large in pairwise(subsets))


def test_the_odd_images_come_from_classes_that_have_them():
    labels = torch.tensor([0, 1, 1, 2, 2])  # all five are balanced: 1, 2, 2
    assert balanced_subset(labels, 5, 3).tolist() == [0, 1, 2, 3, 4]


def test_a_class_with_too_few_images_is_named():
    labels = torch.tensor([0] * 9 + [1] * 2 + [2] * 9)
    with pytest.raises(ValueError, match="class 1 has 2 images, equal shares take 4"):
        balanced_subset(labels, 12, 3)
    with pytest.raises(ValueError, match="class 3 has 0 images, equal shares take 1"):
        balanced_subset(labels, 4, 4)
    assert len(balanced_subset(labels, 8, 3)) == 8
    scarce = torch.tensor([0] * 9 + [1] * 2 + [2] * 2)  # 3, 2, 2 can be had, 3, 3, 2 cannot
    assert len(balanced_subset(scarce, 7, 3)) == 7
    with pytest.raises(ValueError, match="class 1 has 2 images, equal shares take 3"):
        balanced_subset(scarce, 8, 3)


def test_a_subset_larger_than_all_is_refused():
    with pytest.raises(ValueError, match="61 images are asked for, there are 60"):
        balanced_subset(torch.arange(60) % 3, 61, 3)
