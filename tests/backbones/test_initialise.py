import math

import pytest
import torch
from torch import nn

from guided_collapse.backbones.initialise import initialise
from tests.backbones.cases import OPTIONS, build


def test_weights_have_the_spread_of_he_and_biases_are_zero():
    model = nn.Sequential(nn.Conv2d(40, 60, 3), nn.Sequential(nn.Linear(200, 100)), nn.BatchNorm2d(3))
    initialise(model, torch.Generator().manual_seed(0))
    for layer, fan_out in ((model[0], 60 * 9), (model[1][0], 100)):
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.03)
        assert layer.weight.mean().item() == pytest.approx(0, abs=0.05 * math.sqrt(2 / fan_out))
        assert layer.bias.count_nonzero() == 0
    assert torch.equal(model[2].weight, torch.ones(3))


@pytest.mark.parametrize("case", OPTIONS)
def test_all_weights_come_from_the_generator_or_else_from_the_global_one(case):
    def weights(generator_seed, global_seed):
        generator = None if generator_seed is None else torch.Generator().manual_seed(generator_seed)
        model = build(case)  # its weights are other ones
        torch.manual_seed(global_seed)
        initialise(model, generator)
        return [parameter.detach() for parameter in model.parameters()]

    assert all(map(torch.equal, weights(1, 2), weights(1, 3)))
    assert not any(map(torch.equal, weights(1, 2), weights(4, 2)))
    assert all(map(torch.equal, weights(None, 2), weights(None, 2)))
    assert not any(map(torch.equal, weights(None, 2), weights(None, 3)))
    built = [build(case, generator=torch.Generator().manual_seed(1)).parameters(), weights(1, 0)]
    assert all(map(torch.equal, *built))
