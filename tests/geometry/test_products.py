"""The solver "products" against scipy's polar factor and against the solver "factors"."""

import math

import pytest
import scipy.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

from guided_collapse import nearest_etf
from guided_collapse.geometry import operations
from guided_collapse.geometry.products import polar_by_products, polar_polynomials
from guided_collapse.geometry.simplex import frame_basis, haar_basis, helmert_basis

SIZES = [(2, 2), (8, 3), (9, 10), (10, 10), (64, 10), (512, 10), (99, 100), (100, 100), (160, 100)]
SPECTRA = {
    "equal": lambda size: torch.ones(size),
    "Gaussian": None,
    "two decades": lambda size: torch.logspace(0, -2, size),
    "four decades": lambda size: torch.logspace(0, -4, size),
    "half zero": lambda size: (torch.arange(size) < (size + 1) // 2).double(),
    "one large": lambda size: torch.tensor([1.0] + (size - 1) * [1e-3]),
}


def means_with(spectrum, feature_dim, num_classes):
    """Centered class means, (num_classes, feature_dim), float32, with chosen singular values."""
    if SPECTRA[spectrum] is None:
        means = torch.randn(num_classes, feature_dim, dtype=torch.float64)
        return (means - means.mean(dim=0)).float()
    size = num_classes - 1
    left = helmert_basis(num_classes, dtype=torch.float64) @ haar_basis(size, size, dtype=torch.float64)
    return (left * SPECTRA[spectrum](size).double() @ haar_basis(feature_dim, size, dtype=torch.float64).T).float()


def basis_before(means, proximal_weight):
    """The basis of the previous step: of slightly different means."""
    other = means + 0.01 * means.norm() / math.sqrt(means.numel()) * torch.randn_like(means)
    anchor = frame_basis(means.shape[1], len(means), direction="random")
    return nearest_etf(other.double(), anchor.double(), proximal_weight=proximal_weight).basis.float()


def exact_weight(means, basis, proximal_weight):
    """The weight by scipy's polar factor, in float64."""
    num_classes, feature_dim = means.shape
    means = means.double() - means.double().mean(dim=0)
    matrix = 2 / math.sqrt(num_classes - 1) * means / means.norm() + proximal_weight * basis.double().T
    if feature_dim < num_classes:
        matrix = matrix - matrix.mean(dim=0)
    polar = torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])
    return math.sqrt(num_classes / (num_classes - 1)) * (polar - polar.mean(dim=0))


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-14), (torch.float32, 1e-7)])
@pytest.mark.parametrize("smallest", [1.0, 0.5, 1e-2, 1e-3, 1e-5, 1e-7, 1e-12])
def test_polynomials_map_the_interval_to_one_and_never_leave_it(smallest, dtype, rounding):
    values = torch.logspace(math.log10(smallest), 0, 1000, dtype=torch.float64)
    rounded = torch.tensor([1 - 1e-7, 1 + 1e-7, 1 + 1e-6], dtype=torch.float64)
    for polynomial in polar_polynomials(smallest, dtype):
        values, rounded = polynomial(values), polynomial(rounded)
        assert 0 < float(values.min()) <= float(values.max()) < 1 + 1e-8
    torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=rounding)
    torch.testing.assert_close(rounded, torch.ones_like(rounded), rtol=0, atol=rounding)


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("proximal_weight", [1e-4, 1e-3, 1e-1])
def test_weight_and_gradient_in_float32_are_those_of_float64(feature_dim, num_classes, spectrum, proximal_weight):
    torch.manual_seed(num_classes + feature_dim)
    means = means_with(spectrum, feature_dim, num_classes)
    basis = basis_before(means, proximal_weight)
    found = means.clone().requires_grad_()
    weight = nearest_etf(found, basis, proximal_weight=proximal_weight, solver="products").weight
    # The float32 accuracy of directions that only the proximal term determines.
    largest = 2 / math.sqrt(num_classes - 1) + proximal_weight * math.sqrt(num_classes)
    tolerance = max(1e-5, 2 * torch.finfo(torch.float32).eps * largest / proximal_weight)
    by_scipy = exact_weight(means, basis, proximal_weight)
    torch.testing.assert_close(weight.detach().double(), by_scipy, rtol=0, atol=tolerance)
    in_double = nearest_etf(means.double(), basis.double(), proximal_weight=proximal_weight, solver="products").weight
    torch.testing.assert_close(in_double, by_scipy, rtol=0, atol=1e-10)
    exact = means.double().requires_grad_()
    expected = nearest_etf(exact, basis.double(), proximal_weight=proximal_weight, solver="factors").weight
    direction = torch.randn_like(weight)
    weight.backward(direction)
    expected.backward(direction.double())
    assert float((found.grad.double() - exact.grad).norm()) <= 1e-3 * float(exact.grad.norm()) + 1e-6


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (5, 5), (4, 5)])
def test_without_a_proximal_term_it_is_the_limit_to_a_thousandth(feature_dim, num_classes):
    torch.manual_seed(0)
    means = means_with("Gaussian", feature_dim, num_classes)
    limit, found = (nearest_etf(means, solver=solver).weight for solver in ("factors", "products"))
    torch.testing.assert_close(found, limit, rtol=0, atol=5e-3)
    torch.testing.assert_close(found @ found.T, limit @ limit.T, rtol=0, atol=1e-5)


