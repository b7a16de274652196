"""Tight frames, for more classes than a simplex ETF allows. Sizes are (feature_dim, num_classes)."""

import pytest
import scipy.linalg
import torch

from guided_collapse import nearest_etf
from guided_collapse.geometry import frame_basis, nearest_frame, tight_frame, tightness_defect
from guided_collapse.geometry.simplex import frame_weight
from guided_collapse.geometry.tight import PULL, SETTLING_PULL, can_be_centered, default_every, harmonic_columns, rounds_in_training
from tests.geometry.restarts import restart_costs, tangent
from tests.geometry.test_nearest import any_basis, centered_means

pytestmark = pytest.mark.slow

# Sizes that cannot be centered, then with rounds on the complement, then with rounds on the frame itself.
SIZES = [(1, 3), (3, 5), (4, 6), (5, 9), (9, 12), (2, 7), (4, 12)]
KINDS = ("Gaussian", "low rank", "clustered", "decaying")
LARGER = [(7, 40), (25, 50), (30, 40), (57, 60), (16, 200)]


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(1, 2), (3, 4), (5, 5), (12, 5), (9, 10)])
@pytest.mark.parametrize("with_proximal_point", [False, True])
def test_simplex_etf_where_one_exists(feature_dim, num_classes, with_proximal_point):
    means = centered_means(feature_dim, num_classes)
    anchor = frame_basis(feature_dim, num_classes, direction="random", dtype=torch.float64) if with_proximal_point else None
    found, etf = nearest_frame(means, anchor), nearest_etf(means, anchor)
    torch.testing.assert_close((found.weight, found.basis, found.rank), (etf.weight, etf.basis, etf.rank))
    assert max(float(found.tightness_defect), float(found.norm_defect)) < 1e-12


