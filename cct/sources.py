"""Where images come from: the official CIFAR sets, a folder, scikit-learn's digits, random ones.

A source is cheap to construct: it refuses what cannot work and knows its classes and sizes.
``load`` decodes. N images, H height, W width.
"""

import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from cct.data import Data, Split, balanced_subset, channel_statistics, fingerprint
from cct.limits import Count, Number, Positive

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
SOCKET_TIMEOUT = 20.0  # seconds without an answer after which a download has failed
VALUES_AT_ONCE = 2**24  # pixel values of a chunk, which bounds the memory of resizing


class CIFAR10:
    """The 60,000 official CIFAR-10 images (Krizhevsky 2009), downloaded when allowed and needed.

    ValueError, at construction or from ``load``, if they are neither in ``root`` nor to be had.
    """

    title = "CIFAR-10"
    folder = "cifar-10-batches-py"
    archive = "cifar-10-python.tar.gz"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    files = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
    names = "airplane automobile bird cat deer dog frog horse ship truck"

    def __init__(
        self,
        *,
        root: str,
        download: bool,
        mean: list[Number],
        std: list[Positive],
        image_size: Count | list[Count] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        self.root = Path(root).expanduser()
        self.download = download
        self.mean = _per_channel("mean", mean)
        self.std = _per_channel("std", std)
        self.classes = self.names.split()
        self.image_size = _height_and_width(image_size) or (32, 32)
        self.subset = (train_size, test_size)
        self.train_size = _at_most("train", train_size, 50_000)
        self.test_size = _at_most("test", test_size, 10_000)
        self._refuse_hopeless_root()

    def official(self) -> Any:
        """The class of torchvision that knows checksums, formats and the address."""
        from torchvision import datasets

        return datasets.CIFAR10

    def load(self) -> Data:
        """Decode and check everything; unpack or download first where that is needed."""
        if self._damage(self.root):
            self._install()
        train, test = self._read(train=True), self._read(train=False)
        mean, std = channel_statistics(train.images)  # before resizing, to tell official pixels
        train = _resized(_subset(train, self.subset[0], len(self.classes)), self.image_size)
        test = _resized(_subset(test, self.subset[1], len(self.classes)), self.image_size)
        return Data(
            name=self.title,
            classes=self.classes,
            train=train,
            test=test,
            mean=self.mean,
            std=self.std,
            measured_mean=mean,
            measured_std=std,
            fingerprint=fingerprint(train, test),
        )

    def _refuse_hopeless_root(self) -> None:
        """What the existence of files tells; checksums are for ``load``."""
        if self.root.exists() and not self.root.is_dir():
            raise ValueError(f"data.root={self.root}: this is a file, a directory is needed")
        missing = [name for name in self.files if not (self.root / self.folder / name).is_file()]
        if not missing:
            return
        if not self.download and not (self.root / self.archive).is_file():
            raise self._refusal(f"{self.archive} is missing and so is {self._listed(missing)}")
        above = next(path for path in (self.root, *self.root.absolute().parents) if path.exists())
        if not (above.is_dir() and os.access(above, os.W_OK)):
            raise ValueError(f"data.root={self.root}: {above} cannot be written to")

    def _refusal(self, reason: str) -> ValueError:
        allow = "" if self.download else "set data.download=true, or "
        return ValueError(
            f"data.root={self.root}: {reason}; {allow}put {self.url} there, "
            "or use data=digits or data=synthetic, which need no download"
        )

    def _listed(self, names: list[str]) -> str:
        return f"{self.folder}/{{{','.join(names)}}}"

    def _damage(self, root: Path) -> str:
        """What is wrong with the unpacked files below ``root``, by their checksums; else empty."""
        from torchvision.datasets.utils import check_integrity

        official = self.official()
        sums = dict(official.train_list + official.test_list)
        sums[official.meta["filename"]] = official.meta["md5"]
        paths = {name: root / self.folder / name for name in sums}
        missing = [name for name, path in paths.items() if not path.is_file()]
        if missing:
            return f"{self._listed(missing)} missing"
        wrong = [name for name, path in paths.items() if not check_integrity(path, sums[name])]
        return f"md5 of {self._listed(wrong)} differs" if wrong else ""

    def _install(self) -> None:
        """Put the unpacked files in place, whole or not at all, one process at a time."""
        from filelock import FileLock

        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with FileLock(self.root / f".{self.folder}.lock"):
                for leftover in self.root.glob(f".{self.folder}.*.partial"):  # of killed processes
                    shutil.rmtree(leftover)
                damage = self._damage(self.root)  # another process may have mended it meanwhile
                if damage:
                    self._install_locked(damage)
        except OSError as error:
            raise ValueError(f"data.root={self.root}: {_one_line(error)}") from error

    def _install_locked(self, damage: str) -> None:
        from torchvision.datasets.utils import check_integrity, extract_archive

        archive, place = self.root / self.archive, self.root / self.folder
        with tempfile.TemporaryDirectory(
            dir=self.root, prefix=f".{self.folder}.", suffix=".partial"
        ) as partial:
            if not check_integrity(archive, self.official().tgz_md5):
                state = "its md5 differs" if archive.is_file() else "missing"
                self._fetch(Path(partial), f"{damage}, {self.archive}: {state}")
            with warnings.catch_warnings():
                # torchvision names no filter for tar files; the md5 says what is in this one
                warnings.filterwarnings("ignore", "Python 3.14 will", DeprecationWarning)
                extract_archive(archive, partial)
            damage = self._damage(Path(partial))
            if damage:
                raise self._refusal(f"{self.archive} is whole, but inside {damage}")
            if place.exists():
                place.rename(Path(partial, "damaged"))
            Path(partial, self.folder).rename(place)

    def _fetch(self, partial: Path, reason: str) -> None:
        """Download the archive to ``partial`` and, if it is whole, move it to its place."""
        from torchvision.datasets.utils import download_url

        if not self.download:
            raise self._refusal(f"{reason} and data.download=false")
        official = self.official()
        try:
            with _socket_timeout(SOCKET_TIMEOUT):
                download_url(official.url, partial, self.archive, official.tgz_md5)
        except (OSError, HTTPException, RuntimeError) as error:
            failure = f"the download from {official.url} failed ({_one_line(error)})"
            raise self._refusal(f"{reason}; {failure}") from error
        (partial / self.archive).replace(self.root / self.archive)

    def _read(self, *, train: bool) -> Split:
        with warnings.catch_warnings():
            # the official pickles are of 2009; some numpy 2.4 dislike how they write a dtype
            warnings.filterwarnings("ignore", r"dtype\(\): align should be passed as")
            dataset = self.official()(self.root, train=train)
        assert dataset.classes == self.classes
        images = torch.from_numpy(dataset.data.transpose(0, 3, 1, 2))  # N 3 32 32
        return Split(images, torch.tensor(dataset.targets))


class CIFAR100(CIFAR10):
    """The 60,000 official CIFAR-100 images (Krizhevsky 2009) with their fine labels."""

    title = "CIFAR-100"
    folder = "cifar-100-python"
    archive = "cifar-100-python.tar.gz"
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    files = ("train", "test", "meta")
    names = """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
        keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
        mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
        plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
        television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """

    def official(self) -> Any:
        """The class of torchvision that knows checksums, formats and the address."""
        from torchvision import datasets

        return datasets.CIFAR100


class Folder:
    """Images in ``root/{train,test}/<class>/``, one size or all brought to ``image_size``.

    ValueError if there is nothing to learn or to test, or the two halves do not fit together.
    """

    def __init__(
        self,
        *,
        root: str,
        image_size: Count | list[Count] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        self.root = Path(root).expanduser()
        size = _height_and_width(image_size)
        self.resize = size is not None
        self.classes = _class_folders(self.root)
        train, test = _listing(self.root / "train"), _listing(self.root / "test")
        self._refuse_misfit(train, test)
        self.train_files, self.train_labels = self._chosen("train", train, train_size)
        self.test_files, self.test_labels = self._chosen("test", test, test_size)
        self.train_size, self.test_size = len(self.train_files), len(self.test_files)
        self.image_size = size or _header_size(self.train_files[0])

    def load(self) -> Data:
        """Decode the chosen images on all processors this process may use."""
        train = Split(self._decoded("train", self.train_files), self.train_labels)
        test = Split(self._decoded("test", self.test_files), self.test_labels)
        name = f"the images in {self.root} (not the official CIFAR-10, whatever its classes are)"
        return _self_measured(name, self.classes, train, test)

    def _refuse_misfit(self, train: dict[str, list[Path]], test: dict[str, list[Path]]) -> None:
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
        self, half: str, listing: dict[str, list[Path]], size: int | None
    ) -> tuple[list[Path], Tensor]:
        files = [path for name in self.classes for path in listing.get(name, [])]
        counts = torch.tensor([len(listing.get(name, [])) for name in self.classes])
        labels = torch.arange(len(self.classes)).repeat_interleave(counts)
        chosen = _balanced(half, size, labels, self.classes)
        return [files[index] for index in chosen.tolist()], labels[chosen]

    def _decoded(self, half: str, files: list[Path]) -> Tensor:
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
            ThreadPoolExecutor(_processors()) as pool,
            tqdm(total=len(files), desc=f"decoding {half}", disable=None, leave=False) as progress,
        ):
            for count in pool.map(decode_block, blocks):
                progress.update(count)
        return images


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
        image_size: Count | list[Count] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        self.classes = [str(digit) for digit in range(10)]
        self.image_size = _height_and_width(image_size) or (32, 32)
        self.subset = (train_size, test_size)
        digits = torch.arange(10)
        train_labels = digits.repeat_interleave(torch.tensor(self.train_counts))
        test_labels = digits.repeat_interleave(torch.tensor(self.test_counts))
        self.train_size = len(_balanced("train", train_size, train_labels, self.classes))
        self.test_size = len(_balanced("test", test_size, test_labels, self.classes))

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
            halves.append(_resized(_subset(half, size, len(self.classes)), self.image_size))
        return _self_measured("scikit-learn's handwritten digits", self.classes, *halves)


