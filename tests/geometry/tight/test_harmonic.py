import pytest
import torch

from guided_collapse.geometry.tight.harmonic import harmonic_columns


@pytest.mark.parametrize("num_classes", [3, 4, 7, 12, 25])
def test_orthonormal_columns_that_sum_to_zero_in_every_dimension(num_classes):
    for feature_dim in range(1, num_classes - 1):
        columns = harmonic_columns(num_classes, feature_dim, dtype=torch.float64)
        torch.testing.assert_close(columns.T @ columns, torch.eye(feature_dim, dtype=torch.float64))
        torch.testing.assert_close(columns.sum(0), torch.zeros(feature_dim, dtype=torch.float64), rtol=0, atol=1e-13)
        if feature_dim % 2 == 0 or num_classes % 2 == 0:
            expected = torch.full((num_classes,), (feature_dim / num_classes) ** 0.5, dtype=torch.float64)
            torch.testing.assert_close(columns.norm(dim=1), expected)


def test_no_two_of_many_classes_are_near_to_each_other():
    columns = harmonic_columns(2000, 64, dtype=torch.float64)
    cosines = (columns @ columns.T * 2000 / 64).fill_diagonal_(0.0)
    # The lowest frequencies would give 0.999 for neighbors.
    assert float(cosines.abs().max()) < 0.7
