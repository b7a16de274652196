import math

import pytest
import torch
from torch import nn

from guided_collapse import AGD


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 6, 1, bias=False),
        nn.Flatten(),
        nn.Linear(6 * 16, 5, bias=False),
    )


def with_gradients(model):
    model(torch.randn(3, 2, 6, 6)).square().sum().backward()
    return list(model.parameters())


def scale_of(weight):
    outputs, inputs, *kernel = weight.shape
    return math.sqrt(outputs / inputs / math.prod(kernel))


def slow_step(weights, gradients, gain):
    """The update rule, slice by slice."""
    layers = len(weights)
    total = 0.0
    for gradient in gradients:
        flat = gradient.reshape(*gradient.shape[:2], -1)
        total += scale_of(gradient) * sum(flat[:, :, position].norm().item() for position in range(flat.shape[2]))
    eta = math.log((1 + math.sqrt(1 + 4 * total / layers)) / 2)
    moved = []
    for weight, gradient in zip(weights, gradients, strict=True):
        new, flat = (value.reshape(*value.shape[:2], -1) for value in (weight.clone(), gradient))
        for position in range(flat.shape[2]):
            norm = flat[:, :, position].norm()
            if norm > 0:
                new[:, :, position] -= gain * eta / layers * scale_of(weight) * flat[:, :, position] / norm
        moved.append(new.reshape(weight.shape))
    return moved


@pytest.mark.parametrize("gain", [1.0, 10.0])
def test_step_against_the_formula(gain):
    parameters = with_gradients(network())
    before = [parameter.detach().clone() for parameter in parameters]
    expected = slow_step(before, [parameter.grad for parameter in parameters], gain)
    AGD(parameters, gain=gain).step()
    for parameter, value, old in zip(parameters, expected, before, strict=True):
        torch.testing.assert_close(parameter.detach(), value, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(parameter, old)


def test_slices_without_gradient_do_not_move():
    parameters = with_gradients(network())
    parameters[0].grad[:, :, 1, 2] = 0
    parameters[2].grad.zero_()
    before = [parameter.detach().clone() for parameter in parameters]
    AGD(parameters).step()
    assert torch.equal(parameters[0][:, :, 1, 2], before[0][:, :, 1, 2])
    assert not torch.equal(parameters[0][:, :, 0, 0], before[0][:, :, 0, 0])
    assert torch.equal(parameters[2], before[2])
    assert all(torch.isfinite(parameter).all() for parameter in parameters)


def test_parameters_without_gradient_do_not_move_but_count_as_layers():
    parameters = with_gradients(network())
    zeroed = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    for twin, parameter in zip(zeroed, parameters, strict=True):
        twin.grad = parameter.grad.clone()
    parameters[1].grad = None
    zeroed[1].grad.zero_()
    AGD(parameters).step()
    AGD(zeroed).step()
    for twin, parameter in zip(zeroed, parameters, strict=True):
        torch.testing.assert_close(parameter, twin)
    AGD([nn.Parameter(torch.ones(2, 2))]).step()


def test_initial_slices_are_scaled_semi_orthogonal_matrices_drawn_from_the_generator():
    model, again, other = (network() for _ in range(3))
    for each, seed in ((model, 1), (again, 1), (other, 2)):
        AGD(each.parameters()).init_weights(torch.Generator().manual_seed(seed))
    assert torch.equal(model[4].weight, again[4].weight)
    assert not torch.equal(model[4].weight, other[4].weight)
    for parameter in model.parameters():
        outputs, inputs = parameter.shape[:2]
        for weight in parameter.detach().reshape(outputs, inputs, -1).unbind(2):
            gram = weight @ weight.T if outputs <= inputs else weight.T @ weight
            torch.testing.assert_close(gram, scale_of(parameter) ** 2 * torch.eye(min(outputs, inputs)), rtol=1e-5, atol=1e-6)


def test_parameter_groups_have_their_own_gains_and_share_one_step_size():
    parameters = with_gradients(network())
    before = [parameter.detach().clone() for parameter in parameters]
    expected = slow_step(before, [parameter.grad for parameter in parameters], 1.0)
    AGD([{"params": parameters[:1], "gain": 3.0}, {"params": parameters[1:]}]).step()
    torch.testing.assert_close(parameters[0] - before[0], 3 * (expected[0] - before[0]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters[1].detach(), expected[1], rtol=1e-5, atol=1e-6)


def test_closure_and_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32, bias=False), nn.ReLU(), nn.Linear(32, 3, bias=False))
    optimizer = AGD(model.parameters(), gain=1.0)
    optimizer.init_weights()
    inputs, labels = torch.randn(60, 6), torch.arange(60) % 3

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(closure)) for _ in range(500)]
    assert losses[-1] < 0.2 * losses[0]


