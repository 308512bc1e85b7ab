"""One configuration and seed is one run, bit for bit; each stream of draws has its own seed."""

import hashlib
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch import Tensor

from cct import config, loop
from cct.build import build_model, build_source
from cct.config import options
from tests.conftest import TINY, Trained

# Every option of every group that draws or computes, each in one of these runs.
GROUPS = ("mixer", "pool", "augment", "mix", "schedule", "model")
CHOICES = [
    [f"{group}={option}" for group, option in zip(GROUPS, row, strict=True) if option]
    for row in zip_longest(*(options(group) for group in GROUPS))
]


def digest(tensors: Iterable[Tensor]) -> str:
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in tensors)).hexdigest()


def outcome(done: Trained, overrides: list[str]) -> tuple[Any, ...]:
    """Return all that a run computed: rows, weights, moments and predictions."""
    state = torch.load(done.out / "last.pt")
    cfg = config.compose([*TINY, *overrides]).cfg
    data = build_source(cfg).load()
    model = build_model(cfg, len(data.classes), tuple(data.test.images.shape[-2:])).eval()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        predictions = model(data.normalize(data.test.images))
    moments = [one for each in state["optimizer"]["state"].values() for one in each.values()]
    return done.numbers, digest(state["model"].values()), digest(moments), digest([predictions])


@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_the_same_again_is_the_same_bit_for_bit(trained, overrides):
    # Small enough for the largest model, and with every draw there is.
    settings = [*overrides, "epochs=2", "data.train_size=20", "data.test_size=10", "batch_size=8"]
    settings += ["model.stochastic_depth=0.3", "model.dropout=0.1", "model.attention_dropout=0.2"]
    first, second = (trained(*settings, study=study) for study in ("a", "b"))
    assert outcome(first, settings) == outcome(second, settings)


def test_seed_0_is_a_seed_and_another_seed_is_another_run(trained):
    runs = [outcome(trained(f"seed={seed}"), []) for seed in (0, 1, 2)]
    for column in zip(*runs, strict=True):
        assert column[0] != column[1] != column[2] != column[0]


STREAMS = ("init", "order", "augment", "mix", "dropout")


@pytest.fixture
def drawn(trained, monkeypatch) -> Callable[..., dict[str, str]]:
    """Train for an epoch, and return a hash of what each stream drew."""
    train_epoch, cross_entropy = loop.train_epoch, loop.cross_entropy
    seen: dict[str, list[Tensor]] = {}

    class Watched:
        def __init__(self, policy: Any) -> None:
            self.policy, self.chunk = policy, policy.chunk

        def draw(self, count: int, generator: torch.Generator) -> Tensor:
            draws = self.policy.draw(count, generator)
            seen["augment"].append(draws)
            return draws

        def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
            return self.policy(images, draws)

    def watched_epoch(model, data, augment, *rest):
        seen["init"] += [weight.clone() for weight in model.state_dict().values()]
        return train_epoch(model, data, Watched(augment), *rest)

    def watched_loss(logits, labels, share, smoothing):
        seen["order"].append(labels)
        seen["mix"].append(torch.tensor(share))
        seen["dropout"].append(torch.tensor(torch.initial_seed()))
        return cross_entropy(logits, labels, share, smoothing)

    def draw(*overrides: str) -> dict[str, str]:
        seen.update({stream: [] for stream in STREAMS})
        with monkeypatch.context() as patch:
            patch.setattr(loop, "train_epoch", watched_epoch)
            patch.setattr(loop, "cross_entropy", watched_loss)
            trained("epochs=1", "mix=mixup_cutmix", *overrides, study="s" + "".join(overrides)[-3:])
        return {stream: digest(tensors) for stream, tensors in seen.items()}

    return draw


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("seeds.init", {"init"}),
        ("seeds.order", {"order"}),
        ("seeds.augment", {"augment", "mix"}),
        ("seeds.dropout", {"dropout"}),
        ("seed", set(STREAMS)),
    ],
)
def test_a_seed_changes_its_own_stream_only(drawn, setting, changed):
    before, after = drawn("seed=0"), drawn(f"{setting}=5")
    assert {stream for stream in STREAMS if before[stream] != after[stream]} == changed


def test_a_streams_own_seed_stands_for_the_runs(drawn):
    own = [f"seeds.{name}=5" for name in ("init", "order", "augment", "dropout")]
    assert drawn("seed=5") == drawn(*own, "seed=0")
