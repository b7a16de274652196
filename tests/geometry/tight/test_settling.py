import pytest
import torch

from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.tight import settling
from guided_collapse.geometry.tight.rounds import alternate
from guided_collapse.geometry.tight.settling import ROUNDS_AT_ONCE, settle


def start(num_classes=9, num_columns=4):
    matrix = center_classes(torch.randn(num_classes, num_columns, dtype=torch.float64))
    target = center_classes(torch.randn(num_classes, num_columns, dtype=torch.float64))
    return torch.linalg.qr(matrix).Q, target * (num_classes**0.5 / target.norm())


def plain_rounds(columns, target, rounds, centered):
    scales = torch.ones(len(columns), 1, dtype=columns.dtype)
    for _ in range(rounds):
        norms = columns.norm(dim=1, keepdim=True)
        scales = scales / (norms * (len(columns) / columns.shape[1]) ** 0.5)
        rows = scales * columns / norms + settling.SETTLING_PULL * target
        rows = rows - rows.mean(0) if centered else rows
        squares, rotation = torch.linalg.eigh(rows.T @ rows)
        columns = rows @ (rotation / squares.sqrt() @ rotation.T)
    return columns


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("rounds", [1, ROUNDS_AT_ONCE + 3])
def test_rounds_and_their_gradient_against_plain_torch(centered, rounds):
    columns, target = start()
    direction = torch.randn_like(columns)
    results = []
    for function in (settle, lambda *given, rounds, centered: plain_rounds(*given, rounds, centered)):
        leaves = columns.clone().requires_grad_(), target.clone().requires_grad_()
        result = function(*leaves, rounds=rounds, centered=centered)
        results.append([result.detach(), *torch.autograd.grad((result * direction).sum(), leaves)])
    torch.testing.assert_close(*results)


def test_no_rounds_change_nothing():
    columns, target = start()
    assert settle(columns, target, rounds=0, centered=True) is columns


def left_of_the_gradient(weight, target):
    """The part of T that is along no constraint at W: not W S, nor diag(s) W, nor 1 m'."""
    num_classes, feature_dim = weight.shape
    symmetric = torch.eye(feature_dim**2, dtype=weight.dtype).view(-1, feature_dim, feature_dim)
    along = [weight @ (matrix + matrix.T) for matrix in symmetric]
    along += [torch.diag(row) @ weight for row in torch.eye(num_classes, dtype=weight.dtype)]
    along += [row.expand_as(weight) for row in torch.eye(feature_dim, dtype=weight.dtype)]
    matrix = torch.stack([direction.flatten() for direction in along], dim=1)
    return float((target.flatten() - matrix @ torch.linalg.lstsq(matrix, target.flatten(), driver="gelsd").solution).norm())


def test_they_end_at_even_rows_where_the_target_is_stationary():
    columns, target = start(20, 6)
    settled = settle(columns, target, rounds=400, centered=True) * (20 / 6) ** 0.5
    torch.testing.assert_close(settled.norm(dim=1), torch.ones(20, dtype=torch.float64), rtol=0, atol=1e-6)
    assert left_of_the_gradient(settled, target) < 1e-5
    # Without scales they do not, however many there are.
    unscaled = alternate(columns, target, columns, pulls=400 * [0.3] + 200 * [0.0], centered=True) * (20 / 6) ** 0.5
    assert left_of_the_gradient(unscaled, target) > 1e-2


def test_float32_gradients_are_those_of_float64_after_many_rounds():
    columns, target = start(30, 5)
    found = []
    for dtype in (torch.float64, torch.float32):
        leaf = target.to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(settle(columns.to(dtype), leaf, rounds=60, centered=True)[0].sum(), leaf)
        found.append(gradient.double())
    assert float((found[1] - found[0]).norm()) < 1e-4 * float(found[0].norm())


@pytest.mark.slow
def test_registered_operations_keep_their_promises():
    columns, target = (matrix.float() for matrix in start())
    scales = torch.rand(len(columns)) + 0.5
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    operations = torch.ops.guided_collapse
    torch.library.opcheck(operations.settle.default, (columns.requires_grad_(), scales, target, 2, True), test_utils=checks)
    given = (target, scales, columns.detach(), scales, target, 2, True)
    torch.library.opcheck(operations.settle_backward.default, given, test_utils=checks[:2])
