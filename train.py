"""Train one model: python train.py mixer=dense pool=softmax_plus_x seed=1

Exit code 0 for a finished run, 1 for a failed one, 2 for a mistake in the command or the data,
130 and 143 for a run that Ctrl-C or SIGTERM interrupted.
"""

import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from cct import config, tuning
from cct.build import Built, build, build_source, rehearse
from cct.schema import one_line

if TYPE_CHECKING:  # slow to import, so only once the command line is known to be right
    from cct.data import Data


def run(asked: config.Run, out: Path) -> float:
    """Train what the configuration says in ``out``, or go on there; return the final top-1.

    ValueError for what cannot be trained, before ``out`` is touched; RunFailed for a run that
    stops before its end.
    """
    import torch

    from cct import directory, machine

    cfg, began = asked.cfg, time.monotonic()
    device = machine.resolve_device(cfg.device)
    torch.set_num_threads(machine.resolve_threads(cfg.threads))
    machine.allow_tf32(machine.resolve_precision(cfg.precision, device) == "bf16")
    earlier = directory.summary_of(out, asked.name, cfg.seed)
    # Other images may lie in another place, so only there their fingerprint must be taken first.
    same_place = earlier and earlier["left_out"].get("data.root") == cfg.data.get("root")
    if earlier and earlier["status"] == "finished" and same_place:
        return say_finished(out, earlier)
    if cfg.compile:
        machine.require_compiler(device)
    try:
        built = build(cfg, build_source(cfg), device)
        data = built.source.load()
    except (RuntimeError, MemoryError, OverflowError) as error:  # mostly too large for memory
        raise ValueError(f"this cannot be built here: {one_line(error)[:200]}") from error
    with directory.owned(out):
        earlier = directory.summary_of(out, asked.name, cfg.seed)  # trained meanwhile, perhaps
        if earlier and earlier["fingerprint"] != data.fingerprint:
            raise ValueError(f"{out} was trained on other images; name another study=")
        if earlier and earlier["status"] == "finished":
            return say_finished(out, earlier)
        return train(asked, out, built, data.to(device), device, began)


def say_finished(out: Path, summary: dict[str, Any]) -> float:
    best, final = summary["best_top1"], summary["final_top1"]
    batches = f", in batches of {summary['eval_batch_size']}" if summary["eval_batch_size"] else ""
    print(
        f"Finished before, best top-1: {best:.2f}, final top-1: {final:.2f}{batches}: "
        f"{os.path.relpath(out)}"
    )
    return final


def train(
    asked: config.Run, out: Path, built: Built, data: "Data", device: Any, began: float
) -> float:
    """Record and train in a directory that this process owns; it began at this monotonic time."""
    from cct import checkpoint, loop, machine, record
    from cct.header import header
    from cct.model import cost
    from cct.pictures import pictures

    cfg, model = asked.cfg, built.model
    counted = cost(model, data.normalize(data.test.images[:1]))
    epoch = checkpoint.restore(out / "last.pt", model, built.optimizer, device)
    plan = loop.Plan(
        epochs=cfg.epochs,
        batch_size=cfg.batch_size,
        eval_batch_size=cfg.eval_batch_size,
        label_smoothing=cfg.label_smoothing,
        seed=cfg.seed,
        precision=machine.resolve_precision(cfg.precision, device),
    )
    facts = facts_of(asked, built, data, plan.precision, device) | {"cost": asdict(counted)}
    configuration: Any = OmegaConf.to_container(cfg)
    if cfg.compile:  # in place, so that the names of its parameters stay
        model.compile(dynamic=False)  # a run has few shapes: whole batches and the last ones
    with record.Record(out, epoch, facts, began) as log:
        if HydraConfig.initialized():
            config.write(out, cfg, HydraConfig.get())
        log.begin(header(configuration, data, model, counted, facts, out))
        loop.fit(
            model,
            data,
            built.augment,
            built.mix,
            built.optimizer,
            built.schedule,
            log,
            plan,
            configuration,
        )
        log.finish(configuration, pictures(model, data))
        if facts["eval_batch_size"]:
            log.say(f"Evaluated in batches of {cfg.eval_batch_size}, on which this pool depends")
        return log.rows[-1]["test_top1"]


def facts_of(
    asked: config.Run, built: Built, data: "Data", precision: str, device: Any
) -> dict[str, Any]:
    """Return what the summary says about a run from its start on, for programs and people."""
    import torch

    from cct import machine, record

    cfg = asked.cfg
    return {
        "name": asked.name,
        "choices": asked.choices,
        "configuration_hash": config.digest(cfg),
        "seed": cfg.seed,
        "left_out": config.left_out(cfg),
        "eval_batch_size": cfg.eval_batch_size if config.looks_across_batch(cfg) else None,
        "data": data.name,
        "fingerprint": data.fingerprint,
        "schedule": vars(built.schedule),
        "device": str(device),
        "device_name": machine.device_name(device),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "versions": record.versions(),
        "git_commit": record.git_commit(),
    }


def refuse(line: str, code: int, sweep: bool) -> NoReturn:
    """Say in one line what went wrong; end the program, or only this job of a sweep."""
    print(f"train.py: {line}", file=sys.stderr)
    if sweep:
        raise CompactHydraException(line)
    sys.exit(code)


def full_error_wanted() -> bool:
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(cfg: DictConfig) -> float:
    from cct.directory import remove_empty
    from cct.record import RunFailed

    job = HydraConfig.get()
    out = Path(job.runtime.output_dir)
    try:
        return run(config.run_of(cfg, job), out)
    except (ValueError, OSError, RunFailed) as error:
        if full_error_wanted():
            raise
        line, code = one_line(error), 1 if isinstance(error, RunFailed) else 2
    # Out here the error is gone, and with it the frames that hold the failed run's data and model.
    remove_empty(out)
    refuse(line, code, sweep=job.mode == RunMode.MULTIRUN)


def start(arguments: list[str]) -> None:
    """Refuse a wrong command line before Hydra makes a directory for it, then hand it to Hydra."""
    tuning.prepare()

    from cct.directory import check_writable

    try:
        processes = os.environ.get("WORLD_SIZE", "1")
        if processes.isdecimal() and int(processes) > 1:
            raise ValueError(f"WORLD_SIZE={processes}: train.py is one process; start it as python")
        runs = config.check_command_line(arguments)
        for study in {asked.cfg.study for asked in runs}:
            check_writable(study)
        if len(runs) > 1:
            rehearse([asked.cfg for asked in runs])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        main()
    except (ValueError, OSError) as mistake:
        if full_error_wanted():
            raise
        refuse(one_line(mistake), 2, sweep=False)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start(sys.argv[1:])
