"""A sweep: what each of its jobs would do, the configuration they share, what became of them.

A launch has a folder while it runs, with a copy of ``conf/`` that all of its jobs are composed from
and a file for the outcome of each. What remains is ``outputs/<study>/launches/<time>.yaml``.
"""

import json
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from cct import config, launchers, signals, tuning
from cct.schema import one_line

VERBS = {  # what a command does with a run of this status
    "missing": "run",
    "interrupted": "resume",
    "failed": "resume",
    "running": "refuse",
    "finished": "skip",
}
GOOD = {"finished", "finished before"}


class Outcome(NamedTuple):
    """What became of a run: ``finished``, ``finished before``, ``failed``, ``refused``, ..."""

    status: str
    top1: float | None = None
    seconds: float | None = None
    reason: str = ""


Task = Callable[[config.Run, Path], Outcome]


def launch(jobs: list[config.Job], arguments: list[str], task: Task) -> int:
    """Run all jobs, whatever becomes of one of them, and print a table; return the exit code."""
    launcher = config.launcher_of(arguments)
    launchers.prepare(launcher, len(jobs))
    folder = _new_folder(Path("outputs", jobs[0].run.cfg.study, "launches").resolve())
    shutil.copytree(config.CONF, folder / "conf")
    began = {
        "command": ["train.py", *arguments],
        "time": datetime.now().isoformat(timespec="seconds"),
        "process": os.getpid(),
        "host": socket.gethostname(),
        "fail_fast": jobs[0].run.launch.fail_fast,
    }
    _write_launch(folder, began, jobs, {})
    process = os.getpid()

    def job(cfg: DictConfig) -> float | None:
        return attempt(cfg, task, apart=os.getpid() != process)

    code = 0
    sys.argv[1:] = launchers.directed(arguments, launcher, folder)  # for Hydra
    run_all = hydra.main(version_base="1.3", config_path=str(folder / "conf"), config_name="train")
    try:
        with launchers.attended(launcher, folder):
            run_all(job)()
    except SystemExit as end:  # of Hydra, where a launcher fails, or of fail_fast
        code = end.code if isinstance(end.code, int) else 1
    finally:
        outcomes = _outcomes(folder, jobs)
        _write_launch(folder, began, jobs, outcomes)
        print("\n".join(_table(jobs, outcomes)))
        logs, told = folder / "submitit", len([*folder.glob("job*.json")])
        if logs.exists() and told < len(jobs):
            print(f"what the jobs without an end have said: {os.path.relpath(logs)}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if any(
        outcomes.get(number, Outcome("not run")).status not in GOOD for number in range(len(jobs))
    ):
        return code or 1
    return code


def say_what_would_run(jobs: list[config.Job]) -> None:
    """Print what a command would do with each of its runs, and what that takes where known."""
    from cct import status

    print(f"{'would':<8} {'minutes':>7} {'MB':>7}  directory")
    seconds, size, unknown = 0.0, 0.0, 0
    for job in jobs:
        state = status.state_of(job.run.out)
        verb = VERBS[state.status]
        if job.run.launch.rerun and verb in ("skip", "resume"):
            verb = "rerun"
        takes = (0.0, 0.0)
        if verb == "resume":
            takes = None if state.left is None else (state.left, 0.0)
        elif verb in ("run", "rerun"):
            takes = status.usual(job.run.out.parent)
        unknown += takes is None
        seconds, size = seconds + (takes or (0, 0))[0], size + (takes or (0, 0))[1]
        shown = f"{takes[0] / 60:>7.1f} {takes[1] / 1e6:>7.1f}" if takes else f"{'?':>7} {'?':>7}"
        print(f"{verb:<8} {shown}  {job.run.out}")
    known = f", and {unknown} not known before one of their kind is finished" if unknown else ""
    print(f"{'':<8} {seconds / 60:>7.1f} {size / 1e6:>7.1f}  in all{known}")


