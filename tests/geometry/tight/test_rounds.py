import pytest
import torch

from guided_collapse.geometry.tight import rounds as room
from guided_collapse.geometry.tight.rounds import alternate, polar_columns


def start(num_classes=9, num_columns=4):
    matrix = torch.randn(num_classes, num_columns, dtype=torch.float64)
    return torch.linalg.qr(matrix - matrix.mean(0)).Q, torch.randn(num_classes, num_columns, dtype=torch.float64)


def plain_rounds(columns, target, pulls, centered):
    for pull in pulls:
        rows = columns / columns.norm(dim=1, keepdim=True) + pull * target
        rows = rows - rows.mean(0) if centered else rows
        squares, rotation = torch.linalg.eigh(rows.T @ rows)
        columns = rows @ (rotation / squares.sqrt() @ rotation.T)
    return columns


@pytest.mark.parametrize("centered", [False, True])
def test_rounds_and_their_gradient_against_plain_torch(centered):
    columns, target = start()
    pulls = [0.3, 0.1, 0.0, 0.0]
    direction = torch.randn_like(columns)
    results = []
    for function in (
        lambda columns, target: alternate(columns, target, columns.detach(), pulls=pulls, centered=centered),
        lambda columns, target: plain_rounds(columns, target, pulls, centered),
    ):
        leaves = columns.clone().requires_grad_(), target.clone().requires_grad_()
        result = function(*leaves)
        results.append([result.detach(), *torch.autograd.grad((result * direction).sum(), leaves)])
    torch.testing.assert_close(*results)


def test_no_rounds_change_nothing():
    columns, target = start()
    assert torch.equal(alternate(columns, target, columns, pulls=[], centered=True), columns)


def test_zero_rows_take_those_of_the_fallback_and_get_no_gradient():
    columns, target = start()
    columns[3] = 0
    columns.requires_grad_()
    fallback = torch.randn_like(target)
    result = alternate(columns, target, fallback, pulls=[0.0], centered=False)
    filled = columns.detach().clone()
    filled[3] = fallback[3]
    torch.testing.assert_close(result, plain_rounds(filled, target, [0.0], centered=False))
    (gradient,) = torch.autograd.grad((result * target).sum(), columns)
    assert torch.equal(gradient[3], torch.zeros(4, dtype=torch.float64))
    assert torch.isfinite(gradient).all()


def test_polar_columns_gradcheck():
    matrix = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(polar_columns(matrix).T @ polar_columns(matrix), torch.eye(3, dtype=torch.float64))
    assert torch.autograd.gradcheck(polar_columns, (matrix,))


@pytest.mark.slow
def test_registered_operations_keep_their_promises():
    columns, target = (matrix.float() for matrix in start())
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    operations = torch.ops.guided_collapse
    given = (columns.requires_grad_(), target, target, [0.3, 0.0], True)
    torch.library.opcheck(operations.alternate.default, given, test_utils=checks)
    torch.library.opcheck(operations.polar_columns.default, (columns,), test_utils=checks)
    outputs = [output.detach() for output in room._alternate(columns.detach(), target, target, [0.3, 0.0], True)]
    torch.library.opcheck(
        operations.alternate_backward.default, (target, target, *outputs, [0.3, 0.0], True), test_utils=checks[:2]
    )
    outputs = [output.detach() for output in room._polar_columns(target)]
    torch.library.opcheck(operations.polar_columns_backward.default, (target, *outputs), test_utils=checks[:2])
