"""scikit-learn's handwritten digits."""

import torch

from cct.data import Data, Split
from cct.limits import Count, Pixels
from cct.sources.common import balanced, height_and_width, resized, self_measured, subset


class Digits:
    """The 1,797 handwritten digits that come with scikit-learn, split 80/20 by class.

    From 8x8 and 17 grey levels (Alpaydin & Kaynak 1998, UCI "Optical Recognition of Handwritten
    Digits") to three equal channels, 32x32 unless ``image_size`` says otherwise.
    """

    train_counts = (142, 146, 142, 146, 145, 145, 145, 143, 139, 144)
    test_counts = (36, 36, 35, 37, 36, 37, 36, 36, 35, 36)

    def __init__(
        self,
        *,
        image_size: Pixels | list[Pixels] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        self.classes = [str(digit) for digit in range(10)]
        self.image_size = height_and_width(image_size) or (32, 32)
        self.subset = (train_size, test_size)
        digits = torch.arange(10)
        train_labels = digits.repeat_interleave(torch.tensor(self.train_counts))
        test_labels = digits.repeat_interleave(torch.tensor(self.test_counts))
        self.train_size = len(balanced("train", train_size, train_labels, self.classes))
        self.test_size = len(balanced("test", test_size, test_labels, self.classes))

    def load(self) -> Data:
        """Read, split and resize; the split is the same at every call."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        levels, labels = load_digits(return_X_y=True)
        indices = train_test_split(
            range(len(labels)), test_size=360, stratify=labels, random_state=0
        )
        pixels = torch.from_numpy(levels).mul(255 / 16).round().byte().unflatten(1, (1, 8, 8))
        images = pixels.expand(-1, 3, -1, -1).contiguous()  # N 3 8 8
        halves = []
        for chosen, size in zip(indices, self.subset, strict=True):
            half = Split(images[chosen], torch.from_numpy(labels)[chosen])
            halves.append(resized(subset(half, size, len(self.classes)), self.image_size))
        return self_measured("scikit-learn's handwritten digits", self.classes, *halves)
