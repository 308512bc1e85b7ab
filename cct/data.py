"""A data set once it is in memory: two uint8 tensors of images with their labels.

N images, H height, W width; three channels. Means and standard deviations are on the scale 0 to 1.
"""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SUBSET_SEED = 0  # not a setting: a subset is to be the same one in every run and study
TOLERANCE = 0.001  # on the scale 0 to 1; the official constants are rounded to 0.0001


@dataclass(frozen=True)
class Split:
    """Images, uint8 (N, 3, H, W), and their labels, int64 (N,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Split":
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Data:
    """What a run trains and tests on, with the statistics that normalise it.

    ``name`` is one line that says what the images are; ``mean`` and ``std`` (3,) are used,
    ``measured_mean`` and ``measured_std`` (3,) are those of the training pixels.
    """

    name: str
    classes: list[str]
    train: Split
    test: Split
    mean: Tensor
    std: Tensor
    measured_mean: Tensor
    measured_std: Tensor
    fingerprint: str

    def check_labels(self) -> None:
        """Raise ValueError for a label that is none of the classes, as a wrong source may give."""
        count = len(self.classes)
        for half, split in (("training", self.train), ("test", self.test)):
            wrong = split.labels[(split.labels < 0) | (split.labels >= count)]
            if len(wrong):
                raise ValueError(
                    f"{self.name}: a {half} image has the label {wrong[0]}, those of {count} "
                    f"classes are 0 to {count - 1}"
                )

    def to(self, device: torch.device | str) -> "Data":
        """The same data on ``device``."""
        return replace(
            self,
            train=self.train.to(device),
            test=self.test.to(device),
            mean=self.mean.to(device),
            std=self.std.to(device),
            measured_mean=self.measured_mean.to(device),
            measured_std=self.measured_std.to(device),
        )

    def normalize(self, images: Tensor) -> Tensor:
        """Images in float32, (pixel / 255 - mean) / std per channel, where ``images`` are.

        Shapes: uint8 (N, 3, H, W) -> float32 (N, 3, H, W).
        """
        mean = self.mean.to(images.device)[:, None, None]
        std = self.std.to(images.device)[:, None, None]
        pixels = images.contiguous(memory_format=torch.channels_last)  # the faster convolutions
        return (pixels * (1 / (255 * std))).sub_(mean / std)  # two passes over them, not four

    def warnings(self) -> list[str]:
        """One line if the statistics used are not those of the pixels, else nothing."""
        pairs = ((self.mean, self.measured_mean), (self.std, self.measured_std))
        if all(bool(((used - measured).abs() <= TOLERANCE).all()) for used, measured in pairs):
            return []
        return [
            f"{self.name}: mean {_listed(self.mean)} and std {_listed(self.std)} are used, but the "
            f"training images have mean {_listed(self.measured_mean)} and std "
            f"{_listed(self.measured_std)}: these pixels are not the official ones "
            "(a re-encoded copy?), or data.mean and data.std are not theirs"
        ]


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of each channel, exact up to the final rounding.

    Shapes: uint8 (N, 3, H, W) -> float32 (3,), float32 (3,).
    """
    histogram = torch.zeros(3, 256, dtype=torch.int64)  # counts of the 256 values need no rounding
    for chunk in images.split(1024):
        for channel, counts in enumerate(histogram):
            counts += torch.bincount(chunk[:, channel].flatten(), minlength=256).cpu()
    values = torch.arange(256)
    total = histogram.sum(dim=1).double()
    mean = (histogram @ values).double() / total
    variance = (histogram @ values**2).double() / total - mean**2
    return (mean / 255).float(), (variance.clamp(min=0).sqrt() / 255).float()


def fingerprint(train: Split, test: Split) -> str:
    """The sha256 of shapes, pixels and labels of both splits, in hexadecimal digits."""
    digest = hashlib.sha256()
    for tensor in (train.images, train.labels, test.images, test.labels):
        digest.update(f"{tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().flatten().numpy().data)
    return digest.hexdigest()


def balanced_subset(labels: Tensor, size: int, classes: int) -> Tensor:
    """Sorted indices of ``size`` images, the same at every call, an equal share of each class.

    Class counts differ by at most one, and a larger subset contains every smaller one.
    Shapes: int64 (N,) -> int64 (size,). ValueError if there are too few images, or too few of a
    class.
    """
    if size > len(labels):
        raise ValueError(f"{size} images are asked for, there are {len(labels)}")
    counts = labels.bincount(minlength=classes)
    share, rest = divmod(size, classes)
    able = counts > share  # can give one image more than the share; the first ``rest`` of them do
    if counts.min() < share or able.sum() < rest:
        poorest = int(counts.argmin())
        needed = share + (rest > 0)
        raise ValueError(
            f"class {poorest} has {counts[poorest]} images, equal shares take {needed}"
        )
    takes = share + (able & (able.cumsum(0) <= rest)).long()
    generator = torch.Generator().manual_seed(SUBSET_SEED)
    chosen = []
    for label, take in enumerate(takes.tolist()):
        members = (labels == label).nonzero().flatten()
        chosen.append(members[torch.randperm(len(members), generator=generator)[:take]])
    return torch.cat(chosen).sort().values


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.4f}" for value in values.tolist())
