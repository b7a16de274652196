import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from guided_collapse import AGD, Classifier, NearestETFHead, StratifiedBatchSampler
from guided_collapse.experiments.backbones.plain import SmallConvNet
from tests.experiments.backbones.cases import images


def test_features_against_the_layers_one_by_one():
    model = SmallConvNet(7, batch_norm=False, affine=True).double()
    first, second, third = (layer for layer in model.convolutions if isinstance(layer, nn.Conv2d))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    inputs = images(3, 11, 1).double()
    x = functional.max_pool2d(functional.conv2d(inputs, first.weight, first.bias, padding=1).relu(), 2)
    x = functional.max_pool2d(functional.conv2d(x, second.weight, second.bias, padding=1).relu(), 2)
    x = functional.conv2d(x, third.weight, third.bias, padding=1).relu().mean(dim=3).mean(dim=2)
    torch.testing.assert_close(model(inputs), x @ model.linear.weight.T + model.linear.bias)


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 16)])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_sizes_and_channels(size, channels, batch_norm):
    model = SmallConvNet(13, in_channels=channels, batch_norm=batch_norm)
    assert model.feature_dim == 13
    assert model(images(4, size, channels)).shape == (4, 13)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()) == (3 if batch_norm else 0)
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in model.modules()) == 2


@pytest.mark.parametrize("batch_norm", [True, False])
def test_it_learns_digits_in_a_few_epochs(batch_norm):
    pixels, digits = load_digits(return_X_y=True)
    inputs = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    labels = torch.tensor(digits)
    model = Classifier(SmallConvNet(batch_norm=batch_norm), NearestETFHead(64, 10))
    optimizer = AGD(model.parameters(), gain=10.0)
    optimizer.init_weights()
    sampler = StratifiedBatchSampler(labels[:1400], 100)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for batch in sampler:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[batch], labels[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model.eval()(inputs[1400:]).argmax(dim=1) == labels[1400:]).float().mean()
    assert accuracy > (0.9 if batch_norm else 0.75)


@pytest.mark.parametrize("feature_dim", [0, -3, 1.5])
def test_the_feature_dimension_must_be_positive(feature_dim):
    with pytest.raises(ValueError, match=f"feature_dim must be an integer, at least 1; got {feature_dim}"):
        SmallConvNet(feature_dim)
