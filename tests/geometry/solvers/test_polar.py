import pytest
import scipy.linalg
import torch

from guided_collapse.geometry.directions import haar_basis
from guided_collapse.geometry.solvers.polar import polar_factors, polar_gradient

SPECTRA = {
    "flat": torch.ones(40),
    "mild": torch.linspace(1, 0.1, 40),
    "1e4": torch.logspace(0, -4, 40),
    "1e7": torch.logspace(0, -7, 40),
    "1e11": torch.logspace(0, -11, 40),
    "one large": torch.tensor([1.0] + 39 * [1e-7]),
}


def matrix_with(values: torch.Tensor, num_columns: int = 90) -> torch.Tensor:
    rotation = haar_basis(len(values), len(values), dtype=torch.float64)
    frame = haar_basis(num_columns, len(values), dtype=torch.float64).T
    return rotation * values.double() @ frame


def factors_of(matrix, dtype, floor=1e-15):
    completion = haar_basis(matrix.shape[1], matrix.shape[0], dtype=dtype).T
    return polar_factors(matrix, completion, negligible=floor * float(matrix.norm())), completion


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_factor_is_orthonormal_and_optimal_at_every_condition_number(spectrum, dtype):
    matrix = matrix_with(spectrum)
    factors, _ = factors_of(matrix, dtype)
    polar = factors.polar().double()
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(polar @ polar.T, torch.eye(40, dtype=torch.float64), rtol=0, atol=tolerance)
    symmetric = matrix @ polar.T
    torch.testing.assert_close(symmetric, symmetric.T, rtol=0, atol=tolerance)
    assert torch.linalg.eigvalsh(symmetric).min() > -tolerance
    torch.testing.assert_close(factors.values.double(), spectrum.double().sort(descending=True).values, rtol=1e-4, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spectrum", ["flat", "mild", "1e4"])
def test_factor_against_scipy(spectrum, dtype):
    matrix = matrix_with(SPECTRA[spectrum])
    expected = torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])
    tolerance = 1e-10 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(factors_of(matrix, dtype)[0].polar().double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [0, 1, 5, 9])
def test_undetermined_directions_are_the_limit_of_a_vanishing_completion(rank, dtype):
    matrix = matrix_with(torch.tensor([1.0 - 0.05 * i if i < rank else 0.0 for i in range(10)]), num_columns=17)
    factors, completion = factors_of(matrix, dtype, floor=1e-12)
    assert factors.rank == rank
    limit = torch.from_numpy(scipy.linalg.polar((matrix + 1e-8 * completion.double()).numpy())[0])
    torch.testing.assert_close(factors.polar().double(), limit, rtol=0, atol=3e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("num_columns", [2, 3])
def test_completion_that_says_nothing_about_the_open_direction(num_columns, dtype):
    # The only open direction of the completion is already taken by the matrix.
    matrix = torch.tensor([[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]], dtype=torch.float64)[:, :num_columns]
    completion = torch.eye(2, num_columns, dtype=dtype)
    factors = polar_factors(matrix, completion, negligible=1e-12)
    polar = factors.polar().double()
    torch.testing.assert_close(polar @ polar.T, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-6)
    gradient = polar_gradient(torch.ones_like(completion), factors, completion)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("spectrum", ["flat", "mild", "1e4"])
def test_gradient_in_float32_agrees_with_float64(spectrum):
    matrix = matrix_with(SPECTRA[spectrum])
    grad_polar = torch.randn(40, 90, dtype=torch.float64)
    single, double = (
        polar_gradient(grad_polar.to(dtype), *factors_of(matrix, dtype)).double() for dtype in (torch.float32, torch.float64)
    )
    assert (single - double).norm() < 1e-3 * double.norm()


@pytest.mark.parametrize("rank", [1, 3, 4, 6])
@pytest.mark.parametrize("num_columns", [6, 9])
def test_gradient_against_finite_differences_with_several_open_directions(rank, num_columns):
    generator = torch.Generator().manual_seed(rank)
    matrix, change, grad_polar = (torch.randn(6, num_columns, dtype=torch.float64, generator=generator) for _ in range(3))
    left = torch.linalg.qr(torch.randn(6, rank, dtype=torch.float64, generator=generator)).Q
    # Changes that keep the null space of X.
    matrix, change = left @ left.T @ matrix, left @ left.T @ change
    completion = haar_basis(num_columns, 6, dtype=torch.float64).T
    factors = polar_factors(matrix, completion, negligible=1e-12)
    assert factors.rank == rank

    def loss(step):
        return (grad_polar * polar_factors(matrix + step * change, completion, negligible=1e-12).polar()).sum()

    numerical = (loss(1e-6) - loss(-1e-6)) / 2e-6
    torch.testing.assert_close((polar_gradient(grad_polar, factors, completion) * change).sum(), numerical, rtol=1e-7, atol=1e-7)


def test_gradient_in_float32_with_many_open_directions():
    matrix = matrix_with(torch.cat([torch.linspace(2.0, 1.0, 150), torch.zeros(150)]), num_columns=500)
    grad_polar = torch.randn(300, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    completion = haar_basis(500, 300, dtype=torch.float64).T
    single, double = (
        polar_gradient(
            grad_polar.to(dtype), polar_factors(matrix, completion.to(dtype), negligible=1e-7), completion.to(dtype)
        ).double()
        for dtype in (torch.float32, torch.float64)
    )
    assert (single - double).norm() < 1e-4 * double.norm()
