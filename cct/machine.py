"""What ``device``, ``precision`` and ``threads`` mean on this machine."""

import math
import os
from pathlib import Path

import torch

from cct.schema import one_line

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # "<microseconds or max> <of how many>"
DEVICES = "auto, cpu, cuda, cuda:<number>, mps"


def resolve_device(name: str) -> torch.device:
    """Return the device of this name; ``auto`` is the best there is. ValueError if it is absent."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    kind, _, number = name.partition(":")
    if kind not in {"cpu", "cuda", "mps"} or (
        ":" in name and not (kind == "cuda" and number.isdecimal())
    ):
        raise ValueError(f"device={name}: choices are {DEVICES}")
    if kind == "cuda" and not cuda:
        raise ValueError(f"device={name}: no CUDA device can be used here; choices are auto, cpu")
    if number and int(number) >= torch.cuda.device_count():
        raise ValueError(
            f"device={name}: the last CUDA device is cuda:{torch.cuda.device_count() - 1}"
        )
    if kind == "mps" and not mps:
        raise ValueError(f"device={name}: no Apple GPU can be used here; choices are auto, cpu")
    return torch.device(name)


def resolve_precision(name: str, device: torch.device) -> str:
    """Return fp32 or bf16; ``auto`` is bf16 on CUDA and fp32 elsewhere."""
    if name == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return name


def resolve_deterministic(wanted: bool | str, device: torch.device) -> bool:
    """Whether torch is to take only operations that repeat exactly; ``auto`` is so on a CPU."""
    return device.type == "cpu" if wanted == "auto" else bool(wanted)


def make_deterministic(wanted: bool) -> None:
    """Let torch take only operations that give the same bits each time, or the fastest ones.

    An operation that has no such form then raises RuntimeError. Attention on CUDA is written out,
    as the gradients of its fused kernels differ from time to time.
    """
    torch.use_deterministic_algorithms(wanted)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore
    torch.backends.cudnn.deterministic = wanted
    if torch.cuda.is_available():
        for allow in (
            torch.backends.cuda.enable_flash_sdp,
            torch.backends.cuda.enable_mem_efficient_sdp,
            torch.backends.cuda.enable_cudnn_sdp,
        ):
            allow(not wanted)


def allow_tf32(allowed: bool) -> None:
    """Let CUDA's float32 products round their factors to 10 bits, as bf16 runs may."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def require_compiler(device: torch.device) -> None:
    """Compile almost nothing; ValueError if that fails.

    Only trying finds out: a compiler of C++ or Triton, headers and a place to write to are needed.
    """
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except Exception as failure:  # whatever the compiler trips over
        reason = one_line(failure).partition(" Set TORCH")[0][:200]
        raise ValueError(f"compile=true: nothing can be compiled here: {reason}") from failure


def usable_cores() -> int:
    """Return how many cores this process may keep busy: its affinity, limited by its cgroup."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if CGROUP_LIMIT.is_file():
        quota, _, period = CGROUP_LIMIT.read_text().partition(" ")
        if quota != "max":
            return max(1, min(cores or 1, math.ceil(int(quota) / int(period))))
    return cores or 1


def resolve_threads(threads: int | str) -> int:
    """Return the number of threads; ValueError for more than there are usable cores.

    ``auto`` is all of them, or fewer where OMP_NUM_THREADS says so, as it does in the workers of a
    sweep whose launcher runs several jobs at a time.
    """
    usable = usable_cores()
    if threads == "auto":
        wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # outer, inner
        return min(usable, int(wanted)) if wanted.isdecimal() and int(wanted) else usable
    if int(threads) > usable:
        raise ValueError(f"threads={threads}: this process may use {usable}")
    return int(threads)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
