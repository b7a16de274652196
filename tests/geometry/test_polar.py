import pytest
import scipy.linalg
import torch

from guided_collapse.geometry.polar import complete, polar_gradient, singular_factors
from guided_collapse.geometry.simplex import center_classes, haar_basis

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


def completed(matrix, completion, negligible):
    """The completed factors of X, its polar factor in float64, and the further arguments of the gradient."""
    factors = singular_factors(matrix, negligible, completion.dtype)
    completion_values = complete(factors, completion)
    return factors, (factors.left @ factors.right).double(), (factors, completion_values, completion)


def factors_of(matrix, dtype, floor=1e-15):
    completion = haar_basis(matrix.shape[1], matrix.shape[0], dtype=dtype).T
    return *completed(matrix, completion, floor * float(matrix.norm())), completion


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_the_polar_factor_is_orthonormal_and_optimal_at_every_condition_number(spectrum, dtype):
    matrix = matrix_with(spectrum)
    factors, polar, *_ = factors_of(matrix, dtype)
    tolerance = 1e-13 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(polar @ polar.T, torch.eye(40, dtype=torch.float64), rtol=0, atol=tolerance)
    symmetric = matrix @ polar.T
    torch.testing.assert_close(symmetric, symmetric.T, rtol=0, atol=tolerance)
    assert torch.linalg.eigvalsh(symmetric).min() > -tolerance
    torch.testing.assert_close(factors.values.double(), spectrum.double(), rtol=1e-4, atol=1e-14)
    if spectrum.min() > 1e-5:
        expected = torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])
        torch.testing.assert_close(polar, expected, rtol=0, atol=1e-10 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [0, 1, 5, 9])
def test_open_directions_are_the_limit_of_a_vanishing_completion(rank, dtype):
    matrix = matrix_with(torch.tensor([1.0 - 0.05 * i if i < rank else 0.0 for i in range(10)]), num_columns=17)
    factors, polar, _, completion = factors_of(matrix, dtype, floor=1e-12)
    assert factors.rank == rank
    limit = torch.from_numpy(scipy.linalg.polar((matrix + 1e-8 * completion.double()).numpy())[0])
    torch.testing.assert_close(polar, limit, rtol=0, atol=3e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("num_columns", [2, 3])
def test_a_completion_that_leaves_the_open_direction_open(num_columns, dtype):
    # The matrix already determines the only direction in which the completion could help.
    matrix = torch.tensor([[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]], dtype=torch.float64)[:, :num_columns]
    completion = torch.eye(2, num_columns, dtype=dtype)
    _, polar, saved = completed(matrix, completion, 1e-12)
    torch.testing.assert_close(polar @ polar.T, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-6)
    gradient = polar_gradient(torch.ones_like(completion), *saved)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("rank", [1, 3, 4, 6])
@pytest.mark.parametrize("num_columns", [6, 9])
def test_gradient_against_finite_differences_with_several_open_directions(rank, num_columns):
    generator = torch.Generator().manual_seed(rank)
    matrix, change, grad_polar = (torch.randn(6, num_columns, dtype=torch.float64, generator=generator) for _ in range(3))
    left = torch.linalg.qr(torch.randn(6, rank, dtype=torch.float64, generator=generator)).Q
    # The derivative is along changes that keep the null space of X.
    matrix, change = left @ left.T @ matrix, left @ left.T @ change
    completion = haar_basis(num_columns, 6, dtype=torch.float64).T
    factors, _, saved = completed(matrix, completion, 1e-12)
    assert factors.rank == rank

    def loss(step):
        return (grad_polar * completed(matrix + step * change, completion, 1e-12)[1]).sum()

    numerical = (loss(1e-6) - loss(-1e-6)) / 2e-6
    torch.testing.assert_close((polar_gradient(grad_polar, *saved) * change).sum(), numerical, rtol=1e-7, atol=1e-7)


FLOAT32 = {
    "flat": SPECTRA["flat"],
    "1e4": SPECTRA["1e4"],
    "half open": torch.cat([torch.linspace(2.0, 1.0, 150), torch.zeros(150)]),
}


@pytest.mark.parametrize("spectrum", FLOAT32.values(), ids=FLOAT32.keys())
def test_gradient_in_float32_agrees_with_float64(spectrum):
    matrix, completion = matrix_with(spectrum, num_columns=500), haar_basis(500, len(spectrum), dtype=torch.float64).T
    grad_polar = torch.randn(len(spectrum), 500, dtype=torch.float64)
    single, double = (
        polar_gradient(grad_polar.to(dtype), *completed(matrix, completion.to(dtype), 1e-7)[2]).double()
        for dtype in (torch.float32, torch.float64)
    )
    assert (single - double).norm() < 1e-4 * double.norm()


LARGE = {
    "flat": torch.ones(300),
    "one large": torch.tensor([1.0] + 299 * [1 / 60]),
    "over two decades": torch.logspace(0, -1.9, 300),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_float32_factors_of_a_large_matrix(name, scale):
    matrix = matrix_with(LARGE[name], num_columns=500)
    factors = singular_factors(scale * matrix, 0.0, torch.float32)
    exact = torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])
    assert ((factors.left @ factors.right).double() - exact).norm() < 1.5e-6 * exact.norm()
    torch.testing.assert_close(factors.values.double(), scale * LARGE[name].double(), rtol=1e-4, atol=0)
    rebuilt = (factors.left * factors.values) @ factors.right
    assert (rebuilt.double() / scale - matrix).norm() < 1e-3 * matrix.norm()


@pytest.mark.parametrize("sum_of_rows", [0.0, 1e-9])
def test_rows_that_nearly_sum_to_zero(sum_of_rows):
    left = torch.linalg.qr(center_classes(haar_basis(300, 299, dtype=torch.float64))).Q
    matrix = left * torch.linspace(1.0, 0.1, 299, dtype=torch.float64) @ haar_basis(500, 299, dtype=torch.float64).T
    extra = torch.randn(500, dtype=torch.float64)
    matrix += sum_of_rows * extra / extra.norm()
    factors = singular_factors(matrix, 1e-12, torch.float32)
    assert factors.rank == 300 - (sum_of_rows == 0)
    torch.testing.assert_close(factors.left[:, -1].abs(), torch.full((300,), 300**-0.5), rtol=1e-5, atol=0)
    if sum_of_rows:
        exact = torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])
        assert ((factors.left @ factors.right).double() - exact).norm() < 2e-6 * exact.norm()


@pytest.mark.parametrize(("floor", "rank"), [(5e-7, 4), (2e-6, 3), (1e-5, 2), (0.7, 1), (2.0, 0)])
def test_values_just_above_a_floor_near_the_rounding_of_the_gram_matrix_are_kept(floor, rank):
    values = torch.tensor([1.0, 0.5, 4e-6, 8e-7, 1e-8])
    factors = singular_factors(matrix_with(values), floor, torch.float32)
    torch.testing.assert_close(factors.values, values.where(torch.arange(5) < rank, 0.0), rtol=1e-5, atol=0)
    assert factors.rank == rank
    assert singular_factors(torch.zeros(4, 9, dtype=torch.float64), 0.0, torch.float32).rank == 0
