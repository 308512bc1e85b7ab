"""The official CIFAR-10 and CIFAR-100, downloaded, checked and unpacked by torchvision."""

import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cct.data import Data, Split, channel_statistics, fingerprint
from cct.limits import Count, Number, Pixels, Positive
from cct.schema import one_line
from cct.sources.common import at_most, height_and_width, resized, subset

SOCKET_TIMEOUT = 20.0  # seconds without an answer after which a download has failed


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
        image_size: Pixels | list[Pixels] | None,
        train_size: Count | None,
        test_size: Count | None,
    ) -> None:
        self.root = Path(root).expanduser()
        self.download = download
        self.mean = _per_channel("mean", mean)
        self.std = _per_channel("std", std)
        self.classes = self.names.split()
        self.image_size = height_and_width(image_size) or (32, 32)
        self.subset = (train_size, test_size)
        self.train_size = at_most("train", train_size, 50_000)
        self.test_size = at_most("test", test_size, 10_000)
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
        train = resized(subset(train, self.subset[0], len(self.classes)), self.image_size)
        test = resized(subset(test, self.subset[1], len(self.classes)), self.image_size)
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
        whole = set(names) >= set(self.files)
        return f"{self.folder}/" if whole else f"{self.folder}/{{{','.join(names)}}}"

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
            raise ValueError(f"data.root={self.root}: {one_line(error)}") from error

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
            cause = one_line(error).removeprefix("<urlopen error ").removesuffix(">")
            failure = f"the download failed ({cause})"
            raise self._refusal(f"{reason}; {failure}") from error
        (partial / self.archive).replace(self.root / self.archive)

    def _read(self, *, train: bool) -> Split:
        with warnings.catch_warnings():
            # the official pickles are of 2009; some numpy 2.4 dislike how they write a dtype
            warnings.filterwarnings("ignore", r"dtype\(\): align should be passed as")
            dataset = self.official()(self.root, train=train)
        assert dataset.classes == self.classes
        pixels = torch.from_numpy(dataset.data.transpose(0, 3, 1, 2))
        images = pixels.contiguous()  # N 3 32 32, laid out as every other source lays it
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


def _per_channel(key: str, values: list[float]) -> Tensor:
    if len(values) != 3:
        raise ValueError(f"data.{key}={list(values)}: three numbers are needed, one per channel")
    return torch.tensor(list(values), dtype=torch.float32)


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
