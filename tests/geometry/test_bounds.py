import itertools
import math

import pytest
import torch

from guided_collapse import cross_entropy_lower_bound, simplex_etf
from guided_collapse.geometry import largest_cosine_bound, tight_frame, tight_frame_cross_entropy_bound, welch_bound


def cosines(weight):
    gram = weight @ weight.T
    return gram[~torch.eye(len(weight), dtype=torch.bool)]


def orthoplex(feature_dim):
    identity = torch.eye(feature_dim, dtype=torch.float64)
    return torch.cat([identity, -identity])


def icosahedron():
    golden = (1 + math.sqrt(5)) / 2
    corners = [(0.0, a, b * golden) for a, b in itertools.product((1, -1), repeat=2)]
    rows = [corner[shift:] + corner[:shift] for corner in corners for shift in range(3)]
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=1)


def test_equiangular_lines_attain_the_welch_bound():
    # The six diagonals of the icosahedron, and the simplex ETF.
    diagonals = [row for row in icosahedron() if (row[row != 0][0]) > 0]
    assert float(cosines(torch.stack(diagonals)).abs().max()) == pytest.approx(welch_bound(3, 6)) == pytest.approx(5**-0.5)
    assert float(cosines(simplex_etf(5, dtype=torch.float64)).abs().max()) == pytest.approx(welch_bound(4, 5))
    assert welch_bound(9, 4) == 0


def test_known_best_frames_attain_the_largest_cosine_bound():
    assert float(cosines(simplex_etf(5, dtype=torch.float64)).max()) == pytest.approx(largest_cosine_bound(7, 5))
    assert float(cosines(orthoplex(5)).max()) == largest_cosine_bound(5, 10) == largest_cosine_bound(5, 7)
    # 16 vectors in five dimensions, 27 in six: known optimal codes with cosines 1/5 and 1/4.
    assert largest_cosine_bound(5, 16) == pytest.approx(1 / 5)
    assert largest_cosine_bound(6, 27) == pytest.approx(1 / 4)
    assert largest_cosine_bound(2, 7) == pytest.approx(math.cos(2 * math.pi / 7))
    assert largest_cosine_bound(1, 3) == 1


@pytest.mark.parametrize("feature_dim", [1, 2, 3, 8])
def test_largest_cosine_bound_grows_with_the_classes_and_holds_for_every_frame(feature_dim):
    bounds = [largest_cosine_bound(feature_dim, num_classes) for num_classes in range(2, 60)]
    assert bounds == sorted(bounds)
    for num_classes in range(2, 60, 7):
        for direction in ("canonical", "random"):
            frame = tight_frame(feature_dim, num_classes, direction=direction, dtype=torch.float64, rounds=2)
            assert float(cosines(frame).max()) >= largest_cosine_bound(feature_dim, num_classes) - 1e-12
    assert float(cosines(icosahedron()).max()) >= largest_cosine_bound(3, 12)


@pytest.mark.parametrize("scale", [0.5, 5.0, 20.0])
def test_simplex_and_orthoplex_attain_the_cross_entropy_bound(scale):
    assert tight_frame_cross_entropy_bound(4, 5, scale) == cross_entropy_lower_bound(5, scale)
    weight = orthoplex(6)
    loss = torch.nn.functional.cross_entropy(scale * weight @ weight.T, torch.arange(12))
    assert tight_frame_cross_entropy_bound(6, 12, scale) == pytest.approx(float(loss))


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(2, 5), (3, 7), (5, 12), (6, 40), (6, 9)])
@pytest.mark.parametrize("scale", [0.5, 5.0, 20.0])
def test_optimized_features_stay_above_the_cross_entropy_bound(feature_dim, num_classes, scale):
    weight = tight_frame(feature_dim, num_classes, direction="random", dtype=torch.float64, rounds=60)
    features = (scale * weight).clone().requires_grad_()
    optimizer = torch.optim.Adam([features], lr=0.02)
    lowest = math.inf
    for _ in range(200):
        on_sphere = scale * torch.nn.functional.normalize(features, dim=1)
        value = torch.nn.functional.cross_entropy(on_sphere @ weight.T, torch.arange(num_classes))
        lowest = min(lowest, float(value.detach()))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    bound = tight_frame_cross_entropy_bound(feature_dim, num_classes, scale)
    assert cross_entropy_lower_bound(num_classes, scale) < bound <= lowest + 1e-6


def test_refusals():
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        welch_bound(3, 1)
    with pytest.raises(ValueError, match=r"feature_dim must be at least 2.*feature_dim=1, num_classes=5"):
        tight_frame_cross_entropy_bound(1, 5, 5.0)
    with pytest.raises(ValueError, match="scale must be a positive, finite number; got 0"):
        tight_frame_cross_entropy_bound(2, 5, 0.0)
