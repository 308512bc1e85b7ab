"""The configuration of a run: composed by Hydra, checked whole, and named.

The schema of a group is the signature of what its yaml names (``cct/schema.py``), that of the top
level is ``Settings``. Every mistake is a ValueError of one line that names the key and the value.
"""

import hashlib
import json
import os
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, get_type_hints

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cct.limits import BelowOne, Count, Whole
from cct.schema import check_mapping, check_targets, one_line, target_of

CONF = Path(__file__).resolve().parents[1] / "conf"
Node = Callable[..., Any]  # a mapping whose _target_ is called with the rest of it

# Under which names Hydra's own part, and the logging in it, says what is called, and of whom.
HYDRA_CALLS = ("_target_", "class", "()")
HYDRA_PACKAGES = ("hydra", "hydra_plugins", "logging", "colorlog")


class StreamSeeds:
    """The keys of ``seeds``."""

    init: Whole | None
    order: Whole | None
    augment: Whole | None
    dropout: Whole | None


class Settings:
    """The keys at the top of ``conf/train.yaml``."""

    mixer: Node
    pool: Node
    model: Node
    data: Node
    augment: Node
    mix: Node
    optimizer: Node
    schedule: Node
    checkpoint: Node
    epochs: Whole
    batch_size: Count
    eval_batch_size: Count
    seed: Whole
    seeds: StreamSeeds
    label_smoothing: BelowOne
    device: str
    precision: Literal["auto", "fp32", "bf16"]
    threads: Count | Literal["auto"]
    compile: bool
    deterministic: bool | Literal["auto"]
    study: str
    resume: bool | str
    rerun: bool
    dry_run: bool
    fail_fast: bool


class Launch(NamedTuple):
    """How a command treats the runs it names; no part of their configuration."""

    resume: bool | str
    rerun: bool
    dry_run: bool
    fail_fast: bool


# What does not change a run's numbers, and so not its name. See ``identity`` for the exception.
UNNAMED = (
    "seed",
    "study",
    "device",
    "threads",
    "deterministic",
    "checkpoint",
    "data.root",
    "data.download",
    "data.cache",
    "eval_batch_size",
)

# Settings that came later, with the value that means what was done before there was the setting.
NEUTRAL = {
    "augment.random_erasing": 0.0,
    "mix": {"_target_": "cct.augment.mix.NoMix"},
    "compile": False,
    "seeds": dict.fromkeys(get_type_hints(StreamSeeds)),
}


class Run(NamedTuple):
    """A checked configuration, the name of its run, and the option chosen in each group."""

    cfg: DictConfig
    name: str
    choices: dict[str, str]
    launch: Launch

    @property
    def out(self) -> Path:
        """The directory that a run has unless it is given another one."""
        return Path("outputs", self.cfg.study, self.name, f"seed{self.cfg.seed}")


def options(group: str) -> list[str]:
    """Return the options of a group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose(overrides: list[str], extra: str | None = None) -> Run:
    """Return the run that these overrides ask for; ``extra`` is a further configuration folder."""
    search = [f"hydra.searchpath=[file://{Path(extra).resolve()}]"] if extra else []
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            forced = [_force(override) for override in overrides]
            whole = hydra_compose("train", [*search, *forced], return_hydra_config=True)
    except MissingConfigException as mistake:
        group, _, choice = str(mistake.missing_cfg_file).rpartition("/")
        choices = ", ".join(mistake.options or []) or "none"
        if group == "hydra/launcher":
            choices += "; pip install -e .[launchers] adds those of joblib and submitit"
        raise ValueError(f"{group}={choice}: no such choice; there are {choices}") from mistake
    except (HydraException, OmegaConfBaseException) as mistake:
        raise ValueError(one_line(mistake)) from mistake
    check_targets(OmegaConf.to_container(whole.hydra), "hydra", HYDRA_CALLS, HYDRA_PACKAGES)
    run = run_of(whole, whole.hydra)
    _refuse_idle(run.cfg, overrides)
    return run


def run_of(cfg: DictConfig, hydra: Any) -> Run:
    """Return the run of a composed configuration and Hydra's record of how it was composed."""
    groups = [key for key, kind in get_type_hints(Settings).items() if kind == Node]
    for group in groups:
        if group not in hydra.runtime.choices:
            raise ValueError(f"{group}: exactly one choice is needed, there is no list of them")
    choices = {group: hydra.runtime.choices[group] for group in groups}
    checked = check(cfg)
    launch = Launch(**{key: checked.pop(key) for key in Launch._fields})
    if launch.rerun and launch.resume != "auto":
        raise ValueError(f"rerun=true: has no meaning with resume={str(launch.resume).lower()}")
    name = f"{choices['mixer']}-{choices['pool']}-{digest(checked)}"
    return Run(checked, name, choices, launch)


class Job(NamedTuple):
    """One run of a command, and what on the command line makes it differ from the others."""

    overrides: list[str]
    run: Run


