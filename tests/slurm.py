"""A Slurm of one node on this machine, for as long as a test needs it. Only root can start it."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why there can be no Slurm here; nothing where it can be started."""
    absent = [name for name in PROGRAMS if not _find(name)]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian's slurm-wlm and munge)"
    return "" if os.getuid() == 0 else "only root can start slurmd"


@contextmanager
def started(folder: Path) -> Iterator[dict[str, str]]:
    """Start Slurm with its files in an empty folder; yield the variable its commands need."""
    settings = {"SLURM_CONF": str(folder / "slurm.conf")}
    environment = {**os.environ, **settings}
    conf = CONF.format(
        host=socket.gethostname().partition(".")[0],
        folder=folder,
        cores=os.cpu_count(),
        controller=_free_port(),
        node=_free_port(),
    )
    (folder / "slurm.conf").write_text(conf)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "seed-file", "pid-file")]
    munge += [f"--key-file={folder}/key", f"--log-file={folder}/munge.log", "--foreground"]
    commands = [["munged", "--force", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]]
    daemons = []
    try:
        for program, *arguments in commands:
            with (folder / f"{program}.out").open("w") as out:
                daemon = subprocess.Popen(
                    [_find(program), *arguments], env=environment, stdout=out, stderr=out
                )
            daemons.append(daemon)
            if program == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), daemons, folder)
        _wait(lambda: _says("idle", environment), daemons, folder)
        yield settings
    finally:
        if len(daemons) == len(commands):  # jobs are left where a test has failed
            subprocess.run(["scancel", "--me"], env=environment)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=30)


def _find(program: str) -> str:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _says(state: str, environment: dict[str, str]) -> bool:
    command = ["sinfo", "--noheader", "--format=%T"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    return answer.stdout.strip() == state


def _wait(ready: Callable[[], bool], daemons: list[subprocess.Popen], folder: Path) -> None:
    end = time.monotonic() + 30
    while not ready():
        if time.monotonic() > end or any(daemon.poll() is not None for daemon in daemons):
            logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.[lo][ou][gt]"))
            raise RuntimeError(f"Slurm does not start: {logs}")
        time.sleep(0.2)
