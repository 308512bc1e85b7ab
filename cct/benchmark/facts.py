"""What the figures of a benchmark depend on, and what else uses the machine."""

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from cct.benchmark.bench import Asked
from cct.machine import device_name, usable_cores


def machine_facts(asked: Asked) -> dict[str, Any]:
    """Return what the figures depend on, and what else uses the machine."""
    busy = [f"{name} {cores:.1f}" for cores, name in busy_processes()]
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "threads": asked.threads,
        "device": device_name(torch.device(asked.device)),
        "precision": asked.precision,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "preloaded": os.environ.get("LD_PRELOAD", "nothing"),
        "also busy": ", ".join(busy) or "nothing",
    }


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def busy_processes(seconds: float = 1.0) -> list[tuple[float, str]]:
    """Return the other processes that keep a tenth of a core or more busy, and how many cores.

    Nothing where the system does not tell.
    """
    before, began = _processor_seconds(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = _processor_seconds(), time.monotonic() - began
    found = [
        ((used - before[key][0]) / elapsed, name)
        for key, (used, name) in after.items()
        if key in before and key != os.getpid()
    ]
    return sorted((one for one in found if one[0] >= 0.1), reverse=True)


def _processor_seconds() -> dict[int, tuple[float, str]]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        user, system = tail.split()[11:13]
        used = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        found[int(path.parent.name)] = used, head.partition("(")[2]
    return found