def parsed(arguments: list[str]) -> Namespace:
    """Return Hydra's options and the overrides of a command line."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ValueError(f"{message} (options such as -m stand before or after all settings)")

    parser.error = refuse  # which would print how to use it, in many lines
    return parser.parse_args(arguments)


def is_sweep(arguments: list[str]) -> bool:
    asked = parsed(arguments)
    return bool(asked.multirun) or "hydra.mode=MULTIRUN" in asked.overrides


def jobs_of(arguments: list[str]) -> list[Job]:
    """Return each run that a command line asks for, in the order Hydra runs them.

    Nothing for a command that only asks Hydra for help. ValueError if one of them cannot be.
    """
    asked = parsed(arguments)
    if asked.help or asked.hydra_help or asked.info:
        return []
    if asked.config_path or asked.config_name not in (None, "train"):
        raise ValueError("--config-path, --config-name: the one configuration is conf/train.yaml")
    for override in asked.overrides:
        if re.match(r"\+*hydra\.(run\.dir|sweep\.(dir|subdir))=", override):
            raise ValueError(
                f"{override}: a run's directory has its name; study= chooses the folder"
            )
    if not is_sweep(arguments):
        run = compose(asked.overrides, asked.config_dir)
        if run.launch.fail_fast:
            raise ValueError("fail_fast=true: has a meaning with -m only")
        return [Job([], run)]
    return _composed(expand(asked.overrides), asked.config_dir)


def launcher_of(arguments: list[str]) -> dict[str, Any]:
    """Return the settings of the Hydra launcher that a command line chooses."""
    overrides = parsed(arguments).overrides
    chosen = [one for one in overrides if re.match(r"\+*hydra[./]launcher", one)]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = hydra_compose("train", chosen, return_hydra_config=True)
    return dict(OmegaConf.to_container(whole.hydra.launcher) or {})  # pyright: ignore


SEED = re.compile(r"seed=\d{1,9}")


def distinct(jobs: list[Job]) -> list[DictConfig]:
    """Return the configurations of jobs that differ by more than their seed."""
    return [*{job.run.out.parent: job.run.cfg for job in jobs}.values()]


def _composed(jobs: list[list[str]], extra: str | None) -> list[Job]:
    """Compose once for all seeds, which takes a tenth of a second."""
    common = set(jobs[0]).intersection(*jobs)
    runs: dict[tuple[str, ...], Run] = {}
    refused: dict[str, list[str]] = {}
    found = []
    for job in jobs:
        own = [override for override in job if override not in common]
        seedless = tuple(override for override in job if not SEED.fullmatch(override))
        try:
            run = runs[seedless] = runs.get(seedless) or compose(job, extra)
        except ValueError as mistake:
            refused.setdefault(str(mistake), []).append(" ".join(own))
            continue
        for seed in filter(SEED.fullmatch, job):
            cfg = run.cfg.copy()
            cfg.seed = int(seed.partition("=")[2])
            run = run._replace(cfg=cfg)
        found.append(Job(own, run))
    for mistake, where in refused.items():
        members = f" (of {len(jobs)} jobs in: {', '.join(where)})" if any(where) else ""
        raise ValueError(f"{mistake}{members}")
    return found


def expand(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of each job of a sweep, in the order Hydra runs them."""
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
            jobs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
    except HydraException as mistake:
        raise ValueError(f"-m: {one_line(mistake)}") from mistake
    if not jobs:
        raise ValueError("-m: one of the lists is empty, so there is nothing to run")
    return jobs


def _force(override: str) -> str:
    """Let an unknown key through Hydra, so that ``check`` answers it like every other mistake."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException as mistake:
        reason = one_line(mistake).partition(" See https")[0]
        raise ValueError(f"{override}: not a setting of the form key=value: {reason}") from mistake
    if parsed.is_sweep_override():
        raise ValueError(f"{override}: several values; add -m to run one after the other")
    key = parsed.key_or_group
    is_group = (CONF / key).is_dir() or "/" in key or "@" in override.partition("=")[0]
    if is_group and parsed.value() is None and not parsed.is_delete():
        raise ValueError(f"{override}: a choice is needed; there are {', '.join(options(key))}")
    plain = not override.startswith(("+", "~")) and not is_group and not key.startswith("hydra.")
    return f"++{override}" if plain else override


def _refuse_idle(cfg: DictConfig, overrides: list[str]) -> None:
    """Refuse a setting given by hand that would do nothing beside the other choices."""
    unused = getattr(target_of(cfg.mixer._target_, "mixer._target_"), "unused", ())
    idle = {f"model.{key}": "this mixer, which does not use it" for key in unused}
    if cfg.model.depth == 1:
        idle["model.stochastic_depth"] = "model.depth=1, as it is 0 in the first block"
    if (cfg.mix.get("off_epoch") or 0) > cfg.epochs:
        idle["mix.off_epoch"] = f"epochs={cfg.epochs}, all of which come before it"
    for override in overrides:
        key = override.lstrip("+").partition("=")[0]
        part = re.match(r"mixer\.parts\.(\w+)", key)
        if part and part[1] not in cfg.mixer.get("components", []):
            raise ValueError(f"{override}: {part[1]} is not among the components of the mixture")
        if key in idle:
            raise ValueError(f"{override}: has no meaning with {idle[key]}")


def check(cfg: DictConfig) -> DictConfig:
    """Return the configuration without Hydra's own part, every value of its declared type."""
    try:
        plain = OmegaConf.to_container(
            OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"]), resolve=True
        )
    except OmegaConfBaseException as mistake:
        raise ValueError(one_line(mistake)) from mistake
    assert isinstance(plain, dict)
    if isinstance(plain.get("mixer"), dict):
        _keep_components(plain["mixer"])
    checked = check_mapping(plain, get_type_hints(Settings, include_extras=True), "")
    if not re.fullmatch(r"\w[\w.-]{,99}", checked["study"], re.ASCII):
        raise ValueError(
            f"study={checked['study']}: only letters, digits, _ - and . since it names a folder"
        )
    return OmegaConf.create(checked)


