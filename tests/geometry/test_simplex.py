import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from guided_collapse.geometry import frame_basis, simplex_etf
from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes, frame_weight, haar_basis, helmert_basis


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
def test_rows_have_norm_one_sum_to_zero_and_are_equiangular(num_classes):
    frame = simplex_etf(num_classes, dtype=torch.float64)
    gram = frame @ frame.T
    expected = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(frame.sum(0), torch.zeros(num_classes, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (5, 5), (4, 5), (1, 2)])
def test_weight_of_a_basis_is_the_dense_product(feature_dim, num_classes):
    basis = frame_basis(feature_dim, num_classes, direction="random", dtype=torch.float64)
    weight = frame_weight(basis)
    torch.testing.assert_close(weight, simplex_etf(num_classes, dtype=torch.float64) @ basis.T)
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(num_classes, dtype=torch.float64))


def test_the_canonical_basis_is_the_identity_on_top_of_zeros():
    assert torch.equal(frame_basis(7, 4), torch.cat([torch.eye(4), torch.zeros(3, 4)]))


@pytest.mark.parametrize("direction", ["canonical", "random"])
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(9, 4), (4, 4), (3, 4), (1, 2)])
def test_columns_are_orthonormal_or_in_one_dimension_less_rows_are(direction, feature_dim, num_classes):
    basis = frame_basis(feature_dim, num_classes, direction=direction, dtype=torch.float64)
    assert basis.shape == (feature_dim, num_classes)
    if feature_dim >= num_classes:
        torch.testing.assert_close(basis.T @ basis, torch.eye(num_classes, dtype=torch.float64))
    else:
        torch.testing.assert_close(basis @ basis.T, torch.eye(feature_dim, dtype=torch.float64))
        torch.testing.assert_close(basis.sum(1), torch.zeros(feature_dim, dtype=torch.float64))


def test_helmert_against_scipy():
    expected = torch.from_numpy(scipy.linalg.helmert(6)).T
    torch.testing.assert_close(helmert_basis(6, dtype=torch.float64).abs(), expected.abs())
    torch.testing.assert_close(helmert_basis(6, dtype=torch.float64).T @ expected, torch.eye(5, dtype=torch.float64))


def test_random_directions_are_haar_distributed():
    # Without the correction of signs, LAPACK's convention makes the first entry of the first column negative in every draw.
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([haar_basis(3, 3, generator=generator, dtype=torch.float64) for _ in range(2000)])
    # An entry of a Haar-distributed rotation in three dimensions is uniform on [-1, 1] (Archimedes).
    uniform = scipy.stats.uniform(loc=-1, scale=2)
    for entries in draws.flatten(1).T:
        assert scipy.stats.kstest(entries.numpy(), uniform.cdf).pvalue > 1e-3


def test_refusals():
    with pytest.raises(ValueError, match=r"direction must be one of canonical, random; got 'up'"):
        frame_basis(5, 4, direction="up")
    with pytest.raises(ValueError, match=r"feature_dim must be at least num_classes - 1.*feature_dim=8, num_classes=10"):
        frame_basis(8, 10)
    for num_classes in (1, 0, -3):
        with pytest.raises(ValueError, match=f"num_classes must be at least 2.*num_classes={num_classes}"):
            simplex_etf(num_classes)
    with pytest.raises(ValueError, match="feature_dim must be at least 1; got feature_dim=0"):
        check_feature_dim(0)


@pytest.mark.parametrize("size", [3.5, 3.0, "3", None, True])
def test_sizes_that_are_not_integers_raise_type_errors(size):
    with pytest.raises(TypeError, match="num_classes must be an integer; got"):
        check_num_classes(size)
    with pytest.raises(TypeError, match="feature_dim must be an integer; got"):
        check_feature_dim(size)
    check_num_classes(np.int64(3))
