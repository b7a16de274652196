"""The closed form against the paper's own route: the trust region and the dense declarative node."""

import pytest
import torch

from guided_collapse import nearest_etf
from guided_collapse.geometry.simplex import frame_basis
from guided_collapse.paper.declarative_node import (
    basis_by_paper_route,
    commutation_matrix,
    constraint_jacobian,
    dense_bytes,
    elimination_matrix,
    jacobian_by_declarative_node,
)
from guided_collapse.paper.trust_region import ProximalProblem, solve_by_trust_region

DELTA = 1e-3


def problem_of(feature_dim, num_classes, with_anchor=True):
    means = torch.randn(num_classes, feature_dim, dtype=torch.float64)
    means -= means.mean(0)
    means /= means.norm()
    anchor = frame_basis(feature_dim, num_classes, direction="random", dtype=torch.float64) if with_anchor else None
    return means, anchor, ProximalProblem(means.T, anchor, DELTA)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (64, 10), (128, 50)])
@pytest.mark.parametrize("with_anchor", [False, True])
def test_closed_form_against_the_trust_region(feature_dim, num_classes, with_anchor):
    means, anchor, problem = problem_of(feature_dim, num_classes, with_anchor)
    start = frame_basis(feature_dim, num_classes, direction="random", dtype=torch.float64)
    reached = solve_by_trust_region(problem, start)
    solution = nearest_etf(means, anchor, proximal_weight=DELTA)
    assert problem.cost(solution.basis) <= problem.cost(reached) + 1e-9
    frame = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    reached_weight = (num_classes / (num_classes - 1)) ** 0.5 * frame @ reached.T
    torch.testing.assert_close(solution.weight, reached_weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (20, 8), (5, 5)])
def test_gradient_against_the_declarative_node(feature_dim, num_classes):
    means, anchor, problem = problem_of(feature_dim, num_classes)
    means = means.requires_grad_()
    incoming = torch.randn(feature_dim, num_classes, dtype=torch.float64)
    basis = nearest_etf(means, anchor, proximal_weight=DELTA).basis
    (gradient,) = torch.autograd.grad((basis * incoming).sum(), means)
    jacobian = jacobian_by_declarative_node(problem, basis.detach())
    expected = (incoming.flatten() @ jacobian).reshape(feature_dim, num_classes).T
    # The library's means have any scale, so the radial part of the gradient is zero.
    unit = means.detach()
    expected = expected - (expected * unit).sum() * unit
    assert (gradient - expected).norm() < 1e-8 * expected.norm()


def test_analytic_gradient_and_hessian_of_the_cost():
    _, _, problem = problem_of(7, 4)
    basis = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(problem.cost(basis), basis)
    torch.testing.assert_close(problem.gradient(basis.detach()), gradient)
    tangent = torch.randn(7, 4, dtype=torch.float64)
    _, hessian = torch.autograd.functional.hvp(problem.cost, basis.detach(), tangent)
    torch.testing.assert_close(problem.hessian_along(tangent), hessian)


def test_constraint_jacobian_and_its_building_blocks():
    square = torch.randn(4, 4, dtype=torch.float64)
    rows, columns = torch.tril_indices(4, 4)
    assert torch.equal(elimination_matrix(4, torch.float64) @ square.flatten(), square[rows, columns])
    assert torch.equal(commutation_matrix(4, torch.float64) @ square.flatten(), square.T.flatten())
    basis = torch.randn(6, 4, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda basis: (basis.T @ basis)[rows, columns], basis).reshape(10, 24)
    torch.testing.assert_close(constraint_jacobian(basis), expected)


def test_problems_that_do_not_fit_into_memory_raise():
    _, anchor, problem = problem_of(12, 5)
    needed = dense_bytes(12, 5)
    with pytest.raises(MemoryError, match=f"needs {needed:,} bytes at feature_dim=12, num_classes=5; 1,000 are available"):
        jacobian_by_declarative_node(problem, anchor, available_bytes=1000)


def test_needs_a_proximal_point():
    means, anchor, _ = problem_of(12, 5)
    with pytest.raises(ValueError, match="needs a proximal point with a positive weight"):
        jacobian_by_declarative_node(ProximalProblem(means.T, None, DELTA), anchor)


def test_the_papers_route_has_the_gradient_of_the_closed_form():
    means, anchor, _ = problem_of(12, 5)
    grads = []
    for solve in (
        lambda leaf: basis_by_paper_route(leaf / leaf.norm(), anchor, DELTA),
        lambda leaf: nearest_etf(leaf, anchor, proximal_weight=DELTA).basis,
    ):
        leaf = (3 * means).requires_grad_()
        basis = solve(leaf)
        (basis * torch.linspace(-1, 1, basis.numel(), dtype=basis.dtype).reshape(basis.shape)).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-6)
