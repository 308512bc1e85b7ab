"""Random images."""

import torch

from cct.data import Data, Split
from cct.limits import Count, Pixels
from cct.sources.common import height_and_width, self_measured


class Synthetic:
    """Random pixels with labels that mean nothing, always the same: for tests of speed."""

    def __init__(
        self,
        *,
        classes: Count,
        image_size: Pixels | list[Pixels] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        if classes < 2:
            raise ValueError(f"data.classes={classes}: at least 2 classes are needed")
        self.classes = [str(label) for label in range(classes)]
        self.image_size = height_and_width(image_size) or (32, 32)
        self.train_size = 50_000 if train_size is None else train_size
        self.test_size = 10_000 if test_size is None else test_size

    def load(self) -> Data:
        """Draw all pixels."""
        train = self._drawn(self.train_size, seed=0)
        test = self._drawn(self.test_size, seed=1)
        return self_measured("random pixels", self.classes, train, test)

    def _drawn(self, size: int, *, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        shape = (size, 3, *self.image_size)
        images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        return Split(images, torch.arange(size) % len(self.classes))
