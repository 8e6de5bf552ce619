"""Value and noise heads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from embodied.critics import NoiseHead, ValueHead, mlp


def head(*batch: list[float]) -> ValueHead:
    torch.manual_seed(0)
    value = ValueHead(len(batch[0]), hidden=(8,))
    value.fit(torch.tensor(batch))
    return value


def test_a_value_head_without_statistics_refuses_to_speak() -> None:
    with pytest.raises(RuntimeError, match="no input statistics"):
        ValueHead(2)(torch.zeros(1, 2))


def test_inputs_are_standardised_by_the_first_batch_alone() -> None:
    value = head([0.0, 10.0], [2.0, 30.0])
    assert value.mean.tolist() == [1.0, 20.0] and value.std.tolist() == [1.0, 10.0]
    value.fit(torch.tensor([[100.0, 100.0]]))
    assert value.mean.tolist() == [1.0, 20.0]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
def test_the_scale_of_the_features_does_not_matter(scale: float) -> None:
    batch = [[0.0, 1.0], [2.0, 3.0], [5.0, -1.0]]
    scaled = [[scale * entry for entry in row] for row in batch]
    torch.testing.assert_close(head(*scaled)(torch.tensor(scaled)), head(*batch)(torch.tensor(batch)), rtol=1e-3, atol=1e-5)


def test_a_feature_that_was_constant_keeps_its_unit() -> None:
    value = head([3.0, 1.0], [3.0, 2.0])
    assert value.std.tolist() == [1.0, 0.5]


def test_one_row_is_enough_for_statistics() -> None:
    value = head([3.0, -1e4])
    assert value.std.tolist() == [1.0, 1.0] and bool(value(torch.tensor([[3.0, -1e4]])).isfinite())


def test_a_feature_far_from_the_first_batch_is_clamped() -> None:
    value = head([0.0, 1.0], [2.0, 2.0])
    far, edge = (value(torch.tensor([[x, 1.5]])) for x in (1e6, 11.0))  # 10 spreads of 1 above the mean of 1
    torch.testing.assert_close(far, edge)


def test_statistics_travel_in_the_state() -> None:
    value, fresh = head([0.0, 1.0], [2.0, 5.0]), ValueHead(2, hidden=(8,))
    fresh.load_state_dict(value.state_dict())
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(fresh(x), value(x))


def test_a_fresh_value_head_is_close_to_zero() -> None:
    value = head([0.0, 1.0], [2.0, 5.0])
    assert float(value(torch.tensor([[1.0, 2.0]])).detach().abs()) < 0.1


def test_values_are_float32_one_a_row_whatever_the_features() -> None:
    found = head([0.0, 1.0], [2.0, 5.0])(torch.tensor([[1.0, 2.0]] * 3, dtype=torch.bfloat16))
    assert found.shape == (3,) and found.dtype == torch.float32


def test_a_noise_head_speaks_once_per_action_element_in_float32() -> None:
    raw = NoiseHead(6, 2)(torch.zeros(3, 4, 6, dtype=torch.bfloat16))
    assert raw.shape == (3, 4, 2) and raw.dtype == torch.float32


def test_a_multilayer_perceptron_ends_linear() -> None:
    layers = list(mlp([2, 3, 1]))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.SiLU, nn.Linear]
