"""From a checked configuration to the things it names."""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf

from cct.schema import check_targets

if TYPE_CHECKING:  # slow to import, so only once the command line is known to be right
    from cct.model import CCT


def build_source(cfg: DictConfig) -> Any:
    """Return where the images come from; nothing is decoded yet."""
    for key in ("root", "cache"):
        if cfg.data.get(key) == "":
            raise ValueError(f"data.{key}=: the name of a folder is needed")
    paths = {
        key: to_absolute_path(os.path.expanduser(cfg.data[key]))
        for key in ("root", "cache")
        if cfg.data.get(key) is not None
    }
    check_targets(OmegaConf.to_container(cfg.data, resolve=True), "data")
    # Called here and not by Hydra, which would wrap what the call raises.
    return instantiate(cfg.data, **paths, _partial_=True, _convert_="all")()


def build_model(cfg: DictConfig, classes: int, image_size: tuple[int, int]) -> "CCT":
    """Return the model with fresh weights, drawn from torch's global generator."""
    for key in ("mixer", "pool", "model"):  # perhaps from a checkpoint, which nobody has checked
        check_targets(OmegaConf.to_container(cfg[key], resolve=True), key)
    mixer, pool = (instantiate(node, _convert_="all") for node in (cfg.mixer, cfg.pool))
    return instantiate(cfg.model, _convert_="all")(classes, image_size, mixer, pool)


class Built(NamedTuple):
    """What a configuration builds before an image is decoded."""

    source: Any
    model: "CCT"
    augment: Any
    mix: Any
    schedule: Any
    optimizer: Any


def build(cfg: DictConfig, source: Any, device: Any) -> Built:
    """Build everything on a device, the weights from the seed; ValueError for what does not fit."""
    import torch

    from cct.config import seeds_of
    from cct.randomness import seed_of

    schedule = instantiate(cfg.schedule, _convert_="all")(cfg.epochs, cfg.optimizer.lr)
    augment = instantiate(cfg.augment, _partial_=True, _convert_="all")()
    mix = instantiate(cfg.mix, _partial_=True, _convert_="all")()
    optimizer = instantiate(cfg.optimizer, _convert_="all")
    torch.manual_seed(seed_of(seeds_of(cfg).init, "init"))
    model = build_model(cfg, len(source.classes), source.image_size).to(device)
    model = model.to(memory_format=torch.channels_last)  # as the images, for the convolutions
    return Built(source, model, augment, mix, schedule, optimizer(model))


def rehearse(runs: list[DictConfig]) -> None:
    """Build what each run of a sweep would build, without memory: ValueError if one cannot be."""
    import torch

    sources: dict[str, Any] = {}
    for cfg in runs:
        key = OmegaConf.to_yaml(cfg.data)
        source = sources[key] = sources.get(key) or build_source(cfg)
        with torch.device("meta"):
            build(cfg, source, "meta")
