import pytest
import torch

from guided_collapse.metrics.formulas.products import symmetrized
from guided_collapse.metrics.formulas.within import (
    add_large_class,
    add_small_classes,
    centered_rows,
    exact_gram,
    hidden_by,
    numerical_rank,
    squared_singular_values,
)

WIDTH = 12


def collapsed(num_rows, noise, dtype, offset=1.0):
    return (offset + torch.randn(WIDTH) + noise * torch.randn(num_rows, WIDTH, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("noise", [1.0, 1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deviations_have_all_digits_however_small_they_are(noise, dtype):
    features, classes = collapsed(900, noise, dtype), torch.tensor([0] * 500 + [1] * 400)
    indices = torch.randperm(900)
    found = centered_rows(features, indices, classes, torch.empty_like(features))
    rows = features.double()[indices]
    means = torch.stack([rows[:500].mean(dim=0), rows[500:].mean(dim=0)])
    relative = 4 * torch.finfo(dtype).eps
    spread = float((rows - means[classes]).abs().max())
    torch.testing.assert_close(found.deviations.double(), rows - means[classes], rtol=relative, atol=relative * spread + 1e-13)
    torch.testing.assert_close(found.means, means, rtol=1e-14, atol=relative * spread + 1e-14)


@pytest.mark.parametrize(("scale", "dtype"), [(1e-25, torch.float64), (1.0, torch.float32), (1e25, torch.float64)])
def test_products_that_leave_the_range_of_float32_are_in_float64(scale, dtype):
    features = collapsed(30, 1.0, torch.float32) * scale
    found = centered_rows(features, torch.arange(30), torch.zeros(30, dtype=torch.int64), torch.empty_like(features))
    assert found.deviations.dtype == dtype
    torch.testing.assert_close(found.means[0] / scale, features.double().mean(dim=0) / scale, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("noise", [1.0, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows_at_once", [7, 50, 1000])
def test_a_class_in_parts_is_a_class_as_a_whole(rows_at_once, dtype, noise):
    features, samples = collapsed(100, noise, dtype), torch.randperm(100)
    scatters = torch.zeros(2, WIDTH, WIDTH, dtype=torch.float64)
    parts = add_large_class(scatters[0], features, samples, torch.empty(rows_at_once, WIDTH, dtype=dtype))
    whole = add_small_classes(scatters[1], features, [samples], torch.empty(100, WIDTH, dtype=dtype))
    deviations = features.double() - features.double().mean(dim=0)
    expected = deviations.T @ deviations
    rank = numerical_rank(squared_singular_values(features.double().T @ features.double()))
    # In float64, the mean about which the expected values are taken is itself off by rounding.
    relative = 1e-6 if dtype == torch.float32 else 1e-9
    for scatter, found in zip(scatters, (parts, whole), strict=True):
        torch.testing.assert_close(symmetrized(scatter), expected, rtol=relative, atol=relative * float(expected.max()))
        torch.testing.assert_close(found.means[0], features.double().mean(dim=0), rtol=0, atol=relative * noise)
        assert float(found.scatter) == pytest.approx(float(expected.trace()), rel=relative)
        assert float(found.ranks) == pytest.approx(float(rank), rel=1e-6)


def test_several_classes_are_kept_apart():
    features = torch.randn(60, WIDTH)
    samples = torch.split(torch.randperm(60), [1, 11, 8, 40])
    together, apart = torch.zeros(2, WIDTH, WIDTH, dtype=torch.float64)
    found = add_small_classes(together, features, samples, torch.empty(60, WIDTH))
    for position, indices in enumerate(samples):
        one = add_small_classes(apart, features, [indices], torch.empty(60, WIDTH))
        for whole, part in zip(found, one, strict=True):
            torch.testing.assert_close(whole[position], part[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(symmetrized(together), symmetrized(apart), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_samples", [30, 400])
@pytest.mark.parametrize("noise", [0.0, 1e-5, 1e-4, 1e-3])
def test_ranks_of_few_directions_in_many_dimensions(noise, num_samples):
    # The square root of what rounding leaves in 200 vanishing directions would count as much as the three that are there.
    basis = torch.linalg.qr(torch.randn(200, 3, dtype=torch.float64)).Q
    features = (torch.randn(num_samples, 3, dtype=torch.float64) @ basis.T + noise * torch.randn(num_samples, 200)).float()
    values = torch.linalg.svdvals(features.double())
    # The last part is a single sample, whose deviation is zero.
    scatter, samples, buffer = (
        torch.zeros(200, 200, dtype=torch.float64),
        torch.arange(num_samples),
        torch.empty(num_samples - 1, 200),
    )
    if num_samples < 200:
        found = add_small_classes(scatter, features, [samples], torch.empty_like(features))
    else:
        found = add_large_class(scatter, features, samples, buffer)
    assert float(found.ranks) == pytest.approx(float(values.sum() ** 2 / (values**2).sum()), rel=2e-4)


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_equal_singular_values_count(rank):
    rows = 5.0 * torch.eye(6, dtype=torch.float64)[:, :rank]
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    values = squared_singular_values(rotation @ rows @ rows.T @ rotation.T)
    assert float(numerical_rank(values)) == pytest.approx(rank, abs=1e-6)


def test_unequal_ones_count_less():
    assert float(numerical_rank(torch.tensor([9.0, 1.0], dtype=torch.float64))) == pytest.approx((3 + 1) ** 2 / 10)


def test_the_lower_triangle_is_not_read():
    gram = torch.tensor([[2.0, 1.0], [torch.nan, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(squared_singular_values(gram), torch.tensor([1.0, 3.0], dtype=torch.float64))


def test_errors_matter_where_many_values_are_below_them():
    values = torch.cat([torch.ones(3), torch.zeros(200)]).double()
    assert hidden_by(torch.tensor(1e-7), values)
    assert not hidden_by(torch.tensor(1e-16), values)
    assert not hidden_by(torch.tensor(1e-7), torch.ones(203).double())


@pytest.mark.parametrize("num_samples", [4, 9, 30])
def test_the_exact_gram_matrix_is_the_smaller_one(num_samples):
    features = torch.randn(40, 9)
    samples = torch.randperm(40)[:num_samples]
    values = squared_singular_values(exact_gram(features, samples, 7))
    assert len(values) == min(num_samples, 9)
    torch.testing.assert_close(values.flip(0).sqrt(), torch.linalg.svdvals(features[samples].double()))