def attempt(cfg: DictConfig, task: Task, apart: bool) -> float | None:
    """Run one job of a launch and note its outcome; only a signal or ``fail_fast`` goes further.

    Not even they do in a process ``apart`` from the launch, as a launcher would give up all jobs.
    """
    from cct.directory import is_owned, remove_empty
    from cct.record import RunFailed

    hydra_job = HydraConfig.get()
    out, folder = Path(hydra_job.runtime.output_dir), _folder_of(hydra_job)
    if apart:
        if (folder / "stop").exists():
            return None
        tuning.prepare()
        signals.listen(signal.SIGUSR2)  # of submitit, before a job's time is over
    asked = config.run_of(cfg, hydra_job)
    try:
        outcome = task(launchers.placed(asked, hydra_job), out)
    except (ValueError, OSError, RunFailed) as error:
        status = "failed" if isinstance(error, RunFailed) else "refused"
        outcome = Outcome(status, reason=one_line(error))
    except (signals.Interrupted, KeyboardInterrupt):
        _note(folder, hydra_job.job.num, Outcome("interrupted"))
        if not apart:
            raise
        remove_empty(out)
        return None
    except BaseException as error:  # whatever it is, the other jobs are to run
        outcome = Outcome("failed", reason=f"{type(error).__name__}: {one_line(error)}")
        if not is_owned(out):  # else it is another process's
            with (out / "train.log").open("a") as log:
                traceback.print_exception(error, file=log)
    # Out here the error is gone, and with it the frames that hold the failed run's data and model.
    _note(folder, hydra_job.job.num, outcome)
    if outcome.status in GOOD:
        return outcome.top1
    remove_empty(out)
    print(f"train.py: {outcome.reason}", file=sys.stderr)
    if asked.launch.fail_fast and apart:
        (folder / "stop").touch()
    elif asked.launch.fail_fast:
        sys.exit(1 if outcome.status == "failed" else 2)
    return None


def _new_folder(launches: Path) -> Path:
    """Make a folder named by the time, which no other launch has."""
    launches.mkdir(parents=True, exist_ok=True)
    time, number = f"{datetime.now():%Y-%m-%d_%H%M%S}", 0
    while True:
        folder = launches / (f"{time}.{number}" if number else time)
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _folder_of(hydra_job: Any) -> Path:
    """Return the folder of a job's launch, which its configuration was composed from."""
    (conf,) = (one.path for one in hydra_job.runtime.config_sources if one.provider == "main")
    return Path(conf).parent


def _note(folder: Path, number: int, outcome: Outcome) -> None:
    # In one step, as two jobs may end at once and the launch may be looking.
    temporary = folder / f"job{number}.tmp"
    temporary.write_text(json.dumps(outcome._asdict()))
    temporary.replace(folder / f"job{number}.json")


def _outcomes(folder: Path, jobs: list[config.Job]) -> dict[int, Outcome]:
    """Return what became of each job that has begun; of one that was killed its directory says."""
    from cct import status

    found = {}
    for number, job in enumerate(jobs):
        path = folder / f"job{number}.json"
        if path.exists():
            found[number] = Outcome(**json.loads(path.read_text()))
        elif status.state_of(job.run.out).status in ("interrupted", "running"):
            found[number] = Outcome("interrupted")
    return found


def _write_launch(
    folder: Path,
    began: dict[str, Any],
    jobs: list[config.Job],
    outcomes: dict[int, Outcome],
) -> None:
    listed = [
        {
            "overrides": job.overrides,
            "directory": str(job.run.out),
            **outcomes.get(number, Outcome("not run"))._asdict(),
        }
        for number, job in enumerate(jobs)
    ]
    path = folder.with_name(f"{folder.name}.yaml")
    OmegaConf.save(OmegaConf.create({**began, "jobs": listed}), path)


def _table(jobs: list[config.Job], outcomes: dict[int, Outcome]) -> list[str]:
    """Return the lines of a table with a row per job, those that failed with their reason."""
    lines = ["", f"{'status':<15} {'top-1':>6} {'minutes':>7}  directory"]
    counts: dict[str, int] = {}
    for number, job in enumerate(jobs):
        one = outcomes.get(number, Outcome("not run"))
        counts[one.status] = counts.get(one.status, 0) + 1
        top1 = "" if one.top1 is None else f"{one.top1:.2f}"
        minutes = "" if one.seconds is None else f"{one.seconds / 60:.2f}"
        place = os.path.join(job.run.name, f"seed{job.run.cfg.seed}")
        lines.append(f"{one.status:<15} {top1:>6} {minutes:>7}  {place}")
        if one.reason:
            lines.append(f"{'':<4}{one.reason}")
    studies = ", ".join(sorted({str(job.run.out.parents[1]) for job in jobs}))
    lines.append(f"{studies}: " + ", ".join(f"{n} {status}" for status, n in counts.items()))
    return lines
