"""``resume=<run directory>``: go on with the run recorded there, or make a longer one of it."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cct import checkpoint, config
from cct.record import RESULT_EVENTS, read_rows, read_summary

# What may be another in the part of a run that is still to come.
CHANGEABLE = re.compile(
    r"epochs|device|threads|deterministic|data\.(root|download|cache)|checkpoint\..*"
)


def asked_folder(overrides: list[str]) -> Path | None:
    """Return the directory that ``resume=`` names, if it names one."""
    named = [one.partition("=")[2] for one in overrides if re.match(r"\+*resume=", one)]
    if not named or named[-1].lower() in ("auto", "true", "false", ""):
        return None
    return Path(named[-1].strip("'\""))


def resumed(folder: Path, overrides: list[str]) -> tuple[config.Run, Path]:
    """Return the run recorded in a directory, with what the overrides change, and its directory.

    More epochs make another run: its directory lies beside the old one and starts with a copy of
    its state. ValueError for any other change, and for a directory that holds no run.
    """
    summary = read_summary(folder)
    if summary is None or not (folder / ".hydra" / "config.yaml").exists():
        raise ValueError(f"resume={folder}: there is no run in this directory")
    recorded: Any = OmegaConf.load(folder / ".hydra" / "config.yaml")
    changed = _changed(recorded, folder, [one for one in overrides if "resume=" not in one])
    usual = config.compose([])
    whole = _current(recorded, usual.cfg)
    for key, value in (changed | usual.launch._asdict()).items():
        OmegaConf.update(whole, key, value, force_add=True)
    cfg = config.check(whole)
    for key in config.Launch._fields:
        cfg.pop(key)
    choices = summary["choices"]
    name = f"{choices['mixer']}-{choices['pool']}-{config.digest(cfg)}"
    asked = config.Run(cfg, name, choices, usual.launch)
    if cfg.epochs == recorded.epochs:
        return asked._replace(name=summary["name"]), folder
    return asked, folder.parents[1] / name / folder.name


def _current(recorded: DictConfig, usual: DictConfig) -> DictConfig:
    """Return a configuration of an earlier version with the settings that came later."""
    cfg = recorded.copy()
    for key, value in config.NEUTRAL.items():
        if OmegaConf.select(cfg, key) is None:
            OmegaConf.update(cfg, key, value, force_add=True)
    for key in usual:
        if key not in cfg:
            cfg[key] = usual[key]
    return cfg


def _changed(recorded: DictConfig, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the settings that overrides change; ValueError for one that must not change."""
    for override in overrides:
        if override.partition("=")[0] in config.Launch._fields:
            raise ValueError(f"{override}: has no meaning with resume={folder}")
    if not overrides:
        return {}
    before: Any = OmegaConf.load(folder / ".hydra" / "overrides.yaml")
    was, asked = (_flat(config.compose([*before, *more]).cfg) for more in ([], overrides))
    here = _flat(recorded)
    changed = {
        key: value
        for key, value in asked.items()
        if value != was.get(key) and value != here.get(key)
    }
    forbidden = [key for key in changed if not CHANGEABLE.fullmatch(key)]
    if forbidden:
        listed = ", ".join(f"{key}={changed[key]} (there {here.get(key)})" for key in forbidden)
        raise ValueError(f"resume={folder}: this would be another run: {listed}")
    if changed.get("epochs", recorded.epochs) < recorded.epochs:
        raise ValueError(
            f"resume={folder}: epochs={changed['epochs']} is less than its {recorded.epochs}"
        )
    return changed


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    plain = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node
    if not isinstance(plain, dict):
        return {prefix[:-1]: plain}
    return {
        key: value
        for name, inner in plain.items()
        for key, value in _flat(inner, f"{prefix}{name}.").items()
    }


def state_to_begin_with(old: Path, out: Path, fingerprint: str) -> dict[str, Any] | None:
    """Return the state of a run that a longer one begins with, None where that one has begun.

    ValueError, before there is a directory for the longer one, if it cannot go on from there.
    """
    if any(out.glob("last*.pt")):
        return None
    summary = read_summary(old)
    if summary and summary["fingerprint"] != fingerprint:
        raise ValueError(f"resume={old}: that run was trained on other images")
    return _newest(old)


def start_longer(asked: config.Run, old: Path, state: dict[str, Any], out: Path) -> None:
    """Copy the records of a run to the directory of a longer one, which begins with its state.

    The state to go on from comes last, so that a copy cut short is made again.
    """
    import torch

    if any(out.glob("last*.pt")):  # begun meanwhile
        return
    summary, rows = read_summary(old), read_rows(old)
    assert summary
    epochs = int(state["epoch"])
    facts = {
        "name": asked.name,
        "seed": asked.cfg.seed,
        "versions": state["versions"],
        "config": OmegaConf.to_container(asked.cfg),
    }
    lines = "".join(json.dumps(row) + "\n" for row in rows[:epochs])
    for path in {*old.glob("events.out.tfevents.*")} - {*old.glob(RESULT_EVENTS)}:
        shutil.copy2(path, out)
    (out / "metrics.jsonl").write_text(lines)
    changed = {
        "name": asked.name,
        "configuration_hash": config.digest(asked.cfg),
        "left_out": config.left_out(asked.cfg),
        "epochs_asked": asked.cfg.epochs,
        "status": "interrupted",
        "epochs": epochs,
        "continued_from": {"directory": os.path.relpath(old, out), "epochs": epochs},
    }
    with checkpoint.replacing(out / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary | changed, indent=1) + "\n")
    if (old / "best.pt").exists():
        best = checkpoint.load(old / "best.pt", torch.device("cpu"))
        if best["epoch"] <= epochs:
            checkpoint.save(out / "best.pt", **best | facts)
    checkpoint.save(out / "last.pt", **state | facts)


def _newest(old: Path) -> dict[str, Any]:
    """Return the newest state of a run that can be read."""
    import torch

    damage = f"resume={old}: there is no last.pt to go on from"
    for path in checkpoint.Checkpoints(old, {}, every=1, keep=1).states():
        try:
            checkpoint.verify(path)
            return checkpoint.load(path, torch.device("cpu"))
        except ValueError as error:
            damage = str(error)
    raise ValueError(damage)