class Synthetic:
    """Random pixels with labels that mean nothing, always the same: for tests of speed."""

    def __init__(
        self,
        *,
        classes: Count,
        image_size: Count | list[Count] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        if classes < 2:
            raise ValueError(f"data.classes={classes}: at least 2 classes are needed")
        self.classes = [str(label) for label in range(classes)]
        self.image_size = _height_and_width(image_size) or (32, 32)
        self.train_size = 50_000 if train_size is None else train_size
        self.test_size = 10_000 if test_size is None else test_size

    def load(self) -> Data:
        """Draw all pixels."""
        train = self._drawn(self.train_size, seed=0)
        test = self._drawn(self.test_size, seed=1)
        return _self_measured("random pixels", self.classes, train, test)

    def _drawn(self, size: int, *, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        shape = (size, 3, *self.image_size)
        images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        return Split(images, torch.arange(size) % len(self.classes))


def _per_channel(key: str, values: list[float]) -> Tensor:
    if len(values) != 3:
        raise ValueError(f"data.{key}={list(values)}: three numbers are needed, one per channel")
    return torch.tensor(list(values), dtype=torch.float32)


def _height_and_width(image_size: int | list[int] | None) -> tuple[int, int] | None:
    if image_size is None:
        return None
    if isinstance(image_size, int):
        return image_size, image_size
    if len(image_size) != 2:
        raise ValueError(
            f"data.image_size={list(image_size)}: one number or [height, width] is needed"
        )
    return image_size[0], image_size[1]


def _at_most(half: str, size: int | None, available: int) -> int:
    """The number of images to use of one half; ValueError if there are not that many."""
    if size is not None and size > available:
        kind = {"train": "training", "test": "test"}[half]
        raise ValueError(f"data.{half}_size={size}: there are {available} {kind} images")
    return available if size is None else size


def _balanced(half: str, size: int | None, labels: Tensor, classes: list[str]) -> Tensor:
    """Indices of the images to use; ValueError if equal shares of ``size`` cannot be had."""
    if size is None:
        return torch.arange(len(labels))
    _at_most(half, size, len(labels))
    try:
        return balanced_subset(labels, size, len(classes))
    except ValueError as error:
        poorest = int(labels.bincount(minlength=len(classes)).argmin())
        raise ValueError(
            f"data.{half}_size={size}: {error} ({half} images; class {poorest} is "
            f"{classes[poorest]})"
        ) from error


def _subset(split: Split, size: int | None, classes: int) -> Split:
    if size is None:
        return split
    chosen = balanced_subset(split.labels, size, classes)
    return Split(split.images[chosen], split.labels[chosen])


def _resized(split: Split, size: tuple[int, int]) -> Split:
    """The split with images of ``size``, antialiased where they shrink."""
    if split.images.shape[-2:] == size:
        return split
    images = torch.empty(len(split), 3, *size, dtype=torch.uint8)  # N 3 H W
    chunk = max(1, VALUES_AT_ONCE // max(images[0].numel(), split.images[0].numel()))
    for source, target in zip(split.images.split(chunk), images.split(chunk), strict=True):
        target.copy_(interpolate(source, size=size, mode="bilinear", antialias=True))
    return Split(images, split.labels)


def _self_measured(name: str, classes: list[str], train: Split, test: Split) -> Data:
    """Data normalised by the statistics of its own training images."""
    mean, std = channel_statistics(train.images)
    return Data(
        name=name,
        classes=classes,
        train=train,
        test=test,
        mean=mean,
        std=torch.where(std > 0, std, 1),  # a channel without contrast has nothing to scale
        measured_mean=mean,
        measured_std=std,
        fingerprint=fingerprint(train, test),
    )


def _class_folders(root: Path) -> list[str]:
    wanted = f"expected {root}/{{train,test}}/<class>/<image>"
    if not root.exists():
        raise ValueError(f"data.root={root}: no such directory; {wanted}")
    if not root.is_dir():
        raise ValueError(f"data.root={root}: this is a file; {wanted}")
    for half in ("train", "test"):
        if not (root / half).is_dir():
            raise ValueError(f"data.root={root}: there is no {half}/ in it; {wanted}")
    classes = list(_listing(root / "train"))
    if not classes:
        raise ValueError(f"data.root={root}: train/ has no class folder; {wanted}")
    return classes


def _listing(half: Path) -> dict[str, list[Path]]:
    """The images of each class folder, sorted; hidden files and folders are none of them."""
    listing = {}
    for folder in sorted(path for path in half.iterdir() if path.is_dir()):
        if not folder.name.startswith("."):
            listing[folder.name] = [
                folder / name
                for name in sorted(os.listdir(folder))
                if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
            ]
    return listing


def _header_size(path: Path) -> tuple[int, int]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.height, image.width
    except Exception as error:  # a broken file raises whatever its format's decoder trips over
        raise ValueError(f"{path} is not a readable image: {_one_line(error)}") from error


def _decoded_image(path: Path, size: tuple[int, int], *, resize: bool) -> np.ndarray:
    """One image as uint8 (H, W, 3); ValueError naming the file if it cannot be used."""
    from PIL import Image

    height, width = size
    try:
        with Image.open(path) as file:
            deep = file.mode.startswith(("I", "F"))
            image = file.convert("RGB")
    except Exception as error:  # as in _header_size
        raise ValueError(f"{path} cannot be decoded: {_one_line(error)}") from error
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


def _processors() -> int:
    """How many this process may use; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _one_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())
