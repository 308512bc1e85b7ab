"""Mistakes are refused in one line that names the key; names follow from the configuration."""

import json
import re

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from cct import config
from cct.config import options
from cct.schema import settings_of

DIGITS = "data=digits"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("epoch=3", "epoch=3: no such setting; did you mean epochs?"),
        ("+epoch=3", "epoch=3: no such setting; did you mean epochs?"),
        ("++typo=1", "typo=1: no such setting; there are: mixer, pool, model,"),
        ("mixr=dense", "mixr=dense: no such setting; did you mean mixer?"),
        ("mixer=densse", "mixer=densse: no such choice; there are "),
        ("pool=max", "pool=max: no such choice; there are "),
        ("model=cct_9", "model=cct_9: no such choice; there are "),
        ("mixer=[dense,random]", "mixer: exactly one choice is needed"),
        ("epochs=ten", "epochs=ten: must be a whole number at least 0 and at most"),
        ("epochs=2.5", "epochs=2.5: must be a whole number"),
        ("epochs=true", "epochs=True: must be a whole number"),
        ("augment=randaugment augment.operations=300", "augment.operations=300: must be a whole"),
        ("epochs=-1", "epochs=-1: must be a whole number at least 0"),
        ("epochs=1e12", "epochs=1000000000000.0: must be a whole number"),
        ("epochs=2000000000", "epochs=2000000000: must be a whole number at least 0 and at most"),
        ("epochs=null", "epochs=null: must be a whole number"),
        ("epochs=[1]", "epochs=[1]: must be a whole number"),
        ("epochs.x=1", "epochs={'x': 1}: must be a whole number"),
        ("epochs=1,2", "epochs=1,2: several values; add -m"),
        ("seed=-1", "seed=-1: must be a whole number at least 0"),
        ("batch_size=0", "batch_size=0: must be a whole number at least 1"),
        ("eval_batch_size=0", "eval_batch_size=0: must be a whole number at least 1"),
        ("label_smoothing=1", "label_smoothing=1: must be a number at least 0 and below 1"),
        ("label_smoothing=-0.1", "label_smoothing=-0.1: must be a number at least 0 and below 1"),
        ("precision=fp16", "precision=fp16: must be one of auto, fp32, bf16"),
        ("threads=many", "threads=many: must be a whole number"),
        ("threads=0", "threads=0: must be a whole number at least 1"),
        ("study=a/b", "study=a/b: only letters, digits"),
        ("study=..", "study=..: only letters, digits"),
        ("study='a b'", "study=a b: only letters, digits"),
        ("model.dim=0", "model.dim=0: must be a whole number at least 1"),
        ("model.dimm=3", "model.dimm=3: no such setting; did you mean model.dim?"),
        ("model.dropout=1.0", "model.dropout=1.0: must be a number at least 0 and below 1"),
        ("model.attention_dropout=2", "model.attention_dropout=2: must be a number"),
        ("model.stochastic_depth=-1", "model.stochastic_depth=-1: must be a number"),
        ("model.mlp_ratio=0", "model.mlp_ratio=0: must be a number above 0"),
        ("model.positional_embedding=sin", "must be one of learnable, sine, none"),
        ("model.classes=3", "model.classes=3: no such setting"),
        ("~model.dim", "model.dim: missing"),
        ("model._target_=cct.model.CCX", "model._target_=cct.model.CCX: "),
        ("optimizer.lr=nan", "optimizer.lr=nan: must be a number above 0"),
        ("optimizer.lr=inf", "optimizer.lr=inf: must be a number above 0"),
        ("optimizer.lr=0", "optimizer.lr=0: must be a number above 0"),
        ("optimizer.weight_decay=-1", "optimizer.weight_decay=-1: must be a number at least 0"),
        (
            "optimizer.betas=[0.9,2]",
            "optimizer.betas[1]=2: must be a number at least 0",
        ),
        ("optimizer.betas=0.9", "optimizer.betas=0.9: must be a list [...] of: a number"),
        (
            "schedule.warmup_epochs=-1",
            "must be a whole number at least 0",
        ),
        ("augment.flip=3", "augment.flip=3: must be true or false"),
        ("augment.random_erasing=1.5", "augment.random_erasing=1.5: must be a number at least 0"),
        ("augment=randaugment augment.magnitude=11", "augment.magnitude=11: must be a number at"),
        ("augment=randaugment augment.operations=0", "augment.operations=0: must be a whole"),
        ("augment.padding=-1", "augment.padding=-1: must be a whole number at least 0"),
        ("data.train_size=0", "data.train_size=0: must be a whole number at least 1"),
        ("data.root=x", "data.root=x: no such setting; there are: image_size, train_size,"),
        ("data.image_size=[32,x]", "data.image_size[1]=x: must be a whole number"),
        ("mixer.scores.std=1", "mixer.scores.std=1: no such setting; there are: none"),
        ("schedule=constant schedule.warmup_epochs=3", "no such setting; there are: none"),
        ("mix=mixup mix.mixup=0", "mix.mixup=0: must be a number above 0"),
        ("mix=cutmix mix.cutmix=inf", "mix.cutmix=inf: must be a number above 0"),
        ("mix=mixup mix.probability=1.1", "mix.probability=1.1: must be a number at least 0 and"),
        ("mix=mixup_cutmix mix.switch=-1", "mix.switch=-1: must be a number at least 0 and at"),
        ("mix=mixup mix.switch=0", "mix.switch=0: no such setting"),
        ("mix=mixup mix.off_epoch=1", "mix.off_epoch=1: must be a whole number at least 2"),
        ("epochs=5 mix=cutmix mix.off_epoch=6", "mix.off_epoch=6: has no meaning with epochs=5"),
        ("mix.mixup=1", "mix.mixup=1: no such setting; there are: none for this choice"),
        ("augment=none augment.flip=true", "augment.flip=True: no such setting"),
        ("mixer=random mixer.scores.std=-1", "mixer.scores.std=-1: must be a number at least 0"),
        ("mixer=factorized_random mixer.scores.rank=0", "mixer.scores.rank=0: must be a whole"),
        ("mixer=mixture mixer.components=[random,x]", "mixer.components: no part x; there are"),
        ("mixer=mixture mixer.parts.dense.scores.x=1", "dense is not among the components"),
        ("mixer=mixture mixer.parts.random.scores.std=x", "mixer.parts.random.scores.std=x: must"),
        ("pool.softmax_weight=a", "pool.softmax_weight=a: must be a number"),
        ("pool.axis=dim", "pool.axis=dim: must be one of tokens, batch or null"),
        ("epochs=[", "epochs=[: not a setting of the form key=value"),
        ("dense", "dense: not a setting of the form key=value"),
        ("mixer=null", "mixer=null: a choice is needed; there are dense,"),
        ("optimizer.lr=" + "9" * 400, "must be a number above 0"),
        ("model._partial_=false", "model._partial_=False: is true or absent"),
        (
            "model.mlp_ratio=1e308",
            "model.mlp_ratio=1e+308: must be a number above 0",
        ),
        ("augment.padding=1000", "augment.padding=1000: must be a whole number"),
        ("data.image_size=100000", "data.image_size=100000: must be a whole number"),
        ("study=" + "a" * 300, "only letters, digits"),
        ("mixer=mixture mixer.parts=null", "mixer.parts=null: must be"),
        ("mixer=mixture mixer.parts=3", "mixer.parts=3: must be"),
        ("mixer=mixture mixer.components=[[a]]", "mixer.components: no part ['a']; there are"),
        ("mixer=mixture mixer.components=3", "mixer.components=3: must be a list"),
        ("mixer=3", "Config group override must be a string"),
        ("model.depth=1 model.stochastic_depth=0.3", "has no meaning with model.depth=1"),
        ("model.dim=99999", "model.dim=99999: must be a whole number at least 1 and at most 16384"),
        ("model.depth=9999", "model.depth=9999: must be a whole number at least 1 and at most 256"),
        ("model.kernel_size=1000000", "model.kernel_size=1000000: must be a whole number"),
        ("rerun=true resume=true", "rerun=true: has no meaning with resume=true"),
        ("lr=1e-3", "lr=0.001: no such setting; did you mean optimizer.lr?"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(overrides: str, line: str):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the parameters hold the match
        config.compose([DIGITS, *re.split(r" (?=[a-z_.]+=)", overrides)])
    assert line in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_sweep_expands_to_its_jobs():
    runs = config.jobs_of(
        ["-m", DIGITS, "mixer=dense,random", "pool=baseline,softmax", "seed=range(0,3)"]
    )
    assert [job.overrides for job in runs[2:4]] == [
        ["mixer=dense", "pool=baseline", "seed=2"],
        ["mixer=dense", "pool=softmax", "seed=0"],
    ]
    assert len({job.run.out for job in runs}) == 12
    assert [job.run.cfg.seed for job in runs] == [0, 1, 2] * 4
    assert len(config.distinct(runs)) == 4  # one per set of seeds
    assert len(config.jobs_of(["-m", DIGITS, "mixer=glob(*random)"])) == 3
    for empty in ("seed=range(0,0)", "seed=99999999999,0"):
        with pytest.raises(ValueError, match=r"nothing to run|seed=9+: must be"):
            config.jobs_of(["-m", DIGITS, empty])
    with pytest.raises(ValueError, match="fail_fast=true: has a meaning with -m only"):
        config.jobs_of([DIGITS, "fail_fast=true"])
    with pytest.raises(ValueError, match="mixer=densse"):
        config.jobs_of(["-m", DIGITS, "mixer=dense,densse"])
    with pytest.raises(ValueError, match=r"seed=-1"):
        config.jobs_of(["-m", DIGITS, "seed=0,-1"])


def test_names_are_those_of_the_first_release():
    """A setting that is added later must not rename the runs that people already have."""
    names = {
        "augment=crop_flip": "self_attention-baseline-a3f6931b03",
        "augment=crop_flip mixer=dense pool=softmax_plus_x": "dense-softmax_plus_x-e999d5e3f9",
        "augment=crop_flip mixer=mixture model=cct_7_3x1": "mixture-baseline-5edbdc7ecb",
        "": "self_attention-baseline-82d48c1f29",  # of autoaugment, which became the default
        "mixer=dense pool=softmax_plus_x": "dense-softmax_plus_x-061b4fefee",
        "mixer=mixture model=cct_7_3x1": "mixture-baseline-ec8b1193dd",
        "data=digits": "self_attention-baseline-44a05526d8",
    }
    for overrides, name in names.items():
        assert config.compose(overrides.split())[1] == name


def test_a_setting_that_came_later_is_in_the_name_only_where_it_does_something():
    plain = config.compose(["augment=crop_flip"])[1]
    for override in ("augment.random_erasing=0", "compile=false", "mix=none"):
        assert config.compose(["augment=crop_flip", override])[1] == plain
    for override in ("augment.random_erasing=0.1", "compile=true", "mix=mixup"):
        assert config.compose(["augment=crop_flip", override])[1] != plain


@pytest.mark.parametrize(
    "override",
    ["seed=3", "study=x", "device=cpu", "threads=1", "eval_batch_size=7"],
)
def test_what_does_not_change_the_numbers_is_not_in_the_name(override: str):
    plain, other = config.compose([DIGITS]), config.compose([DIGITS, override])
    assert other.name == plain.name
    assert config.left_out(other.cfg) != config.left_out(plain.cfg)


def test_where_the_data_lie_is_not_in_the_name():
    moved = config.compose(["data.root=/elsewhere", "data.download=false"])[1]
    assert moved == config.compose([])[1]


def test_where_pixels_are_kept_is_not_in_the_name():
    folder = "self_attention-baseline-8d4676bb0a"  # as before there was a cache
    for override in ("data.cache=/elsewhere", "data.cache=null"):
        assert config.compose(["data=folder", "augment=crop_flip", override]).name == folder
    with pytest.raises(ValueError, match=r"data\.cache=False: must be text or null"):
        config.compose(["data=folder", "data.cache=false"])


def test_the_evaluation_batch_is_in_the_name_when_pooling_looks_across_it():
    pool = ["pool=softmax_batch", DIGITS]
    asked = config.compose([*pool, "eval_batch_size=7"])
    assert asked.name != config.compose(pool).name
    assert "eval_batch_size" not in config.left_out(asked.cfg)


def test_a_value_that_is_the_default_does_not_rename():
    assert config.compose(["optimizer.lr=5e-4", "epochs=200"])[1] == config.compose([])[1]
    assert (
        config.compose([DIGITS, "optimizer.lr=1"])[1]
        == (config.compose([DIGITS, "optimizer.lr=1.0"])[1])
    )


def test_every_other_setting_renames():
    base = ["mixer=random", DIGITS]
    changes = ["epochs=3", "batch_size=3", "label_smoothing=0", "precision=fp32"]
    changes += ["model.dim=64", "mixer.scores.std=1", "pool=softmax", "augment=none"]
    changes += ["optimizer.lr=1", "schedule.warmup_epochs=1", "data.train_size=10"]
    names = [config.compose([*base, change])[1] for change in ["epochs=200", *changes]]
    assert len(set(names)) == len(names)


def test_names_can_be_pasted_anywhere():
    for mixer in options("mixer"):
        for pool in options("pool"):
            name = config.compose([f"mixer={mixer}", f"pool={pool}"])[1]
            assert re.fullmatch(r"[a-z_0-9-]+", name)
            assert len(name) < 64


def test_data_bring_their_own_recipe_unless_the_command_line_says_otherwise():
    digits = config.compose([DIGITS])[0]
    assert (digits.batch_size, digits.optimizer.lr, digits.augment.flip) == (64, 1e-3, False)
    by_hand = config.compose([DIGITS, "batch_size=9", "optimizer.lr=2", "augment=crop_flip"])[0]
    assert (by_hand.batch_size, by_hand.optimizer.lr, by_hand.augment.flip) == (9, 2.0, True)


def test_a_mixture_keeps_only_the_parts_it_mixes():
    cfg = config.compose(["mixer=mixture", "mixer.components=[dense,random]"])[0]
    assert sorted(cfg.mixer.parts) == ["dense", "random"]
    std = config.compose(["mixer=mixture", "mixer.parts.random.scores.std=3"])[0]
    assert std.mixer.parts.random.scores.std == 3.0


def test_no_hyperparameter_lives_only_in_code():
    """Every keyword-only argument of everything a yaml names is in that yaml."""
    for group in ("mixer", "pool", "model", "augment", "mix", "optimizer", "schedule", "data"):
        for option in options(group):
            cfg = config.compose([f"{group}={option}"])[0]  # refuses what is missing
            target = get_object(cfg[group]._target_)
            for setting in settings_of(target):
                assert setting in cfg[group]


def test_the_checked_configuration_is_plain_json():
    cfg = config.compose(["mixer=mixture", DIGITS])[0]
    assert json.loads(json.dumps(OmegaConf.to_container(cfg))) == OmegaConf.to_container(cfg)
