"""More classes than a simplex ETF allows: nearest and fixed heads are tight frames."""

import copy

import pytest
import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from guided_collapse import NearestETFHead
from guided_collapse.geometry import nearest_frame, tightness_defect
from guided_collapse.geometry.tight import default_every
from guided_collapse.heads import NearestTightFrameHead
from tests.heads.cases import MANY_CLASSES, MANY_FEATURE_DIM, MANY_NUM_CLASSES, batches, build, train

every_head = pytest.mark.parametrize("name", MANY_CLASSES)


def some(num_steps, **options):
    return list(batches(num_steps, num_classes=MANY_NUM_CLASSES, **options))


def is_tight(head, tolerance):
    norms = head.weight.norm(dim=1)
    return bool((norms - 1).abs().max() < 1e-6) and float(tightness_defect(head.weight)) < tolerance


# Fixed frames place similar classes anywhere, which takes longer to learn. Chance is one in thirty.
@every_head
def test_it_learns_and_stays_tight(name):
    model = build(name)
    follows = isinstance(model.head, NearestETFHead)
    assert is_tight(model.head, tolerance=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in some(30 if follows else 150, batch_size=60):
        train(model, [batch], optimizer)
        assert is_tight(model.head, tolerance=3e-3 if follows else 1e-6)
    inputs, labels = some(1, batch_size=500)[0]
    assert float((model.eval()(inputs).argmax(1) == labels).float().mean()) > (0.7 if follows else 0.5)
    assert model.head.weight.shape == (MANY_NUM_CLASSES, MANY_FEATURE_DIM)
    assert not list(model.head.parameters())


def test_the_frame_is_the_nearest_one():
    head = NearestETFHead(6, 70, every=1)
    for inputs, labels in batches(6, num_classes=70, batch_size=200):
        frame = head.weight.clone()
        head(inputs[:, :6], labels)
    assert bool(head.class_means.seen.all())
    basis = frame.T * (6 / 70) ** 0.5
    expected = nearest_frame(head.class_means.running, basis, proximal_weight=1e-3, rounds=3)
    torch.testing.assert_close(head.weight, expected.weight, rtol=0, atol=1e-5)
    torch.testing.assert_close(head.basis, expected.basis, rtol=0, atol=1e-5)


def test_a_step_allocates_nothing_as_large_as_the_weight():
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            given, made = (
                {leaf.untyped_storage().data_ptr(): leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)}
                for values in (args, result)
            )
            for place, tensor in made.items():
                assert place in given or tensor.numel() < 3000 * 16, function
            return result

    head = NearestETFHead(16, 3000, every=5)
    labels = torch.arange(8)
    head(torch.randn(8, 16), labels)
    features = torch.randn(8, 16, requires_grad=True)
    with Largest():
        head(features, labels).sum().backward()


def test_defaults_by_size():
    small, large = NearestETFHead(8, 9), NearestETFHead(8, 10)
    assert (small.lagged, small.every, large.lagged, large.every) == (False, 1, True, 1)
    assert set(small.state_dict()) - set(large.state_dict()) == {"transposed_basis"}
    assert isinstance(large, NearestTightFrameHead)
    assert isinstance(copy.deepcopy(large), NearestTightFrameHead)
    assert [default_every(*sizes) for sizes in ((512, 513), (128, 1000), (512, 1000), (256, 100_000))] == [1, 1, 14, 51]
    with pytest.raises(ValueError, match="feature_dim must be at least 2"):
        NearestETFHead(1, 10)
    with pytest.raises(ValueError, match="num_classes must be greater than feature_dim"):
        NearestTightFrameHead(8, 4)


@pytest.mark.parametrize("sizes", [(8, 5), (8, 24)])
def test_a_lagged_head_trains_after_a_pass_in_inference_mode(sizes):
    head = NearestETFHead(*sizes, lagged=True, every=1)
    features, labels = torch.randn(40, 8), torch.arange(40) % sizes[1]
    with torch.inference_mode():
        head(features, labels)
    leaf = features.clone().requires_grad_()
    functional.cross_entropy(head(leaf, labels), labels).backward()
    assert float(leaf.grad.norm()) > 0
    assert int(head.class_means.steps) == 2


@pytest.mark.parametrize("sizes", [(8, 5), (8, 24)])
@pytest.mark.parametrize("lagged", [True, False])
def test_lagged_and_other_heads_exchange_state_dicts(sizes, lagged):
    one, other = NearestETFHead(*sizes, lagged=lagged), NearestETFHead(*sizes, lagged=not lagged)
    for _ in range(3):
        one(torch.randn(20, 8), torch.randint(0, sizes[1], (20,)))
    other.load_state_dict(one.state_dict())
    features = torch.randn(6, 8)
    assert torch.equal(other.eval()(features), one.eval()(features))
    other.train()(torch.randn(20, 8), torch.arange(20) % sizes[1])
    assert int(other.class_means.steps) == 4


@pytest.mark.parametrize(("sizes", "num_seen"), [((8, 5), 5), ((8, 7), 3), ((8, 24), 24), ((8, 24), 15)])
def test_with_absent_and_new_classes_the_gradient_is_the_derivative(sizes, num_seen):
    torch.manual_seed(0)
    trained = NearestETFHead(*sizes, lagged=False).double()
    for _ in range(2):
        trained(torch.randn(60, 8, dtype=torch.float64), torch.arange(60) % num_seen)
    features, labels = torch.randn(9, 8, dtype=torch.float64, requires_grad=True), torch.arange(9) % 4

    def loss(features):
        return functional.cross_entropy(copy.deepcopy(trained)(features, labels), labels)

    direction, step = torch.randn_like(features), 1e-6
    numeric = (loss(features + step * direction) - loss(features - step * direction)) / (2 * step)
    loss(features).backward()
    torch.testing.assert_close((features.grad * direction).sum(), numeric.detach(), rtol=1e-6, atol=1e-9)