# torch itself uses deprecated functions for forward mode.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(4, 3), (3, 3), (2, 3)])
def test_all_orders_and_modes_of_derivatives(feature_dim, num_classes):
    torch.manual_seed(1)
    means = torch.randn(num_classes, feature_dim, dtype=torch.float64, requires_grad=True)
    basis = frame_basis(feature_dim, num_classes, direction="random", dtype=torch.float64)

    def weight(means):
        return nearest_etf(means, basis, proximal_weight=1e-2, solver="products").weight

    assert gradcheck(weight, means, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(weight, means)


def test_vmap_agrees_with_a_loop():
    torch.manual_seed(2)
    means, basis = torch.randn(8, 4, 6), frame_basis(6, 4, direction="random")

    def weight(means):
        return nearest_etf(means, basis, solver="products").weight

    torch.testing.assert_close(torch.func.vmap(weight)(means), torch.stack([weight(each) for each in means]))


@pytest.fixture(params=["high", "medium"])
def lower_precision(request):
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("lower_precision")
def test_products_are_exact_when_lower_precision_is_allowed():
    torch.manual_seed(3)
    matrix = torch.randn(20, 50)
    matrix = (matrix / matrix.norm()).requires_grad_()
    polar = polar_by_products(matrix, polynomials=polar_polynomials(1e-4))
    exact = torch.from_numpy(scipy.linalg.polar(matrix.detach().double().numpy())[0])
    torch.testing.assert_close(polar.detach().double(), exact, rtol=0, atol=2e-6)
    polar.square()[0].sum().backward()
    # Without gradient: tracing it takes ten seconds.
    compiled = torch.compile(polar_by_products, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(matrix.detach(), polynomials=polar_polynomials(1e-4)), polar.detach(), rtol=0, atol=2e-6)


def test_a_product_of_parts_is_as_precise_as_float32(monkeypatch):
    torch.manual_seed(4)
    left, right = torch.randn(30, 40, requires_grad=True), torch.randn(40, 20, requires_grad=True)
    plain = torch.autograd.grad(operations.product(left, right).square().sum(), (left, right))
    monkeypatch.setattr(operations, "float32_is_float32", lambda: False)
    parts = operations.product(left, right)
    torch.testing.assert_close(parts.double(), left.double() @ right.double(), rtol=0, atol=1e-5)
    in_parts = torch.autograd.grad(parts.square().sum(), (left, right))
    torch.testing.assert_close(in_parts, plain, rtol=0, atol=1e-3)
