"""Decoded pixels kept on disk, so that the next run on the same images need not decode them.

Nothing here stops a run: what cannot be read is decoded again, what cannot be written is not kept,
and either is told in one line on stderr.
"""

import hashlib
import json
import os
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cct import checkpoint
from cct.schema import one_line

Shape = tuple[int, ...]


def digest(facts: Any) -> str:
    """The sha256 of plain values, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read(path: Path, images: str, shapes: list[Shape]) -> list[Tensor] | None:
    """The pixels of these images, uint8 of these shapes; None if they are not in the file.

    ``images`` is the digest of what the pixels were decoded from.
    """
    if not os.path.isfile(path):  # also where the folder may not be read
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # of what damaged bytes may mean
            state = checkpoint.load(path, torch.device("cpu"))
        return _pixels(state, images, shapes)
    except ValueError as damage:
        _say(f"{path} is not used, the images are decoded again: {one_line(damage)[:200]}")
        return None


def write(path: Path, images: str, pixels: list[Tensor]) -> None:
    """Put the pixels in place of those that the file holds, whole or not at all."""
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")).acquire(blocking=False):
            checkpoint.save(path, images=images, pixels=pixels, checksum=_checksum(pixels))
    except Timeout:
        pass  # another run that decoded the same folder is writing its pixels
    except (OSError, RuntimeError) as error:  # torch raises the latter on a full disk
        _say(f"{path} cannot be written, so the pixels are not kept: {one_line(error)[:200]}")


def _pixels(state: Any, images: str, shapes: list[Shape]) -> list[Tensor] | None:
    """None if the file is of other images; ValueError if it is not as it was written."""
    if not isinstance(state, dict) or state.keys() != {"images", "pixels", "checksum"}:
        raise ValueError("this is no file of cached pixels")
    if state["images"] != images:
        return None
    pixels = state["pixels"]
    whole = (
        isinstance(pixels, list)
        and all(isinstance(one, Tensor) and one.dtype == torch.uint8 for one in pixels)
        and [one.shape for one in pixels] == shapes
        and _checksum(pixels) == state["checksum"]
    )
    if not whole:
        raise ValueError("the cached pixels are damaged")
    return pixels


def _checksum(pixels: list[Tensor]) -> int:
    checksum = 0
    for tensor in pixels:
        checksum = zlib.crc32(tensor.flatten().numpy().data, checksum)
    return checksum


def _say(line: str) -> None:
    print(f"data.cache: {line}", file=sys.stderr)
