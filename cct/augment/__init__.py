"""Augmentation: uint8 images (B, 3, h, w) to the same, each image by a draw of its own.

A policy is built as ``Policy(**settings)``. ``policy.draw(count, generator)`` draws for ``count``
images, one row each; ``policy(images, draws)`` applies row i of the draws to image i. Draws stay on
the CPU, images may be on any device. The result does not depend on how many images a call gets, but
``chunk`` of them are fast.
"""

from typing import Protocol

from torch import Generator, Tensor


class Policy(Protocol):
    chunk: int

    def draw(self, count: int, generator: Generator) -> Tensor: ...

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor: ...