def _keep_components(mixer: dict) -> None:
    """Drop those of a mixture's possible parts that are not among its components."""
    components, parts = mixer.get("components"), mixer.get("parts")
    if not isinstance(components, list) or not isinstance(parts, dict):
        return  # not a mixture, or one whose mistake is found with all others
    for part in components:
        if part not in [*parts]:
            raise ValueError(f"mixer.components: no part {part}; there are {', '.join(parts)}")
    mixer["parts"] = {part: parts[part] for part in components}


def identity(cfg: DictConfig) -> dict:
    """Return what makes two runs the same but for their seed: the settings without ``UNNAMED``.

    Where pooling looks across the batch, the evaluation batch size is part of it. Settings with
    their ``NEUTRAL`` value are not, so that the runs of earlier versions keep their names; nor is
    where in the code a class stands.
    """
    plain = OmegaConf.to_container(cfg)
    assert isinstance(plain, dict)
    neutral = [key for key, value in NEUTRAL.items() if OmegaConf.select(cfg, key) == value]
    for key in (*UNNAMED, *neutral):
        if key == "eval_batch_size" and looks_across_batch(cfg):
            continue
        group, _, name = key.rpartition(".")
        (plain[group] if group else plain).pop(name, None)
    return _without_places(plain)


def _without_places(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    kept = {key: _without_places(value) for key, value in node.items() if key != "_partial_"}
    return kept | {key: kept[key].rpartition(".")[2] for key in kept if key == "_target_"}


def seeds_of(cfg: DictConfig) -> Any:
    """Return the ``Seeds`` of a run: each its own where one is given, else the run's."""
    from cct.randomness import Seeds  # imports torch

    own = {name: seed for name, seed in cfg.seeds.items() if seed is not None}
    return Seeds(**{**dict.fromkeys(cfg.seeds, cfg.seed), **own})


def looks_across_batch(cfg: DictConfig) -> bool:
    """Whether an image's result depends on the images that are evaluated with it."""
    return cfg.pool.get("axis") == "batch"


def left_out(cfg: DictConfig) -> dict:
    """Return the settings that ``identity`` leaves out, with their values."""
    kept = identity(cfg)
    values = {key: OmegaConf.select(cfg, key) for key in UNNAMED if key not in kept}
    return {
        key: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        for key, value in values.items()
        if value is not None
    }


def digest(cfg: DictConfig) -> str:
    """Return the hash of a checked configuration's ``identity``: ten hexadecimal digits."""
    canonical = json.dumps(identity(cfg), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def _run_name(*, _root_: DictConfig) -> str:
    return run_of(_root_, _root_.hydra).name


def _user_cache() -> str:
    place = os.environ.get("XDG_CACHE_HOME", "")
    return place if os.path.isabs(place) else "~/.cache"  # so its standard says


OmegaConf.register_new_resolver("run_name", _run_name, replace=True)
OmegaConf.register_new_resolver("user_cache", _user_cache, replace=True)


def write(out: Path, cfg: DictConfig, hydra: Any) -> None:
    """Write to ``.hydra`` what Hydra itself would write before the directory is this run's.

    ``hydra`` is None for a run that is not Hydra's job.
    """
    (out / ".hydra").mkdir(exist_ok=True)
    OmegaConf.save(cfg, out / ".hydra" / "config.yaml")
    if hydra is not None:
        kept = [one for one in hydra.overrides.task if one.partition("=")[0] not in Launch._fields]
        OmegaConf.save(hydra, out / ".hydra" / "hydra.yaml")
        OmegaConf.save(OmegaConf.create(kept), out / ".hydra" / "overrides.yaml")
