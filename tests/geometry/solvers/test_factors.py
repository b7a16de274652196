import pytest
import scipy.linalg
import torch

from guided_collapse.geometry.directions import haar_basis
from guided_collapse.geometry.solvers import factors as room
from guided_collapse.geometry.solvers.factors import factors_by_gram

SIZE, COLUMNS = 300, 500
SPECTRA = {
    "flat": torch.ones(SIZE),
    "one large": torch.tensor([1.0] + (SIZE - 1) * [1 / 60]),
    "over two decades": torch.logspace(0, -1.9, SIZE),
}


def matrix_with(values, *, rows_sum_to_zero=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    left = haar_basis(len(values) + rows_sum_to_zero, len(values), dtype=torch.float64, generator=generator)
    if rows_sum_to_zero:
        left = torch.linalg.qr(left - left.mean(dim=0)).Q
    return left * values.double() @ haar_basis(COLUMNS, len(values), dtype=torch.float64, generator=generator).T


def exact_polar(matrix):
    return torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])


def relative_error(polar, exact):
    return float((polar.double() - exact).norm() / exact.norm())


@pytest.fixture
def no_double_precision(monkeypatch):
    def refuse(*_):
        raise AssertionError("double precision is not needed here")

    monkeypatch.setattr(room, "_by_double_precision", refuse)


@pytest.mark.usefixtures("no_double_precision")
@pytest.mark.parametrize("name", SPECTRA)
def test_single_precision_is_enough_for_well_conditioned_matrices(name):
    matrix = matrix_with(SPECTRA[name])
    factors = factors_by_gram(matrix, 0.0)
    # Without the correction the error is over 3e-6 in the last two.
    assert relative_error(factors.polar(), exact_polar(matrix)) < 1.5e-6
    torch.testing.assert_close(factors.values.double(), SPECTRA[name].double(), rtol=1e-4, atol=0)
    rebuilt = (factors.left * factors.values) @ factors.right
    assert relative_error(rebuilt, matrix) < 1e-3


@pytest.mark.parametrize("sum_of_rows", [0.0, 1e-9])
def test_rows_that_sum_to_nearly_zero_are_split_off(sum_of_rows, monkeypatch):
    matrix = matrix_with(torch.linspace(1.0, 0.1, SIZE - 1), rows_sum_to_zero=True)
    extra = torch.randn(COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix += sum_of_rows * extra / extra.norm()
    sizes = []
    by_double = room._by_double_precision
    monkeypatch.setattr(room, "_by_double_precision", lambda *given: sizes.append(len(given[0])) or by_double(*given))
    factors = factors_by_gram(matrix, 1e-12)
    assert all(size == 1 for size in sizes)
    assert factors.rank == SIZE - (sum_of_rows == 0)
    if sum_of_rows:
        assert relative_error(factors.polar(), exact_polar(matrix)) < 2e-6
    torch.testing.assert_close(factors.left[:, -1], torch.full((SIZE,), SIZE**-0.5), rtol=1e-6, atol=0)


def test_what_is_too_much_to_correct_is_done_in_double_precision(monkeypatch):
    matrix = matrix_with(SPECTRA["flat"])
    sizes = []
    by_double = room._by_double_precision
    monkeypatch.setattr(room, "_by_double_precision", lambda *given: sizes.append(len(given[0])) or by_double(*given))
    monkeypatch.setattr(room, "CORRECTABLE", 1e-9)
    # What is left is the rounding of the last product, in float32, which differs between processors.
    assert relative_error(factors_by_gram(matrix, 0.0).polar(), exact_polar(matrix)) < 6e-7
    assert sizes == [SIZE]


@pytest.mark.parametrize("floor", [0.5, 2.0])
def test_values_up_to_the_floor_are_zero_however_many_they_are(floor):
    # Each is below the floor though their root mean square over all is not: nothing is left to divide by, and nothing repeats.
    factors = factors_by_gram(matrix_with(torch.linspace(1.0, 0.3, 40)), floor)
    assert factors.rank == int((torch.linspace(1.0, 0.3, 40) > floor).sum())


@pytest.mark.parametrize(("floor", "rank"), [(5e-7, 4), (2e-6, 3), (1e-5, 2)])
def test_values_just_above_a_floor_near_the_rounding_of_the_gram_matrix_are_kept(floor, rank):
    values = torch.tensor([1.0, 0.5, 4e-6, 8e-7, 1e-8])
    factors = factors_by_gram(matrix_with(values), floor)
    torch.testing.assert_close(factors.values, values.where(torch.arange(5) < rank, 0.0), rtol=1e-5, atol=0)


def test_small_and_zero_matrices():
    matrix = matrix_with(SPECTRA["flat"])
    torch.testing.assert_close(factors_by_gram(1e-12 * matrix, 0.0).polar().double(), exact_polar(matrix), rtol=0, atol=1e-6)
    assert factors_by_gram(torch.zeros(4, 9, dtype=torch.float64), 0.0).rank == 0
