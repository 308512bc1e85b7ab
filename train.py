"""Train one model: python train.py mixer=dense pool=softmax_plus_x seed=1

Exit code 0 for a finished run, 1 for a failed one, 2 for a mistake in the command or the data,
130 and 143 for a run that Ctrl-C or SIGTERM interrupted.
"""

import os
import signal
import sys
import time

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of the imports below

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from cct import config, signals, sweep, tuning
from cct.build import Built, build, build_source, rehearse
from cct.facts import differences, facts_of, limits_of
from cct.schema import one_line
from cct.sweep import Outcome

if TYPE_CHECKING:  # slow to import, so only once the command line is known to be right
    from cct.data import Data


def run(asked: config.Run, out: Path, shorter: Path | None = None) -> Outcome:
    """Train what the configuration says in ``out``, or go on there.

    A new run begins with the state of the run in ``shorter``, if one is given.

    ValueError for what cannot be trained, before ``out`` is touched; RunFailed for a run that
    stops before its end.
    """
    import torch

    from cct import directory, machine, resume

    cfg, began = asked.cfg, time.monotonic()
    device = machine.resolve_device(cfg.device)
    torch.set_num_threads(machine.resolve_threads(cfg.threads))
    machine.allow_tf32(machine.resolve_precision(cfg.precision, device) == "bf16")
    machine.make_deterministic(machine.resolve_deterministic(cfg.deterministic, device))
    rerun = asked.launch.rerun
    earlier = None if rerun else directory.earlier(out, asked)
    # Other images may lie in another place, so only there their fingerprint must be taken first.
    same_place = earlier and earlier["left_out"].get("data.root") == cfg.data.get("root")
    if earlier and earlier["status"] == "finished" and same_place:
        return finished_before(asked, out, earlier, device)
    if cfg.compile:
        machine.require_compiler(device)
    try:
        built = build(cfg, build_source(cfg), device)
        data = built.source.load()
    except (RuntimeError, MemoryError, OverflowError) as error:  # mostly too large for memory
        raise ValueError(f"this cannot be built here: {one_line(error)[:200]}") from error
    data.check_labels()
    state = resume.state_to_begin_with(shorter, out, data.fingerprint) if shorter else None
    if rerun and (aside := directory.put_aside(out)):
        print(f"Put aside: {os.path.relpath(aside)}")
    with directory.owned(out):
        if shorter and state:
            resume.start_longer(asked, shorter, state, out)
        earlier = directory.earlier(out, asked)  # trained meanwhile, perhaps
        if earlier and earlier["fingerprint"] != data.fingerprint:
            raise ValueError(f"{out} was trained on other images; name another study=")
        if earlier and earlier["status"] == "finished":
            return finished_before(asked, out, earlier, device)
        with signals.deferred():
            return train(asked, out, built, data.to(device), device, began, earlier or {})


def finished_before(asked: config.Run, out: Path, summary: dict[str, Any], device: Any) -> Outcome:
    best, final = summary["best_top1"], summary["final_top1"]
    batches = f", in batches of {summary['eval_batch_size']}" if summary["eval_batch_size"] else ""
    print(
        f"Finished before, best top-1: {best:.2f}, final top-1: {final:.2f}{batches}: "
        f"{os.path.relpath(out)}"
    )
    if other := differences(summary, limits_of(asked.cfg, device)):
        print(f"          by a run of {other}")
    return Outcome("finished before", final, summary["seconds"])


