"""Hydra's launchers that give jobs processes of their own: joblib's, and submitit's two.

What submitit writes of a job is in ``submitit/<its number>/`` in the folder of the launch: for
Slurm the number is Slurm's, on this machine it is that of a process.
"""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cct import config

SUBMITIT = ("LocalLauncher", "SlurmLauncher")
SECONDS = 5  # from one look at the scheduler's jobs to the next


def kind_of(launcher: Any) -> str:
    """Return the name of a launcher's class, of its settings in the configuration."""
    return str(launcher.get("_target_", "")).rpartition(".")[2]


def prepare(launcher: Any, jobs: int) -> None:
    """Refuse a launcher that cannot work here, and set what its processes inherit."""
    kind = kind_of(launcher)
    if kind == "SlurmLauncher":
        _check_slurm()
    if kind == "JoblibLauncher":
        _share_cores(launcher["n_jobs"], jobs)
    # Else they might find another copy of this code, such as an installed one.
    code = [str(config.CONF.parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, code))


def directed(arguments: list[str], launcher: Any, folder: Path) -> list[str]:
    """Return a command line with which submitit writes into the folder of a launch."""
    if kind_of(launcher) not in SUBMITIT:
        return arguments
    place = str(folder / "submitit" / "%j").replace("'", r"\'")
    # Beside another override, as argparse takes them from one place only.
    at = next(at for at, one in enumerate(arguments) if re.match(r"\+*hydra/launcher", one)) + 1
    return [*arguments[:at], f"hydra.launcher.submitit_folder='{place}'", *arguments[at:]]


@contextmanager
def attended(launcher: Any, folder: Path) -> Iterator[None]:
    """See to it that submitit waits for no job that is gone, and that no job outlives the launch.

    Submitit waits for what each job returns, and without Slurm's accounting it does so for ever.
    """
    kind = kind_of(launcher)
    if kind not in SUBMITIT:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_answer_for_lost, args=(kind, folder, over), daemon=True).start()
    try:
        yield
    except BaseException:
        (folder / "stop").touch()
        if left := _left(kind, folder):
            print("cancelling the jobs; once more does not wait for them", file=sys.stderr)
            _cancel(kind, left)
        while _left(kind, folder):
            time.sleep(1)
        raise
    finally:
        over.set()


def placed(asked: config.Run, hydra_job: Any) -> config.Run:
    """Return the run on the next of several GPUs, where joblib runs several jobs at a time."""
    import torch

    parallel = kind_of(hydra_job.launcher) == "JoblibLauncher"
    devices = torch.cuda.device_count() if parallel else 0
    if devices < 2 or asked.cfg.device not in ("auto", "cuda"):
        return asked
    cfg = asked.cfg.copy()
    cfg.device = f"cuda:{hydra_job.job.num % devices}"
    return asked._replace(cfg=cfg)


def _check_slurm() -> None:
    if not (shutil.which("sbatch") and shutil.which("srun")):
        raise ValueError("hydra/launcher=submitit_slurm: there is no sbatch or no srun here")
    answer = subprocess.run(["squeue", "--me"], capture_output=True, text=True)
    if answer.returncode:
        reason = " ".join(answer.stderr.split())[:200]
        raise ValueError(f"hydra/launcher=submitit_slurm: Slurm does not answer: {reason}")


def _share_cores(processes: int, jobs: int) -> None:
    """Give each of joblib's processes its share of the cores, where ``threads=auto``."""
    from joblib import effective_n_jobs

    from cct.machine import usable_cores

    processes = min(jobs, effective_n_jobs(processes))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // processes)))


def _unanswered(folder: Path) -> list[Path]:
    """Return the folders of the submitted jobs that have returned nothing yet."""
    jobs = (path.parent for path in (folder / "submitit").glob("*/*_submitted.pkl"))
    return [job for job in jobs if not any(job.glob("*_result.pkl"))]


def _left(kind: str, folder: Path) -> set[str]:
    """Return the numbers of the jobs that have returned nothing and are queued or run."""
    numbers = {job.name for job in _unanswered(folder)}
    if kind == "LocalLauncher":
        return {number for number in numbers if _is_alive(int(number))}
    command = ["squeue", "--me", "--array", "--noheader", "--format=%i"]
    answer = subprocess.run(command, capture_output=True, text=True)
    # Where Slurm is too busy to answer, all jobs may be alive.
    return numbers if answer.returncode else numbers & set(answer.stdout.split())


def _is_alive(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG) == (0, 0)  # it is a child of the launch
    except ChildProcessError:
        return False


def _answer_for_lost(kind: str, folder: Path, over: threading.Event) -> None:
    """Return nothing in the name of each job that was gone twice and had returned nothing."""
    from hydra.core.utils import JobReturn, JobStatus

    gone: Counter[Path] = Counter()
    while not over.wait(SECONDS):
        left = _left(kind, folder)
        gone.update(job for job in _unanswered(folder) if job.name not in left)
        for job in _unanswered(folder):
            if gone[job] >= 2:
                temporary = job / "lost.tmp"
                temporary.write_bytes(pickle.dumps(("success", JobReturn(status=JobStatus(1)))))
                temporary.rename(job / f"{job.name}_0_result.pkl")


def _cancel(kind: str, numbers: set[str]) -> None:
    if kind == "SlurmLauncher":
        subprocess.run(["scancel", *numbers])
        return
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGTERM)
