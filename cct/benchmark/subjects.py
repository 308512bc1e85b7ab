"""What the benchmark measures: each function returns a sampler, in a process of its own."""

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from cct.benchmark.bench import BATCH, Asked, Bench, source
from cct.benchmark.turns import Sample


def training(
    form: str, asked: Asked, overrides: list[str], steps: int, batch: int = BATCH
) -> Callable[[], Sample]:
    """Return a sampler of training steps; the form ``plain`` also counts their operations."""
    bench = Bench(form, asked, overrides)
    images, labels = bench.data.train.images[:batch], bench.data.train.labels[:batch]
    flops = 0
    if form == "plain":
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            bench.loss(bench.normalize(images[:1]), labels[:1]).backward()
        flops = counter.get_total_flops()

    def sample() -> Sample:
        began = bench.clock()
        for _ in range(steps):
            bench.step(bench.normalize(images), labels)
        speed = steps * batch / (bench.clock() - began)
        return {"images_per_second": speed, "flops": flops, "memory": memory(bench.device)}

    return sample


def memory(device: Any) -> float:
    """Return the most memory that this process, or CUDA in it, had so far, in MiB."""
    import resource

    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def products(asked: Asked, size: int) -> Callable[[], Sample]:
    """Return a sampler of the machine's speed in products of large matrices."""
    import torch

    torch.set_num_threads(asked.threads)
    kind = torch.bfloat16 if asked.precision == "bf16" else torch.float32
    device = torch.device(asked.device)
    matrix = torch.randn(size, size, device=device, dtype=kind)
    product = torch.empty_like(matrix)

    def sample() -> Sample:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(5):
            torch.mm(matrix, matrix, out=product)
        float(product[0, 0])  # waits for the device
        return {"flops_per_second": 5 * 2 * size**3 / (time.perf_counter() - began)}

    return sample


def augmentation(form: str, asked: Asked, count: int) -> Callable[[], Sample]:
    """Return a sampler of one thread that augments and normalises images."""
    import torch

    asked = asked._replace(threads=1)
    bench = Bench(form, asked, [*source(asked, train=count), "augment=autoaugment"])
    images = bench.data.train.images
    if form == "plain":
        work = one_by_one(images, per_image(bench.data))
    else:
        augment = bench.built.augment

        def work() -> None:
            draws = augment.draw(count, torch.Generator().manual_seed(0))
            for part, drawn in zip(
                images.split(augment.chunk), draws.split(augment.chunk), strict=True
            ):
                bench.normalize(augment(part, drawn))

    def sample() -> Sample:
        began = bench.clock()
        work()
        return {"images_per_second": count / (bench.clock() - began)}

    return sample


def one_by_one(images: Any, transform: Callable) -> Callable[[], None]:
    from torchvision.transforms.functional import to_pil_image

    pictures = [to_pil_image(image) for image in images.cpu()]

    def work() -> None:
        for picture in pictures:
            transform(picture)

    return work


def per_image(data: Any, training: bool = True) -> Callable:
    """Return the usual transforms of one Pillow image."""
    from torchvision import transforms as T

    learned = T.AutoAugment(T.AutoAugmentPolicy.CIFAR10)
    random = [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), learned] if training else []
    return T.Compose([*random, T.ToTensor(), T.Normalize(data.mean.tolist(), data.std.tolist())])


def fast_epoch(asked: Asked, train: int, test: int) -> Callable[[], Sample]:
    """Return a sampler of the project's own epoch, images in memory."""
    from tqdm import tqdm

    from cct.loop import evaluate, train_epoch

    bench = Bench("fast", asked, [*source(asked, train, test), "augment=autoaugment"])
    bar = tqdm(disable=True)

    def sample() -> Sample:
        began = bench.clock()
        augment, mix = bench.built.augment, bench.built.mix
        train_epoch(bench.model, bench.data, augment, mix, bench.optimizer, bench.plan, 0, bar)
        trained = bench.clock()
        evaluate(bench.model, bench.data, bench.data.test, bench.plan)
        return _epoch(began, trained, bench.clock(), train)

    return sample


class Pictures:
    """A data set as torchvision's: arrays in memory, an image made and transformed when asked."""

    def __init__(self, split: Any, transform: Callable) -> None:
        self.arrays = split.images.permute(0, 2, 3, 1).contiguous().numpy()  # N H W 3
        self.labels, self.transform = split.labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.arrays[index])), self.labels[index]


def loader_epoch(asked: Asked, train: int, test: int, workers: int) -> Callable[[], Sample]:
    """Return a sampler of the usual epoch: DataLoader, per-image transforms, the plain model."""
    import torch
    from torch.utils.data import DataLoader

    bench = Bench("plain", asked, source(asked, train, test))
    pictures: Any = Pictures(bench.data.to("cpu").train, per_image(bench.data))
    tests: Any = Pictures(bench.data.to("cpu").test, per_image(bench.data, training=False))
    # The reference takes four whatever the machine has, of which torch would warn.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    how = {"batch_size": BATCH, "num_workers": workers, "persistent_workers": workers > 0}
    loader, test_loader = DataLoader(pictures, shuffle=True, **how), DataLoader(tests, **how)

    def sample() -> Sample:
        began = bench.clock()
        bench.model.train()
        for images, labels in loader:
            bench.step(images.to(bench.device), labels.to(bench.device))
        trained = bench.clock()
        bench.model.eval()
        with torch.no_grad():
            for images, labels in test_loader:
                float(bench.loss(images.to(bench.device), labels.to(bench.device)))
        return _epoch(began, trained, bench.clock(), train)

    return sample


def _epoch(began: float, trained: float, ended: float, images: int) -> Sample:
    return {
        "epochs_per_second": 1 / (ended - began),
        "images_per_second": images / (trained - began),
        "share_of_evaluation": (ended - trained) / (ended - began),
    }


def counted(overrides: list[str]) -> Any:
    """Return the cost of a model for one image of CIFAR's size."""
    import torch

    from cct.build import build_model
    from cct.config import compose
    from cct.model import cost

    built = build_model(compose(overrides).cfg, 10, (32, 32))
    return cost(built, torch.zeros(1, 3, 32, 32))
