import pytest
import torch

from guided_collapse.heads import batch as module
from guided_collapse.heads.batch import Batch


@pytest.mark.parametrize("scale", [None, 3.0])
@pytest.mark.parametrize("num_classes", [5, 50])
@pytest.mark.parametrize("kind", ["clean", "clean, many entries", "unknown", "some ignored", "soft", "clean, soft"])
def test_class_means_and_their_gradient(kind, num_classes, scale, monkeypatch):
    if kind == "clean, many entries":
        monkeypatch.setattr(module, "MANY_ENTRIES", 1)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(80, 6, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, num_classes - 1, (80,), generator=generator)
    shares = torch.nn.functional.one_hot(labels, num_classes).double()
    if kind == "some ignored":
        labels[::7] = -100
        shares[::7] = 0
    if kind.endswith("soft"):
        labels = shares = 0.7 * shares + 0.3 * shares[:, torch.randperm(num_classes, generator=generator)]
    batch = Batch(features, labels, scale=scale, is_clean=kind.startswith("clean"))

    points = features if scale is None else scale * features / features.norm(dim=1, keepdim=True)
    middle = points[shares.sum(dim=1) > 0].mean(dim=0)
    means = []
    for weights in shares.T:
        count = weights.sum()
        means.append((weights[:, None] * points).sum(dim=0) / count - middle if count > 0 else torch.zeros(6))
    expected = torch.stack(means)
    grad = torch.randn(num_classes, 6, generator=generator, dtype=torch.float64)
    (expected_grad,) = torch.autograd.grad(expected, features, grad)

    counts, (global_mean, _) = batch.class_counts(num_classes), batch.global_mean()
    torch.testing.assert_close(counts, shares.sum(dim=0))
    torch.testing.assert_close(batch.class_means(features.detach(), counts, global_mean), expected.detach())
    torch.testing.assert_close(batch.class_means_backward(grad, counts), expected_grad)
