"""What is computed in a faster way equals its plain form: outputs, losses and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cct import config, plain
from cct.build import build_model
from cct.config import options
from cct.data import Data
from cct.model import CCT
from cct.sources import Synthetic
from tests.conftest import TINY


@pytest.fixture(scope="module")
def data() -> Data:
    return Synthetic(classes=10, image_size=16, train_size=20, test_size=20).load()


def tiny(*overrides: str) -> CCT:
    cfg = config.compose([*TINY, "model.heads=2", *overrides]).cfg
    model = build_model(cfg, 10, (16, 16))
    for parameter in model.parameters():  # larger than initially, so that attention is not uniform
        nn.init.normal_(parameter)
    return model.double()


def gradients(model: CCT, data: Data, images: torch.Tensor) -> dict[str, torch.Tensor]:
    loss = F.cross_entropy(model(images), data.train.labels)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **found}


@pytest.mark.parametrize("mixer", options("mixer"))
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_model_equals_its_plain_form(data, mixer, mode):
    model = tiny(f"mixer={mixer}", "model.attention_dropout=0", "model.stochastic_depth=0")
    other = plain.plain(model)
    images, plain_images = (
        data.normalize(data.train.images),
        plain.normalize(data, data.train.images),
    )
    torch.testing.assert_close(images, plain_images, atol=1e-6, rtol=1e-5)
    images = plain_images.contiguous(memory_format=torch.channels_last)  # the same in all digits
    found = gradients(getattr(model, mode)(), data, images.double())
    expected = gradients(getattr(other, mode)(), data, plain_images.double())
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=1e-8, rtol=1e-8, msg=name)


def test_the_plain_form_is_another_way_and_leaves_the_model_as_it_is(data):
    model = tiny("mixer=random").eval()
    other = plain.plain(model)
    for kind, name, form in plain.FORMS:
        ours = [part for part in model.modules() if isinstance(part, kind)]
        theirs = [part for part in other.modules() if isinstance(part, kind)]
        assert ours
        assert all(getattr(part, name).__func__ is not form for part in ours)
        assert all(getattr(part, name).__func__ is form for part in theirs)
    assert all(
        one.data_ptr() != two.data_ptr()
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    )
    model.to(memory_format=torch.channels_last)  # weights decide as images do
    for convolution in plain.plain(model).tokenizer.convolutions:
        assert convolution.get_parameter("weight").is_contiguous()
    images = data.normalize(data.test.images)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert plain.normalize(data, data.test.images).is_contiguous()


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_attention_is_fused_only_where_nothing_is_dropped_on_a_cpu(data, monkeypatch, rate):
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda *a, **k: calls.append(k) or fused(*a, **k)
    )
    model = tiny(f"model.attention_dropout={rate}")
    images = data.normalize(data.train.images).double()
    model.train()(images)
    assert len(calls) == (0 if rate else len(model.blocks))
    calls.clear()
    model.eval()(images)
    assert calls == [{"dropout_p": 0.0}] * len(model.blocks)


def test_a_compiled_run_gives_the_numbers_and_the_names_of_any_other(trained, monkeypatch):
    from cct import machine

    compiled_models, compile_it = [], nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda model, **how: compiled_models.append(compile_it(model, **how))
    )

    try:
        machine.require_compiler(torch.device("cpu"))
    except ValueError as reason:
        pytest.skip(str(reason))
    same = (
        "model.attention_dropout=0",
        "model.stochastic_depth=0",
        "data.train_size=16",
        "epochs=1",
    )
    compiled, eager = trained("compile=true", *same), trained(*same, study="eager")
    assert len(compiled_models) == 1
    assert compiled.weights.keys() == eager.weights.keys()
    for number in ("train_loss", "test_loss"):
        assert compiled.rows[0][number] == pytest.approx(eager.rows[0][number], rel=1e-4)
