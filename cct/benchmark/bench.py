"""The model under measurement with its data, in the process that measures it.

torch is imported late in what such a process calls, because the fast form tunes the process before.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from cct import tuning

BATCH = 128  # images of a training step, as in the recipe


class Asked(NamedTuple):
    """What every subject of a benchmark has in common."""

    device: str
    precision: str
    threads: int
    images: str | None  # a folder {train,test}/<class>, or None for random images


class Bench:
    """A model with its data in one process, in one of several forms.

    ``fast`` is as trained, ``plain`` and ``compiled`` say what they are; ``deterministic`` and
    ``any result`` are as trained with ``deterministic`` true and false.
    """

    def __init__(self, form: str, asked: Asked, overrides: list[str]) -> None:
        if form != "plain":
            tuning.prepare()
        import torch

        from cct import config, machine, plain
        from cct.build import build, build_source
        from cct.loop import Plan
        from cct.optim import parameter_groups

        self.threads = asked.threads
        torch.set_num_threads(self.threads)
        self.device = torch.device(asked.device)
        self.cfg = config.compose([*source(asked), *overrides]).cfg
        self.built = build(self.cfg, build_source(self.cfg), self.device)
        self.data = self.built.source.load().to(self.device)
        self.model, self.optimizer = self.built.model.train(), self.built.optimizer
        self.normalize: Callable = self.data.normalize
        if form == "plain":
            self.model = plain.plain(self.model)
            groups = parameter_groups(self.model, self.cfg.optimizer.weight_decay)
            self.optimizer = torch.optim.AdamW(groups, lr=1e-4, foreach=False, fused=False)
            self.normalize = lambda images: plain.normalize(self.data, images)
        if form == "compiled":
            machine.require_compiler(self.device)
            self.model.compile(dynamic=False)
        machine.allow_tf32(asked.precision == "bf16")
        wanted = {"deterministic": True, "any result": False}.get(form, "auto")
        machine.make_deterministic(machine.resolve_deterministic(wanted, self.device))
        self.plan = Plan(
            epochs=1,
            batch_size=BATCH,
            eval_batch_size=self.cfg.eval_batch_size,
            label_smoothing=self.cfg.label_smoothing,
            seeds=config.seeds_of(self.cfg),
            precision=asked.precision,
        )

    def loss(self, images: Any, labels: Any) -> Any:
        from torch.nn.functional import cross_entropy

        with self.plan.autocast(self.device):
            logits = self.model(images).float()
        return cross_entropy(logits, labels, label_smoothing=self.plan.label_smoothing)

    def step(self, images: Any, labels: Any) -> None:
        """Take a training step on images that are normalised."""
        from cct.loop import descend

        descend(self.model, self.optimizer, self.loss(images, labels))

    def clock(self) -> float:
        """Return the time when the device has done its work; the threads must still be as set."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if torch.get_num_threads() != self.threads:
            raise RuntimeError(f"{torch.get_num_threads()} threads, {self.threads} were set")
        return time.perf_counter()


def root(folder: str) -> str:
    """Return the override that names a folder, whatever letters are in its name."""
    escaped = folder.replace("\\", "\\\\").replace("'", "\\'")
    return f"data.root='{escaped}'"


def source(asked: Asked, train: int = 10 * BATCH, test: int = 100) -> list[str]:
    """Return the overrides that choose the images: a folder's, or random ones of CIFAR's size."""
    sizes = [f"data.train_size={train}", f"data.test_size={test}"]
    if asked.images:
        return ["data=folder", root(asked.images), "data.image_size=32", *sizes]
    return ["data=synthetic", "data.image_size=32", "data.classes=10", *sizes]