def train(
    asked: config.Run,
    out: Path,
    built: Built,
    data: "Data",
    device: Any,
    began: float,
    earlier: dict[str, Any],
) -> Outcome:
    """Record and train in a directory that this process owns; it began at this monotonic time.

    ``earlier`` is the summary of the last start there, if there was one.
    """
    from cct import loop, record
    from cct.header import header
    from cct.model import cost
    from cct.pictures import pictures

    cfg, model, optimizer = asked.cfg, built.model, built.optimizer
    counted = cost(model, data.normalize(data.test.images[:1]))
    facts: dict[str, Any] = facts_of(asked, built, data, device) | {"cost": asdict(counted)}
    configuration: Any = OmegaConf.to_container(cfg)
    saved = {key: facts[key] for key in ("name", "seed", "versions")} | {"config": configuration}
    checkpoints = instantiate(cfg.checkpoint, _partial_=True, _convert_="all")(out, saved)
    restored = checkpoints.restore(model, optimizer, device)
    notes = [f"Not used: {damage}" for damage in restored.refused]
    if restored.epochs and (other := differences(earlier, facts)):
        notes.append(f"From here on the numbers may differ in their last bits: {other}")
    if "continued_from" in earlier:
        facts["continued_from"] = earlier["continued_from"]
    plan = loop.Plan(
        epochs=cfg.epochs,
        batch_size=cfg.batch_size,
        eval_batch_size=cfg.eval_batch_size,
        label_smoothing=cfg.label_smoothing,
        seeds=config.seeds_of(cfg),
        precision=facts["precision"],
    )
    if cfg.compile:  # in place, so that the names of its parameters stay
        model.compile(dynamic=False)  # a run has few shapes: whole batches and the last ones
    with record.Record(out, restored.epochs, facts, began) as log:
        config.write(out, cfg, HydraConfig.get() if HydraConfig.initialized() else None)
        if "continued_from" in facts and log.rows:
            rates = log.rows[-1]["lr"], built.schedule(restored.epochs)
            notes.append(f"Continues {facts['continued_from']['directory']}")
            notes.append(
                "Learning rate of its last epoch {:.4g}, of the next {:.4g}".format(*rates)
            )
        log.begin(header(configuration, data, model, counted, facts, out), notes)
        if cfg.epochs == 0:
            loop.record_untrained(model, data, optimizer, log, checkpoints, plan)
        else:
            augment, mix, schedule = built.augment, built.mix, built.schedule
            loop.fit(model, data, augment, mix, optimizer, schedule, log, checkpoints, plan)
        log.finish(configuration, pictures(model, data))
        if facts["eval_batch_size"]:
            log.say(f"Evaluated in batches of {cfg.eval_batch_size}, on which this pool depends")
        return Outcome("finished", log.rows[-1]["test_top1"], log.seconds)


def refuse(line: str, code: int) -> NoReturn:
    """Say in one line what went wrong, and end the program."""
    print(f"train.py: {line}", file=sys.stderr)
    sys.exit(code)


def full_error_wanted() -> bool:
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def answered(asked: config.Run, out: Path, shorter: Path | None = None) -> Outcome:
    """Run, or refuse in one line; no exception is left with the frames that hold a run's data."""
    from cct.directory import remove_empty
    from cct.record import RunFailed

    try:
        return run(asked, out, shorter)
    except (ValueError, OSError, RunFailed) as error:
        if full_error_wanted():
            raise
        line, code = one_line(error), 1 if isinstance(error, RunFailed) else 2
    except signals.Interrupted:
        remove_empty(out)
        raise
    remove_empty(out)
    refuse(line, code)


def go_on(folder: Path, arguments: list[str]) -> None:
    """Do what ``resume=<folder>`` asks for, beside which no more than the future may change."""
    from cct import resume

    if config.is_sweep(arguments):
        raise ValueError(f"resume={folder}: with -m give resume=true, or one command per directory")
    asked, out = resume.resumed(folder, arguments)
    answered(asked, out, shorter=None if out == folder else folder)


@hydra.main(version_base="1.3", config_path=str(config.CONF), config_name="train")
def main(cfg: DictConfig) -> float | None:
    job = HydraConfig.get()
    return answered(config.run_of(cfg, job), Path(job.runtime.output_dir)).top1


def start(arguments: list[str]) -> None:
    """Refuse a wrong command line before Hydra makes a directory for it, then hand it to Hydra."""
    tuning.prepare()
    signals.listen()
    if sys.stdout is None:  # closed, as cron and daemons may start a program
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115

    from cct import resume
    from cct.directory import check_writable

    try:
        processes = os.environ.get("WORLD_SIZE", "1")
        if processes.isdecimal() and int(processes) > 1:
            raise ValueError(f"WORLD_SIZE={processes}: train.py is one process; start it as python")
        if folder := resume.asked_folder(arguments):
            return go_on(folder, arguments)
        jobs = config.jobs_of(arguments)
        for job in jobs:
            check_writable(job.run.out)
        if len(jobs) > 1:
            rehearse(config.distinct(jobs))
        if jobs and jobs[0].run.launch.dry_run:
            sweep.say_what_would_run(jobs)
        elif config.is_sweep(arguments):
            sys.exit(sweep.launch(jobs, arguments, run))
        else:
            main()
    except (ValueError, OSError) as mistake:
        if full_error_wanted():
            raise
        refuse(one_line(mistake), 2)
    except signals.Interrupted as interrupted:
        signals.stop_listening()
        sys.exit(interrupted.code)


if __name__ == "__main__":
    start(sys.argv[1:])
