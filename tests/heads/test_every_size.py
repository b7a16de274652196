"""Every pair of 2 to 50 classes and 1 to 50 dimensions: ten steps, or an error that says why."""

import pytest
import torch
from torch import nn

from guided_collapse import Classifier, FixedETFHead, NearestETFHead
from tests.heads.cases import batches, train

pytestmark = pytest.mark.slow

LARGEST = 50


def check_sizes(num_classes, feature_dims):
    steps = list(batches(10, num_classes=num_classes))
    inputs = torch.cat([inputs for inputs, _ in steps])
    for feature_dim in feature_dims:
        for kind in (FixedETFHead, NearestETFHead):
            if feature_dim == 1:
                with pytest.raises(ValueError, match="feature_dim must be at least 2, because a sphere"):
                    kind(feature_dim, num_classes)
                continue
            model = Classifier(nn.Linear(8, feature_dim), kind(feature_dim, num_classes))
            start = model.head.weight.clone()
            losses = train(model, steps)
            tried = kind.__name__, num_classes, feature_dim
            values = [torch.tensor(losses), *model.state_dict().values(), model.eval()(inputs)]
            assert all(bool(torch.isfinite(value).all()) for value in values), tried
            assert float((model.head.weight.norm(dim=1) - 1).abs().max()) < 1e-5, tried
            assert torch.equal(model.head.weight, start) == (kind is FixedETFHead), tried


# Including those next to feature_dim + 1.
@pytest.mark.parametrize("num_classes", [2, 3, 7, 26, LARGEST])
def test_some_sizes_train(num_classes):
    check_sizes(num_classes, sorted({1, 2, 5, max(2, num_classes - 2), max(2, num_classes - 1), num_classes, LARGEST}))


@pytest.mark.thorough
@pytest.mark.parametrize("num_classes", range(2, LARGEST + 1))
def test_every_size_trains(num_classes):
    check_sizes(num_classes, range(1, LARGEST + 1))
