"""Augmentation: uint8 images (B, 3, h, w) to the same, each image by a draw of its own.

A policy is built as ``Policy(**settings)``. ``policy.draw(count, generator)`` draws for ``count``
images on the CPU; ``policy(images, draws)`` applies row i of the draws to image i, on any device.
"""

from typing import Protocol

from torch import Generator, Tensor


class Policy(Protocol):
    def draw(self, count: int, generator: Generator) -> Tensor: ...

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor: ...
