import pytest
import scipy.linalg
import scipy.stats
import torch

from guided_collapse.geometry.directions import frame_basis, haar_basis, helmert_basis


def test_canonical_is_the_identity_on_top_of_zeros():
    assert torch.equal(frame_basis(7, 4), torch.cat([torch.eye(4), torch.zeros(3, 4)]))


@pytest.mark.parametrize("direction", ["canonical", "random"])
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(9, 4), (4, 4), (3, 4), (1, 2)])
def test_orthonormal_columns_or_one_dimension_less_orthonormal_rows(direction, feature_dim, num_classes):
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


def test_random_directions_come_from_the_generator_handed_in():
    first, again, other = (haar_basis(6, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_directions_are_haar_distributed():
    # Without the correction of signs, LAPACK's convention would make the first entry of the first column negative in all draws.
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([haar_basis(3, 3, generator=generator, dtype=torch.float64) for _ in range(2000)])
    for row in range(3):
        for column in range(3):
            # An entry of a Haar-distributed rotation in three dimensions is uniform on [-1, 1] (Archimedes).
            uniform = scipy.stats.uniform(loc=-1, scale=2)
            assert scipy.stats.kstest(draws[:, row, column].numpy(), uniform.cdf).pvalue > 1e-3


def test_refuses_unknown_directions_and_sizes_without_a_frame():
    with pytest.raises(ValueError, match=r"direction must be one of canonical, random; got 'up'"):
        frame_basis(5, 4, direction="up")
    with pytest.raises(ValueError, match=r"feature_dim must be at least num_classes - 1.*feature_dim=8, num_classes=10"):
        frame_basis(8, 10)
