"""Dropout against its definition, by counts and means."""

import pytest
import torch

from cct.dropout import Dropout


def masked(rate: float, count: int = 400_000) -> torch.Tensor:
    return Dropout(rate)(torch.ones(count))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_values_are_zero_at_the_rate_or_scaled_to_keep_the_mean(rate):
    found = masked(rate)
    assert found.unique().tolist() == [0, pytest.approx(1 / (1 - rate), abs=2e-3)]
    deviation = (rate * (1 - rate) / len(found)) ** 0.5
    assert (found == 0).double().mean().item() == pytest.approx(rate, abs=5 * deviation)


def test_every_sixteen_bits_of_a_word_decide_alike_and_apart():
    dropped = (masked(0.5) == 0).double().view(-1, 4)
    torch.testing.assert_close(
        dropped.mean(0), torch.full((4,), 0.5, dtype=torch.float64), atol=8e-3, rtol=0
    )
    torch.testing.assert_close(
        torch.corrcoef(dropped.T), torch.eye(4, dtype=torch.float64), atol=0.02, rtol=0
    )


def test_the_gradient_passes_where_the_value_did():
    x = torch.randn(3, 5, 7, requires_grad=True)
    found = Dropout(0.4)(x)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient * x, found)


def test_the_seed_decides_and_calls_differ():
    torch.manual_seed(3)
    first, second = masked(0.5, 99), masked(0.5, 99)
    torch.manual_seed(3)
    assert torch.equal(masked(0.5, 99), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_or_at_rate_0():
    x = torch.randn(5)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_of_the_values_stays(dtype):
    assert Dropout(0.999999)(torch.ones(3, dtype=dtype)).dtype is dtype
    assert Dropout(0.999999)(torch.ones(3, dtype=dtype)).isfinite().all()
