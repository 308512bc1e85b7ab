"""Train one model: python train.py mixer=dense pool=softmax_plus_x seed=1

Exit code 0 for a finished run, 1 for a failed one, 2 for a mistake in the command or the data,
130 and 143 for a run that Ctrl-C or SIGTERM interrupted.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf

from cct import config

if TYPE_CHECKING:  # slow to import, so only once the command line is known to be right
    from cct.data import Data
    from cct.model import CCT


def build_source(cfg: DictConfig) -> Any:
    """Return where the images come from; nothing is decoded yet."""
    paths = {"root": to_absolute_path(cfg.data.root)} if "root" in cfg.data else {}
    return instantiate(cfg.data, **paths, _partial_=True, _convert_="all")()


def build_model(cfg: DictConfig, classes: int, image_size: tuple[int, int]) -> "CCT":
    """Return the model with fresh weights, drawn from torch's global generator."""
    mixer, pool = (instantiate(node, _convert_="all") for node in (cfg.mixer, cfg.pool))
    return instantiate(cfg.model, _convert_="all")(classes, image_size, mixer, pool)


def build_schedule(cfg: DictConfig) -> Any:
    return instantiate(cfg.schedule, _convert_="all")(cfg.epochs, cfg.optimizer.lr)


def rehearse(runs: list[DictConfig]) -> None:
    """Build what each run of a sweep would build, without memory: ValueError if one cannot be."""
    import torch

    sources: dict[str, Any] = {}
    for cfg in runs:
        key = OmegaConf.to_yaml(cfg.data)
        source = sources[key] = sources.get(key) or build_source(cfg)
        with torch.device("meta"):
            build_model(cfg, len(source.classes), source.image_size)
        build_schedule(cfg)


def run(cfg: DictConfig, out: Path, name: str) -> float:
    """Train what the configuration says in ``out``, or go on there; return the final top-1.

    ValueError for what cannot be trained, before ``out`` is touched; RunFailed for a run that
    stops before its end.
    """
    import torch

    from cct import directory, machine
    from cct.randomness import seed_of

    earlier = directory.summary_of(out, name)
    if earlier and earlier["status"] == "finished" and same_place(earlier, cfg):
        return say_finished(out, earlier)
    device = machine.resolve_device(cfg.device)
    torch.set_num_threads(machine.resolve_threads(cfg.threads))
    source = build_source(cfg)
    schedule = build_schedule(cfg)
    torch.manual_seed(seed_of(cfg.seed, "init"))
    model = build_model(cfg, len(source.classes), source.image_size)
    data = source.load()
    with directory.owned(out):
        earlier = directory.summary_of(out, name)  # it may have been trained meanwhile
        if earlier and earlier["fingerprint"] != data.fingerprint:
            raise ValueError(f"{out} was trained on other images; choose another study=")
        if earlier and earlier["status"] == "finished":
            return say_finished(out, earlier)
        return train(cfg, out, name, data, model, schedule, device)


def same_place(summary: dict[str, Any], cfg: DictConfig) -> bool:
    """Whether the data would come from where it came from; other images may lie elsewhere."""
    return summary["left_out"].get("data.root") == cfg.data.get("root")


def say_finished(out: Path, summary: dict[str, Any]) -> float:
    best, final = summary["best_top1"], summary["final_top1"]
    print(f"Finished before, best top-1: {best:.2f}, final top-1: {final:.2f}")
    print(f"  in {os.path.relpath(out)}")
    return final


def train(
    cfg: DictConfig, out: Path, name: str, data: "Data", model: "CCT", schedule: Any, device: Any
) -> float:
    """Record and train in a directory that this process owns."""
    import torch

    from cct import checkpoint, directory, loop, machine, record
    from cct.header import header
    from cct.model import cost
    from cct.pictures import pictures

    counted = cost(model, data.normalize(data.test.images[:1]))
    model.to(device)
    data = data.to(device)
    augment = instantiate(cfg.augment, _convert_="all")
    optimizer = instantiate(cfg.optimizer, _convert_="all")(model)
    epoch = checkpoint.restore(out / "last.pt", model, optimizer, device)
    plan = loop.Plan(
        epochs=cfg.epochs,
        batch_size=cfg.batch_size,
        eval_batch_size=cfg.eval_batch_size,
        label_smoothing=cfg.label_smoothing,
        seed=cfg.seed,
        precision=machine.resolve_precision(cfg.precision, device),
    )
    facts = {
        "name": name,
        "configuration_hash": config.digest(cfg),
        "seed": cfg.seed,
        "left_out": config.left_out(cfg),
        "data": data.name,
        "fingerprint": data.fingerprint,
        "parameters_trainable": counted.trainable,
        "parameters_frozen": counted.frozen,
        "multiply_adds": counted.multiply_adds,
        "schedule": vars(schedule),
        "device": str(device),
        "device_name": machine.device_name(device),
        "threads": torch.get_num_threads(),
        "precision": plan.precision,
        "versions": record.versions(),
        "git_commit": record.git_commit(),
    }
    configuration: Any = OmegaConf.to_container(cfg)
    with record.Record(out, epoch) as log:
        if HydraConfig.initialized():
            directory.write_configuration(out, cfg, HydraConfig.get())
        log.begin(facts, header(configuration, data, model, counted, facts))
        loop.fit(model, data, augment, optimizer, schedule, log, plan, configuration)
        log.finish(configuration, pictures(model, data))
        if config.looks_across_batch(cfg):
            log.say(f"Evaluated in batches of {plan.eval_batch_size}, on which this pool depends")
        return log.rows[-1]["test_top1"]


def stop(mistake: Exception, code: int, sweep: bool) -> NoReturn:
    """Say in one line what went wrong; end the program, or only this job of a sweep."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise mistake
    line = f"train.py: {' '.join(str(mistake).split())}"
    print(line, file=sys.stderr)
    if sweep:
        raise HydraException(line) from None
    sys.exit(code)


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> float:
    from cct.directory import remove_empty
    from cct.record import RunFailed

    job = HydraConfig.get()
    out, sweep = Path(job.runtime.output_dir), job.mode == RunMode.MULTIRUN
    try:
        cfg = config.check(cfg)
        return run(cfg, out, config.name(cfg, job.runtime.choices))
    except (ValueError, OSError) as mistake:
        remove_empty(out)
        stop(mistake, 2, sweep)
    except RunFailed as failure:
        stop(failure, 1, sweep)
    except KeyboardInterrupt:
        sys.exit(130)


def start(arguments: list[str]) -> None:
    """Refuse a wrong command line before Hydra makes a directory for it, then hand it to Hydra."""
    try:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        if processes > 1:
            raise ValueError(f"WORLD_SIZE={processes}: train.py is one process; start it as python")
        runs = config.check_command_line(arguments)
        if len(runs) > 1:
            rehearse(runs)
    except (ValueError, OSError) as mistake:
        stop(mistake, 2, sweep=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()


if __name__ == "__main__":
    start(sys.argv[1:])
