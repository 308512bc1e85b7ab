"""What a run's numbers depend on beside its configuration, for its summary."""

from typing import TYPE_CHECKING, Any

from cct import config

if TYPE_CHECKING:
    from cct.build import Built
    from cct.data import Data

# Of these two runs may differ and yet have one name; their numbers are then not the same bits.
LIMITS = (
    "device_name",
    "threads",
    "precision",
    "deterministic",
    "compile",
    "versions",
    "git_commit",
)


def facts_of(asked: config.Run, built: "Built", data: "Data", device: Any) -> dict[str, Any]:
    """Return what the summary says about a run from its start on, for programs and people."""
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
        "epochs_asked": cfg.epochs,
        **limits_of(cfg, device),
    }


def limits_of(cfg: Any, device: Any) -> dict[str, Any]:
    """Return what has to be equal for two runs of one configuration to be equal bit for bit."""
    import torch

    from cct import machine, record

    return {
        "device": str(device),
        "device_name": machine.device_name(device),
        "threads": torch.get_num_threads(),
        "precision": machine.resolve_precision(cfg.precision, device),
        "deterministic": machine.resolve_deterministic(cfg.deterministic, device),
        "compile": cfg.compile,
        "versions": record.versions(),
        "git_commit": record.git_commit(),
    }


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    """Return in words how the limits of an earlier run differ; empty where they do not."""
    found = []
    for key in LIMITS:
        was, is_now = earlier.get(key, now[key]), now[key]
        if isinstance(was, dict) and isinstance(is_now, dict):
            changed = [name for name in was if was[name] != is_now.get(name, was[name])]
            found += [f"{name} {was[name]}, now {is_now[name]}" for name in changed]
        elif was != is_now:
            found.append(f"{key} {_short(was)}, now {_short(is_now)}")
    return "; ".join(found)


def _short(value: Any) -> str:
    text = str(value)
    # Of a commit's hash the first digits, with the mark of changed files.
    return f"{text[:7]}{'+' * text.endswith('+')}" if len(text) >= 40 else text
