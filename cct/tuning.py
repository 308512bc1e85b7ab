"""What this process asks of its libraries, before torch is loaded.

What is set here makes training faster, or on CUDA exactly repeatable; it changes no formula.
"""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of mallopt's settings in <malloc.h>


def prepare() -> None:
    """Keep freed memory, in large pages, for the next step; let threads that wait give way soon."""
    # A thread that waits for another gives up spinning after some 10 ms by default: where several
    # programs share the cores, it keeps the other from its core meanwhile.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch asks Linux for pages of 2 MiB
    # CUDA's products then repeat exactly; to be said before the first of them.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    mallopt = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "mallopt", None)
    # The C library's; by default the largest tensors go back at every step. Older ones take 32 MiB
    # at most, and a trim threshold alone would make it worse.
    if mallopt and (mallopt(MMAP_THRESHOLD, 2**30) or mallopt(MMAP_THRESHOLD, 2**25)):
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
