import numpy as np
import pytest
import torch

from guided_collapse.sampling.batch_sampler import source_number, whole_number


@pytest.mark.parametrize("value", [-3, np.int8(-3), torch.tensor(-3)])
def test_whole_numbers_of_any_kind(value):
    number = whole_number(value, "size")
    assert type(number) is int
    assert number == -3
    with pytest.raises(ValueError, match="seed must not be negative; got -3"):
        source_number(value, "seed")


@pytest.mark.parametrize("value", [1.0, np.float32(1), "1", None, torch.tensor(1.0), [1]])
def test_other_values_are_refused(value):
    with pytest.raises(ValueError, match="size must be a whole number; got"):
        whole_number(value, "size")