def test_initialization_handles_any_memory_layout_and_skips_frozen_weights():
    parameter = nn.Parameter(torch.randn(4, 3, 2, 2).permute(0, 1, 3, 2))
    frozen = nn.Parameter(torch.randn(4, 4), requires_grad=False)
    before, frozen_before = parameter.detach().clone(), frozen.clone()
    optimizer = AGD([parameter, frozen])
    optimizer.init_weights()
    assert not torch.equal(parameter, before)
    weight = parameter.detach()[:, :, 1, 0]
    torch.testing.assert_close(weight.T @ weight, torch.eye(3) * 4 / 3 / 4, rtol=1e-5, atol=1e-6)
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert torch.equal(frozen, frozen_before)


FINITE = [(torch.float32, 1e-11), (torch.float32, 1e15), (torch.bfloat16, 300.0), (torch.float16, 300.0), (torch.float64, 1e150)]


@pytest.mark.parametrize(
    ("dtype", "shapes", "sizes"),
    [
        *((dtype, ((300, 300), (2, 2)), (300.0, 6e-8)) for dtype in (torch.float16, torch.bfloat16)),
        *((dtype, ((4, 3), (2, 2, 3, 1)), (size, size)) for dtype, size in FINITE),
    ],
)
def test_the_step_follows_the_formula_in_every_precision(dtype, shapes, sizes):
    weights = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for weight, size in zip(weights, sizes, strict=True):
        weight.grad = (size * (1 + torch.rand(weight.shape, dtype=torch.float64)) / 2).to(dtype)
    exact = slow_step([weight.detach().double() for weight in weights], [weight.grad.double() for weight in weights], 1.0)
    AGD(weights).step()
    for weight, expected in zip(weights, exact, strict=True):
        assert weight.dtype == dtype
        rtol = 1e-5 if dtype in (torch.float32, torch.float64) else 1e-2
        torch.testing.assert_close(weight.detach().double(), expected, rtol=rtol, atol=0)


def test_nonfinite_gradients_propagate():
    for bad in (math.inf, math.nan):
        parameters = with_gradients(network())
        parameters[2].grad[0, 0] = bad
        AGD(parameters).step()
        assert not torch.isfinite(parameters[2]).all()


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float32])
def test_initial_weights_in_half_precision(weights, default):
    torch.set_default_dtype(default)
    try:
        parameter = nn.Parameter(torch.zeros(6, 4, dtype=weights))
        AGD([parameter]).init_weights()
    finally:
        torch.set_default_dtype(torch.float32)
    assert parameter.dtype == weights
    gram = parameter.detach().double().T @ parameter.detach().double()
    torch.testing.assert_close(gram, 6 / 4 * torch.eye(4).double(), rtol=0, atol=2e-2)


def test_learning_rate_schedulers_scale_the_step():
    parameters = with_gradients(network())
    optimizer = AGD(parameters, gain=10.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.25)
    moved = []
    for _ in range(2):
        before = parameters[2].detach().clone()
        optimizer.step()
        schedule.step()
        moved.append(parameters[2].detach() - before)
    torch.testing.assert_close(moved[1], 0.25 * moved[0], rtol=1e-3, atol=1e-6)


def test_gain_times_lr_scales_the_step_and_survives_the_state_dict():
    twins = [with_gradients(network()) for _ in range(2)]
    AGD(twins[0], gain=2.0).step()
    optimizer = AGD(twins[1])
    optimizer.load_state_dict(AGD([{"params": twins[1], "gain": 4.0, "lr": 0.5}]).state_dict())
    optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(*twins, strict=True))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 2), {"gain": 0.0}, "gain must be a positive, finite number; got 0"),
        ((2, 2), {"gain": math.nan}, "gain must be a positive, finite number; got nan"),
        ((2, 2), {"lr": -0.5}, "lr must be a finite number, at least 0; got -0.5"),
        ((2, 2), {"lr": math.inf}, "lr must be a finite number, at least 0; got inf"),
        ((5,), {}, r"at least two dimensions, none of them empty; got a parameter of shape \(5,\).*bias=False.*affine=False"),
        ((3, 0), {}, "none of them empty"),
    ],
)
def test_refusals(shape, options, message):
    group = {"params": [nn.Parameter(torch.ones(shape))], **options}
    optimizer = AGD(nn.Linear(3, 5, bias=False).parameters())
    for make in (lambda: AGD([group]), lambda: optimizer.add_param_group(group)):
        with pytest.raises(ValueError, match=message):
            make()
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="dense gradients"):
        AGD(embedding.parameters()).step()
