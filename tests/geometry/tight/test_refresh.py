"""The next frame in blocks is the nearest frame, and takes no more memory than a frame."""

import pytest
import torch

from guided_collapse.geometry.frames import nearest_frame, tightness_defect
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.tight import refresh
from guided_collapse.geometry.tight.refresh import next_frame
from guided_collapse.geometry.tight.tight import tight_frame

# (num_classes, feature_dim): not centered, then rounds on the rows that complete the frame, then rounds on the frame itself.
SIZES = [(6, 4), (12, 9), (60, 56), (7, 2), (40, 6)]


def problem(num_classes, feature_dim, dtype=torch.float64):
    torch.manual_seed(num_classes)
    means = center_classes(torch.randn(num_classes, feature_dim, dtype=dtype))
    return means, tight_frame(num_classes, feature_dim, direction="random", dtype=dtype)


def everything(frame):
    return torch.ones(len(frame), dtype=torch.bool)


@pytest.mark.parametrize("solver", ["factors", "products"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_is_the_nearest_frame_for_the_same_rounds(solver, dtype, monkeypatch):
    monkeypatch.setattr(refresh, "BLOCK_NUMBERS", 600)
    for num_classes, feature_dim in SIZES:
        means, frame = problem(num_classes, feature_dim, dtype)
        basis = frame.T * (feature_dim / num_classes) ** 0.5
        for rounds in (1, 3):
            found = next_frame(
                7 * means, frame, everything(frame), is_first=False, proximal_weight=1e-3, rounds=rounds, solver=solver
            )
            expected = nearest_frame(means, basis, proximal_weight=1e-3, rounds=rounds, solver="factors").weight
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_the_first_frame_has_no_pull_but_a_vanishing_one(solver):
    means, frame = problem(40, 6)
    found = next_frame(means, frame, everything(frame), is_first=True, proximal_weight=10.0, rounds=3, solver=solver)
    expected = nearest_frame(means, frame.T * (6 / 40) ** 0.5, proximal_weight=0.0, rounds=3).weight
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("solver", ["factors", "products"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_classes_seen_of_many_leave_a_frame(solver, dtype):
    """Means of low rank: the frame before fills the rest."""
    _, frame = problem(2000, 16, dtype)
    for proximal_weight in (0.0, 1e-3):
        for seen in (1, 5, 40):
            means = torch.zeros(2000, 16, dtype=dtype)
            means[:seen] = torch.randn(seen, 16, dtype=dtype)
            present = torch.arange(2000) < seen
            found = next_frame(means, frame, present, is_first=True, proximal_weight=proximal_weight, rounds=1, solver=solver)
            assert torch.isfinite(found).all()
            torch.testing.assert_close(found.norm(dim=1), torch.ones(2000, dtype=dtype))
            for _ in range(3):
                found = next_frame(means, found, present, is_first=False, proximal_weight=proximal_weight, rounds=1, solver=solver)
            assert float(tightness_defect(found)) < 1e-3
            # Each seen class stands by its mean.
            cosines = torch.nn.functional.cosine_similarity(found[:seen], means[:seen])
            assert float(cosines.min()) > 0.8


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_it_stays_tight_along_a_drift(solver):
    torch.manual_seed(0)
    means, frame = torch.randn(100, 12), tight_frame(100, 12)
    drift = 0.3 * torch.randn(100, 12)
    for step in range(10):
        means = means + drift
        frame = next_frame(means, frame, everything(frame), is_first=step == 0, proximal_weight=1e-3, rounds=3, solver=solver)
        assert float(tightness_defect(frame)) < 1e-3
        assert float(frame.mean(0).norm()) < 1e-3


def test_means_that_are_zero_or_not_finite_keep_the_frame():
    _, frame = problem(40, 6)
    for solver in ("factors", "products"):
        kept = next_frame(
            torch.zeros(40, 6).double(), frame, everything(frame), is_first=False, proximal_weight=1e-3, rounds=2, solver=solver
        )
        torch.testing.assert_close(kept, frame, rtol=0, atol=1e-4)
    means = torch.full((40, 6), torch.nan).double()
    assert torch.equal(
        next_frame(means, frame, everything(frame), is_first=False, proximal_weight=1e-3, rounds=2, solver="products"), frame
    )
