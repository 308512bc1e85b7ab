"""Images of a person's own, in folders."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cct.data import Data, Split
from cct.limits import Count, Pixels
from cct.schema import one_line
from cct.sources import cache as pixel_cache
from cct.sources.common import balanced, height_and_width, self_measured

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
DECODER = 1  # to be raised by whoever changes what ``_decoded_image`` makes of a file


class Folder:
    """Images in ``root/{train,test}/<class>/``, one size or all brought to ``image_size``.

    ValueError if there is nothing to learn or to test, or the two halves do not fit together.
    """

    def __init__(
        self,
        *,
        root: str,
        image_size: Pixels | list[Pixels] | None,
        train_size: Count | None,
        test_size: Count | None,
        cache: str | None = None,  # the configurations of earlier checkpoints do not have it
    ) -> None:
        self.root = Path(root).expanduser()
        size = height_and_width(image_size)
        self.resize = size is not None
        train, test = _listings(self.root)
        self.classes = list(train)
        self._refuse_misfit(train, test)
        self.train_files, self.train_labels = self._chosen("train", train, train_size)
        self.test_files, self.test_labels = self._chosen("test", test, test_size)
        self.train_size, self.test_size = len(self.train_files), len(self.test_files)
        self.image_size = size or _header_size(self.train_files[0])
        self.cache = None
        if cache is not None:
            settings = [os.path.realpath(self.root), size, train_size, test_size]
            name = f"{pixel_cache.digest(settings)[:16]}.pt"
            self.cache = Path(cache).expanduser() / name

    def load(self) -> Data:
        """Take the pixels of the chosen images from the cache, or decode them and keep them there.

        Decoding uses all processors this process may use.
        """
        train, test = self._cached() if self.cache else self._decoded_halves()
        name = f"the images in {self.root} (not the official CIFAR-10, whatever its classes are)"
        return self_measured(
            name, self.classes, Split(train, self.train_labels), Split(test, self.test_labels)
        )

    def _refuse_misfit(self, train: dict[str, list[str]], test: dict[str, list[str]]) -> None:
        if len(self.classes) < 2:
            raise ValueError(
                f"data.root={self.root}: train/ has only the class {self.classes[0]}, "
                "there is nothing to learn"
            )
        for name, files in train.items():
            if not files:
                suffixes = ", ".join(IMAGE_SUFFIXES)
                raise ValueError(f"data.root={self.root}: no image in train/{name} ({suffixes})")
        unknown = [name for name, files in test.items() if files and name not in train]
        if unknown:
            raise ValueError(
                f"data.root={self.root}: train/ has no class {unknown[0]}, test/{unknown[0]} has"
            )
        if not any(test.values()):
            raise ValueError(f"data.root={self.root}: there is no image in test/<class>/")

    def _chosen(
        self, half: str, listing: dict[str, list[str]], size: int | None
    ) -> tuple[list[str], Tensor]:
        files = [path for name in self.classes for path in listing.get(name, [])]
        counts = torch.tensor([len(listing.get(name, [])) for name in self.classes])
        labels = torch.arange(len(self.classes)).repeat_interleave(counts)
        chosen = balanced(half, size, labels, self.classes)
        return [files[index] for index in chosen.tolist()], labels[chosen]

    def _cached(self) -> list[Tensor]:
        assert self.cache
        images = self._digest()  # first, so that a file changed while decoding has another one
        shapes = [(size, 3, *self.image_size) for size in (self.train_size, self.test_size)]
        pixels = pixel_cache.read(self.cache, images, shapes)
        if pixels is None:
            pixels = self._decoded_halves()
            pixel_cache.write(self.cache, images, pixels)
        return pixels

    def _digest(self) -> str:
        """The digest of all that the pixels depend on, as far as it is seen without reading them.

        The time of change tells of files replaced by others of the same size and modification time.
        """
        import PIL

        above = str(self.root / "train").removesuffix("train")
        files = []
        for path in self.train_files + self.test_files:
            stat = os.stat(path)
            files.append(
                (path.removeprefix(above), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            )
        settings = [self.image_size, self.resize, self.train_size, self.test_size]
        return pixel_cache.digest([DECODER, PIL.__version__, settings, files])

    def _decoded_halves(self) -> list[Tensor]:
        return [self._decoded("train", self.train_files), self._decoded("test", self.test_files)]

    def _decoded(self, half: str, files: list[str]) -> Tensor:
        from PIL import Image
        from tqdm import tqdm

        Image.init()  # threads that open their first images at once could miss some formats
        images = torch.empty(len(files), 3, *self.image_size, dtype=torch.uint8)  # N 3 H W
        pixels = images.numpy()  # the same memory; assigning to it is the faster of the two
        blocks = range(0, len(files), 64)  # a task of one small image costs more than its decoding

        def decode_block(start: int) -> int:
            block = files[start : start + 64]
            for index, path in enumerate(block, start):
                image = _decoded_image(path, self.image_size, resize=self.resize)
                pixels[index] = image.transpose(2, 0, 1)  # H W 3 -> 3 H W
            return len(block)

        with (
            ThreadPoolExecutor(torch.get_num_threads()) as pool,
            tqdm(total=len(files), desc=f"decoding {half}", disable=None, leave=False) as progress,
        ):
            for count in pool.map(decode_block, blocks):
                progress.update(count)
        return images


def _listings(root: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    wanted = f"expected {root}/{{train,test}}/<class>/<image>"
    if not root.exists():
        raise ValueError(f"data.root={root}: no such directory; {wanted}")
    if not root.is_dir():
        raise ValueError(f"data.root={root}: this is a file; {wanted}")
    for half in ("train", "test"):
        if not (root / half).is_dir():
            raise ValueError(f"data.root={root}: there is no {half}/ in it; {wanted}")
    train = _listing(root / "train")
    if not train:
        raise ValueError(f"data.root={root}: train/ has no class folder; {wanted}")
    return train, _listing(root / "test")


def _listing(half: Path) -> dict[str, list[str]]:
    """The images of each class folder, sorted; hidden files and folders are none of them."""
    listing = {}
    for folder in sorted(path for path in half.iterdir() if path.is_dir()):
        if not folder.name.startswith("."):
            with os.scandir(folder) as entries:  # and not a pipe, which would never end
                listing[folder.name] = sorted(
                    entry.path  # text, as 60,000 paths take half a second to make
                    for entry in entries
                    if entry.name.lower().endswith(IMAGE_SUFFIXES)
                    and not entry.name.startswith(".")
                    and entry.is_file()
                )
    return listing


def _header_size(path: str) -> tuple[int, int]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.height, image.width
    except Exception as error:  # a broken file raises whatever its format's decoder trips over
        raise ValueError(f"{path} is not a readable image: {one_line(error)}") from error


def _decoded_image(path: str, size: tuple[int, int], *, resize: bool) -> np.ndarray:
    """One image as uint8 (H, W, 3); ValueError naming the file if it cannot be used."""
    from PIL import Image

    height, width = size
    try:
        with Image.open(path) as file:
            deep = file.mode.startswith(("I", "F"))
            image = file.convert("RGB")
    except Exception as error:  # as in _header_size
        raise ValueError(f"{path} cannot be decoded: {one_line(error)}") from error
    if deep:  # converting would cut all values at 255
        raise ValueError(f"{path} has more than 8 bits per channel, 8 are needed")
    if resize:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    elif (image.height, image.width) != size:
        raise ValueError(
            f"{path} is {image.height}x{image.width}, the first image is {height}x{width}: "
            f"resize all with data.image_size=, e.g. data.image_size=[{height},{width}]"
        )
    return np.asarray(image)