@pytest.mark.parametrize(("feature_dim", "num_classes"), [*SIZES, (3, 20), (13, 15), (5, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_closed_form_against_scipy(feature_dim, num_classes, dtype):
    """Also for C = d + 1, where the problem coincides with that of the simplex ETF, including the proximal term."""
    means, anchor = centered_means(feature_dim, num_classes, dtype), any_basis(feature_dim, num_classes, dtype)
    found = nearest_frame(means, anchor, proximal_weight=0.1, unit_rows=False)
    matrix = 2 * means.double() / means.double().norm() / feature_dim**0.5 + 0.1 * anchor.double().T
    expected = (num_classes / feature_dim) ** 0.5 * torch.from_numpy(scipy.linalg.polar(matrix.numpy())[0])
    torch.testing.assert_close(found.weight, expected.to(dtype), rtol=0, atol=1e-12 if dtype == torch.float64 else 3e-6)
    torch.testing.assert_close(found.basis, (feature_dim / num_classes) ** 0.5 * found.weight.T)
    assert float(found.tightness_defect) < 1e-6
    assert int(found.rank) == feature_dim


@pytest.mark.parametrize(("feature_dim", "num_classes"), LARGER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_rows_are_unit_and_nearly_tight(feature_dim, num_classes, dtype):
    means = centered_means(feature_dim, num_classes, dtype)
    found = nearest_frame(means, any_basis(feature_dim, num_classes, dtype))
    assert float(found.norm_defect) < 1e-6
    assert max(float(found.tightness_defect), float(found.weight.mean(0).norm())) < 1e-3
    assert float(nearest_frame(means, rounds=100).tightness_defect) < 1e-5


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_more_rounds_make_small_frames_tight_and_centered_where_they_can_be(feature_dim, num_classes):
    found = nearest_frame(centered_means(feature_dim, num_classes), rounds=150)
    assert float(found.norm_defect) < 1e-6
    assert float(found.tightness_defect) < 1e-5
    is_centered = num_classes > feature_dim + 2 and feature_dim > 1
    assert can_be_centered(feature_dim, num_classes) is is_centered
    assert (float(found.weight.mean(0).norm()) < 1e-5) is is_centered


def plain_rounds(means, rounds):
    """The documented rounds in plain torch, for sizes whose rounds without pull work on the frame itself."""
    num_classes, feature_dim = means.shape

    def polar(rows):
        rows = rows - rows.mean(0) if can_be_centered(feature_dim, num_classes) else rows
        squares, rotation = torch.linalg.eigh(rows.T @ rows)
        return rows @ (rotation / squares.sqrt() @ rotation.T)

    target = means * (num_classes**0.5 / means.norm())
    columns, scales = polar(means), torch.ones(num_classes, 1, dtype=means.dtype)
    for index in range(3 * rounds):
        norms = columns.norm(dim=1, keepdim=True)
        if index < min(rounds, 3):
            columns = polar(columns / norms + PULL * target)
        elif index < rounds:
            scales = scales / (norms * (num_classes / feature_dim) ** 0.5)
            columns = polar(scales * columns / norms + SETTLING_PULL * target)
        else:
            columns = polar(columns / norms)
    return columns / columns.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("solver", ["factors", "products"])
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(2, 4), (4, 9)])
@pytest.mark.parametrize("rounds", [0, 1, 3, 11])
def test_rounds_and_their_gradient_against_plain_torch(solver, feature_dim, num_classes, rounds):
    means, direction = centered_means(feature_dim, num_classes), torch.randn(num_classes, feature_dim, dtype=torch.float64)
    results = []
    for plain in (False, True):
        leaf = means.clone().requires_grad_()
        weight = plain_rounds(leaf, rounds) if plain else nearest_frame(leaf, rounds=rounds, solver=solver).weight
        results.append([weight.detach(), torch.autograd.grad((weight * direction).sum(), leaf)[0]])
        results[-1][1] -= results[-1][1].mean(0)
    # By products, a small pull stands in for none.
    tolerance = {"rtol": 1e-8, "atol": 1e-10} if solver == "factors" else {"rtol": 0, "atol": 2e-2 * float(results[1][1].norm())}
    torch.testing.assert_close(*results, **tolerance)


def test_rounds_converge_to_a_stationary_point():
    means = centered_means(6, 20)
    weight = nearest_frame(means, rounds=400).weight
    assert float(tangent(weight[None], means * (20**0.5 / means.norm())).norm()) < 1e-5


def means_of_kind(kind, feature_dim, num_classes):
    means = centered_means(feature_dim, num_classes)
    if kind == "low rank":
        means = means[:, : feature_dim // 2] @ torch.randn(feature_dim // 2, feature_dim, dtype=torch.float64)
    if kind == "clustered":
        centers = torch.randn(num_classes // 4, feature_dim, dtype=torch.float64)
        means = 0.3 * means + centers[torch.arange(num_classes) % len(centers)]
    if kind == "decaying":
        means = means * torch.logspace(0, -2, feature_dim, dtype=torch.float64)
    return means - means.mean(0)


QUICK = [("Gaussian", 4, 12), ("clustered", 4, 12)]
THOROUGH = [(kind, *size) for kind in KINDS for size in ((3, 9), (2, 14), (5, 10), (6, 9))]


@pytest.mark.parametrize(
    ("kind", "feature_dim", "num_classes"), QUICK + [pytest.param(*x, marks=pytest.mark.thorough) for x in THOROUGH]
)
def test_unit_rows_are_no_further_than_the_median_of_random_restarts(kind, feature_dim, num_classes):
    """Up to the last digits: if all restarts end at one minimum, the default rounds stop close to it."""
    means = means_of_kind(kind, feature_dim, num_classes)
    median = float(restart_costs(means, restarts=15 if (kind, feature_dim, num_classes) in THOROUGH else 5).median())
    assert float(nearest_frame(means).distance) <= median + 5e-4
    assert float(nearest_frame(means, rounds=400).distance) <= median + 5e-5


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(2, 5), (4, 6), (2, 4), (3, 8), (5, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_with_equal_means_keep_equal_rows_and_get_a_moderate_gradient(feature_dim, num_classes, dtype):
    means = torch.randn(num_classes, feature_dim, dtype=torch.float64)
    means[1] = means[0]
    means = means - means.mean(0)
    change, direction = torch.randn(2, num_classes, feature_dim, dtype=torch.float64)
    change[1] = change[0]

    def value(means):
        return (nearest_frame(means, rounds=30).weight * direction.to(means.dtype)).sum()

    leaf = means.to(dtype).requires_grad_()
    found = nearest_frame(leaf)
    assert float(found.norm_defect.detach()) < 1e-6
    torch.testing.assert_close(found.weight[0], found.weight[1])
    (gradient,) = torch.autograd.grad(value(leaf), leaf)
    assert float(gradient.norm()) < 100
    expected = (value(means + 1e-6 * change) - value(means - 1e-6 * change)) / 2e-6
    tolerance = 1e-5 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close((gradient * change).sum(), expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def test_a_proximal_point_separates_classes_with_equal_means():
    means = torch.randn(8, 3, dtype=torch.float64)
    means[1] = means[0]
    found = nearest_frame(means - means.mean(0), any_basis(3, 8), proximal_weight=0.1)
    assert float((found.weight[0] - found.weight[1]).norm()) > 0.1
    assert float(found.tightness_defect) < 1e-3


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_the_first_step_and_drifting_means_after_it(solver):
    torch.manual_seed(0)
    means, drift = torch.randn(2, 100, 12, dtype=torch.float64)
    options = {"rounds": rounds_in_training(12, 100), "solver": solver, "proximal_weight": 1e-3}
    basis = any_basis(12, 100)
    anchor = nearest_frame(means, basis, proximal_weight=0.0, unit_rows=False).basis
    expected = nearest_frame(means, anchor if solver == "factors" else basis, **options).weight
    for first_step in (True, torch.tensor(True)):
        found = nearest_frame(means, basis, first_step=first_step, **options)
        torch.testing.assert_close(found.weight, expected, rtol=0, atol=1e-12 if solver == "factors" else 1e-2)
    for _ in range(10):
        means = means + 0.3 * drift
        found = nearest_frame(means - means.mean(0), found.basis, first_step=torch.tensor(False), **options)
        assert max(float(found.tightness_defect), float(found.weight.mean(0).norm())) < 1e-3


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(1, 3), (5, 9), (4, 12)])
@pytest.mark.parametrize("proximal_weight", [0.0, 1e-3])
def test_zero_means_return_the_proximal_point(feature_dim, num_classes, proximal_weight):
    anchor = any_basis(feature_dim, num_classes)
    means = torch.zeros(num_classes, feature_dim, dtype=torch.float64, requires_grad=True)
    closed = nearest_frame(means, anchor, proximal_weight=proximal_weight, unit_rows=False)
    torch.testing.assert_close(closed.basis, anchor)
    unit = nearest_frame(centered_means(feature_dim, num_classes), rounds=200).basis.detach()
    kept = nearest_frame(means, unit, proximal_weight=proximal_weight)
    torch.testing.assert_close(kept.basis, unit, rtol=0, atol=1e-5)
    (gradient,) = torch.autograd.grad(kept.weight.sum() + kept.distance + closed.weight.sum(), means)
    assert torch.equal(gradient, torch.zeros_like(gradient))
    canonical = nearest_frame(torch.zeros_like(means), unit_rows=False).basis
    torch.testing.assert_close(canonical, harmonic_columns(feature_dim, num_classes, dtype=torch.float64).T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_rank_and_missing_classes_are_completed_from_the_proximal_point(dtype):
    means = centered_means(5, 12)
    means[4:] = 0
    means = means[:, :2] @ torch.randn(2, 5, dtype=torch.float64)
    means[:4] -= means[:4].mean(0)
    anchor = any_basis(5, 12)
    found = nearest_frame(means.to(dtype), anchor.to(dtype), proximal_weight=0.0)
    assert int(found.rank) == 2
    assert float(found.norm_defect) < 1e-6
    closed = nearest_frame(means.to(dtype), anchor.to(dtype), proximal_weight=0.0, unit_rows=False)
    limit = nearest_frame(means, anchor, proximal_weight=1e-9, unit_rows=False)
    torch.testing.assert_close(closed.weight.double(), limit.weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(4, 12), (6, 30), (25, 30)])
def test_the_float32_gradient_with_many_unseen_classes_agrees_with_float64(feature_dim, num_classes):
    """Half of the classes were never seen: after centering, their means are all the same."""
    means = centered_means(feature_dim, num_classes)
    means[num_classes // 2 :] = 0
    direction = torch.randn(num_classes, feature_dim, dtype=torch.float64)
    found = []
    for dtype, solver in ((torch.float64, "factors"), (torch.float32, "factors"), (torch.float32, "products")):
        leaf = means.to(dtype).requires_grad_()
        weight = nearest_frame(leaf, solver=solver).weight
        found.append((weight.detach().double(), torch.autograd.grad((weight * direction).sum(), leaf)[0].double()))
    (exact_weight, exact), (single_weight, single), (_, by_products) = found
    torch.testing.assert_close(single_weight, exact_weight, rtol=0, atol=1e-5)
    assert float((single - exact).norm()) < 1e-3 * float(exact.norm())
    # It grows with the rounds but no faster: classes without a mean hardly determine the frame.
    assert float(exact.norm()) < 300
    assert bool(torch.isfinite(by_products).all())


def test_rows_of_the_complement_that_are_zero_and_rows_that_are_zero_become_unit_rows():
    # The closed form has rows of norm 0, and rows of norm 1, whose rows in the complement are zero.
    for solver in ("factors", "products"):
        means = (torch.eye(7, 5) - 0.2 * (torch.arange(7) == 6)[:, None]).requires_grad_()
        found = nearest_frame(means, solver=solver, rounds=5)
        assert float(found.norm_defect.detach()) < 1e-6
        assert torch.isfinite(torch.autograd.grad(found.weight[0, 0], means)[0]).all()


def test_registered_operations_pass_opcheck():
    matrix = torch.randn(9, 4, requires_grad=True)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    operations = torch.ops.guided_collapse
    for groups in (torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 7]), torch.empty(0, dtype=torch.int64)):
        torch.library.opcheck(operations.polar_columns.default, (matrix, groups), test_utils=checks)
        outputs = operations.polar_columns.default(matrix.detach(), groups)
        given = (torch.randn(9, 4), *outputs, groups)
        torch.library.opcheck(operations.polar_columns_backward.default, given, test_utils=checks[:2])


@pytest.mark.parametrize("num_classes", [2, 3, 4, 5, 8, 13, 20, 37, 50])
def test_unit_rows_and_a_finite_gradient_in_every_dimension(num_classes):
    for feature_dim in range(1, 51):
        means = torch.randn(num_classes, feature_dim, requires_grad=True)
        found = nearest_frame(means - means.mean(0), rounds=2)
        found.distance.backward()
        assert float(found.norm_defect.detach()) < 2e-6
        assert torch.isfinite(means.grad).all()


def test_tightness_defect_is_the_rms_deviation_of_the_eigenvalues():
    weight = tight_frame(4, 12, dtype=torch.float64)
    assert float(tightness_defect(weight)) < 1e-14
    stretched = weight * torch.tensor([1.1, 1.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(float(tightness_defect(stretched)), 0.21 / 2)


def test_refusals():
    with pytest.raises(ValueError, match="feature_dim must be at least 1; got feature_dim=0"):
        nearest_frame(torch.zeros(9, 0))
    with pytest.raises(ValueError, match="rounds must not be negative; got -1"):
        nearest_frame(torch.ones(9, 4), rounds=-1)


@pytest.mark.parametrize("direction", ["canonical", "random"])
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(7, 40), (6, 41), (9, 41), (30, 50), (29, 31), (4, 6), (1, 3)])
def test_fixed_frames(direction, feature_dim, num_classes):
    unit, plain = (
        tight_frame(feature_dim, num_classes, direction=direction, unit_rows=unit_rows, dtype=torch.float64)
        for unit_rows in (True, False)
    )
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(num_classes, dtype=torch.float64))
    assert float(tightness_defect(unit)) < 1e-3
    assert float(tightness_defect(plain)) < 1e-12
    torch.testing.assert_close(plain.sum(0), torch.zeros(feature_dim, dtype=torch.float64), rtol=0, atol=1e-12)


def test_fixed_frames_are_simplex_etfs_where_they_exist_and_come_from_the_generator():
    assert torch.equal(tight_frame(6, 4), frame_weight(frame_basis(6, 4)))
    for size in ((3, 9), (9, 4)):
        first, again = (tight_frame(*size, direction="random", generator=torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(first, again)
    assert tight_frame(3, 9, direction="random", dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"direction must be one of canonical, random; got 'up'"):
        tight_frame(4, 9, direction="up")


@pytest.mark.parametrize("num_classes", [3, 4, 7, 12, 25])
def test_harmonic_columns_are_orthonormal_and_sum_to_zero_in_every_dimension(num_classes):
    for feature_dim in range(1, num_classes - 1):
        columns = harmonic_columns(feature_dim, num_classes, dtype=torch.float64)
        torch.testing.assert_close(columns.T @ columns, torch.eye(feature_dim, dtype=torch.float64))
        torch.testing.assert_close(columns.sum(0), torch.zeros(feature_dim, dtype=torch.float64), rtol=0, atol=1e-13)
        if feature_dim % 2 == 0 or num_classes % 2 == 0:
            expected = torch.full((num_classes,), (feature_dim / num_classes) ** 0.5, dtype=torch.float64)
            torch.testing.assert_close(columns.norm(dim=1), expected)


def test_no_two_harmonic_classes_have_the_same_row():
    for num_classes in range(4, 61):
        for feature_dim in range(2, min(12, num_classes - 1)):
            rows = harmonic_columns(feature_dim, num_classes, dtype=torch.float64)
            assert torch.pdist(rows).min() > 1e-2, (feature_dim, num_classes)


def test_no_two_of_many_harmonic_classes_are_close_to_each_other():
    columns = harmonic_columns(64, 2000, dtype=torch.float64)
    # The lowest frequencies would give 0.999 for neighbors.
    assert float((columns @ columns.T * 2000 / 64).fill_diagonal_(0.0).abs().max()) < 0.7


def test_lagged_frames_move_so_rarely_that_they_cost_a_tenth_of_training():
    sizes = [(512, 100), (128, 1000), (512, 1000), (256, 100_000)]
    assert [default_every(*size) for size in sizes] == [1, 1, 14, 51]
    assert rounds_in_training(4, 64) == 1 < rounds_in_training(4, 63) == 3
