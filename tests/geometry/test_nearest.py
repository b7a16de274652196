import itertools

import pytest
import torch

from guided_collapse import nearest_etf, simplex_etf
from guided_collapse.geometry import nearest_frame, tight_frame
from guided_collapse.geometry.simplex import frame_basis

pytestmark = pytest.mark.slow

SIZES = [(12, 5), (5, 5), (4, 5), (2, 2), (1, 2)]
TIGHT = [pytest.param(*size, marks=pytest.mark.thorough) for size in ((1, 3), (3, 5), (4, 6), (5, 9), (2, 7))]


def centered_means(feature_dim, num_classes, dtype=torch.float64):
    means = torch.randn(num_classes, feature_dim, dtype=dtype)
    return means - means.mean(0)


def random_basis(feature_dim, num_classes, dtype=torch.float64):
    return frame_basis(feature_dim, num_classes, direction="random", dtype=dtype)


def any_basis(feature_dim, num_classes, dtype=torch.float64):
    weight = tight_frame(feature_dim, num_classes, direction="random", unit_rows=False, dtype=dtype)
    return nearest_frame(weight, unit_rows=False).basis


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solution_is_a_simplex_etf(feature_dim, num_classes, dtype):
    solution = nearest_etf(centered_means(feature_dim, num_classes, dtype), random_basis(feature_dim, num_classes, dtype))
    expected = simplex_etf(num_classes, dtype=dtype)
    torch.testing.assert_close(solution.weight @ solution.weight.T, expected @ expected.T, rtol=0, atol=2e-6)
    assert solution.weight.dtype == solution.basis.dtype == solution.distance.dtype == dtype
    assert (*solution.basis.shape, int(solution.rank)) == (feature_dim, num_classes, min(feature_dim, num_classes))


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_an_etf_is_its_own_nearest(feature_dim, num_classes):
    etf = simplex_etf(num_classes, dtype=torch.float64) @ random_basis(feature_dim, num_classes).T
    solution = nearest_etf(3.0 * etf)
    torch.testing.assert_close(solution.weight, etf)
    assert abs(float(solution.distance)) < 1e-20
    assert int(solution.rank) == num_classes - 1


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_the_solution_is_invariant_to_the_scale_of_the_means(feature_dim, num_classes):
    means, anchor = centered_means(feature_dim, num_classes), random_basis(feature_dim, num_classes)

    def results(scale):
        scaled = (scale * means).requires_grad_()
        solution = nearest_etf(scaled, anchor)
        (gradient,) = torch.autograd.grad(solution.weight[0, 0], scaled)
        return solution.weight.detach(), solution.distance.detach(), scale * gradient

    for scale in (1e-200, 1e-4, 1e4, 1e200):
        torch.testing.assert_close(results(scale), results(1.0), rtol=1e-6, atol=1e-9)
    for scale in (1e-30, 1e30):
        single = nearest_etf((scale * means).float(), anchor.float()).weight
        torch.testing.assert_close(single.double(), results(1.0)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES + TIGHT)
@pytest.mark.parametrize("proximal_weight", [None, 0.0, 1e-3, 1.0])
def test_gradcheck(feature_dim, num_classes, proximal_weight):
    anchor = None if proximal_weight is None else any_basis(feature_dim, num_classes)
    means = torch.randn(num_classes, feature_dim, dtype=torch.float64, requires_grad=True)

    def solve(means):
        found = [
            nearest_frame(means - means.mean(0), anchor, proximal_weight=proximal_weight or 0.0, unit_rows=unit_rows, rounds=5)
            for unit_rows in (False, True)
        ]
        return [result for frame in found for result in (frame.basis, frame.weight, frame.distance)]

    assert torch.autograd.gradcheck(solve, (means,))


@pytest.mark.parametrize(
    ("feature_dim", "num_classes", "with_anchor"),
    [*((*size, anchor) for size in SIZES[:3] for anchor in (False, True)), (2, 8, False), (4, 8, False), (10, 14, False)],
)
def test_gradient_at_collapse_where_all_singular_values_repeat(feature_dim, num_classes, with_anchor):
    means = (3 * tight_frame(feature_dim, num_classes, dtype=torch.float64)).requires_grad_()
    anchor = any_basis(feature_dim, num_classes) if with_anchor else None
    direction, *changes = torch.randn(6, num_classes, feature_dim, dtype=torch.float64)

    def value(means):
        at = None if anchor is None else anchor.to(means.dtype)
        return (nearest_frame(means - means.mean(0), at).weight * direction.to(means.dtype)).sum()

    (gradient,) = torch.autograd.grad(value(means), means)
    for change in changes:
        expected = (value(means.detach() + 1e-5 * change) - value(means.detach() - 1e-5 * change)) / 2e-5
        torch.testing.assert_close((gradient * change).sum(), expected, rtol=1e-5, atol=1e-7)
    single = means.detach().float().requires_grad_()
    (single_gradient,) = torch.autograd.grad(value(single), single)
    assert (single_gradient.double() - gradient).norm() < 1e-3 * gradient.norm()


@pytest.mark.parametrize("num_classes", [4, 12])
def test_second_derivatives_are_refused(num_classes):
    means = centered_means(6, num_classes).requires_grad_()
    (gradient,) = torch.autograd.grad(nearest_frame(means).weight[0, 0], means, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated once, not twice"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_is_refused():
    means = centered_means(6, 4)
    with pytest.raises(NotImplementedError, match="reverse-mode gradient only"):
        torch.func.jvp(lambda means: nearest_etf(means).weight, (means,), (torch.ones_like(means),))


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_zero_means_return_the_proximal_point(feature_dim, num_classes):
    anchor = random_basis(feature_dim, num_classes)
    means = torch.zeros(num_classes, feature_dim, dtype=torch.float64, requires_grad=True)
    for proximal_weight, solver in itertools.product((0.0, 1e-3), ("factors", "products")):
        solution = nearest_etf(means, anchor, proximal_weight=proximal_weight, solver=solver)
        torch.testing.assert_close(solution.basis, anchor)
        (gradient,) = torch.autograd.grad(solution.weight.sum() + solution.distance, means)
        assert torch.equal(gradient, torch.zeros_like(gradient))
    torch.testing.assert_close(nearest_etf(means).basis, frame_basis(feature_dim, num_classes, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_errors_do_not_determine_open_directions(dtype):
    # Means of rank 2 up to rounding errors, which must not count as further directions.
    factors = torch.randn(6, 2, dtype=torch.float64), torch.randn(2, 9, dtype=torch.float64)
    means = factors[0].to(dtype) @ factors[1].to(dtype)
    anchor = random_basis(9, 6, dtype)
    solution = nearest_etf(means, anchor, proximal_weight=0.0)
    assert int(solution.rank) == 2
    nearly = nearest_etf(factors[0] @ factors[1], anchor.double(), proximal_weight=1e-8)
    torch.testing.assert_close(solution.basis.double(), nearly.basis, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (40, 10), (200, 150)])
@pytest.mark.parametrize("proximal_weight", [0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-3])
def test_float32_basis_is_orthonormal_when_one_direction_dominates(feature_dim, num_classes, proximal_weight):
    for ratio in (1e4, 2e5, 1e6):
        sizes = torch.full((num_classes,), 1 / ratio, dtype=torch.float64).index_fill(0, torch.tensor(0), 1.0)
        means = (random_basis(num_classes, num_classes) * sizes) @ random_basis(feature_dim, num_classes).T
        means, anchor = (means - means.mean(0)).float(), random_basis(feature_dim, num_classes, torch.float32)
        solution = nearest_etf(means, anchor, proximal_weight=proximal_weight)
        basis = solution.basis.double()
        torch.testing.assert_close(basis.T @ basis, torch.eye(num_classes, dtype=torch.float64), rtol=0, atol=2e-6)
        torch.testing.assert_close(solution.weight.norm(dim=1), torch.ones(num_classes), rtol=0, atol=1e-6)
        if proximal_weight > 0:
            exact = nearest_etf(means.double(), anchor.double(), proximal_weight=proximal_weight).weight
            torch.testing.assert_close(solution.weight.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e5])
def test_rounding_errors_of_an_offset_do_not_count_as_a_direction(offset, dtype):
    means = (offset + torch.randn(6, 9, dtype=torch.float64) + torch.randn(9, dtype=torch.float64)).to(dtype)
    assert int(nearest_etf(means).rank) == 5
    flat = (offset + torch.randn(6, 2, dtype=torch.float64) @ torch.randn(2, 9, dtype=torch.float64)).to(dtype)
    assert int(nearest_etf(flat).rank) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (4, 5), (4, 12), (5, 9)])
def test_half_precision_and_autocast_are_computed_in_float32(feature_dim, num_classes, dtype):
    means = centered_means(feature_dim, num_classes, torch.float32).to(dtype)
    found = []
    for leaf, enabled in ((means.clone().requires_grad_(), True), (means.float().requires_grad_(), False)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            weight = nearest_frame(leaf).weight
            (weight * torch.arange(feature_dim)).sum().backward()
        assert weight.dtype == torch.float32
        found.append((weight.detach(), leaf.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1].to(dtype))


@pytest.mark.thorough
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (4, 5)])
def test_registered_operations_pass_opcheck(feature_dim, num_classes):
    means = centered_means(feature_dim, num_classes, torch.float32).requires_grad_()
    anchor = random_basis(feature_dim, num_classes, torch.float32).T.contiguous()
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.guided_collapse.nearest_basis.default, (means, anchor, 1e-3), test_utils=checks)
    outputs = torch.ops.guided_collapse.nearest_basis.default(means.detach(), anchor, 1e-3)
    backward = torch.ops.guided_collapse.nearest_basis_backward.default
    torch.library.opcheck(backward, (anchor, means.detach(), anchor, *outputs[1:]), test_utils=checks[:2])


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(9, 4), (4, 5)])
@pytest.mark.parametrize("proximal_weight", [0.0, 1e-3])
def test_the_first_step_takes_the_solution_without_proximal_term_as_proximal_point(feature_dim, num_classes, proximal_weight):
    means, direction = centered_means(feature_dim, num_classes), random_basis(feature_dim, num_classes)
    anchor = nearest_etf(means, direction, proximal_weight=0.0).basis
    expected = nearest_etf(means, anchor, proximal_weight=proximal_weight).basis
    later = nearest_etf(means, direction, proximal_weight=proximal_weight).basis
    for convert in (bool, torch.tensor):
        for first, basis in ((True, expected), (False, later)):
            found = nearest_etf(means, direction, proximal_weight=proximal_weight, first_step=convert(first))
            torch.testing.assert_close(found.basis, basis, rtol=0, atol=1e-14)


def test_by_products_the_first_step_has_a_vanishing_pull():
    means, direction = centered_means(9, 4), random_basis(9, 4)
    options = {"proximal_weight": 0.5, "solver": "products"}
    first, later = (nearest_etf(means, direction, first_step=first, **options).basis for first in (True, False))
    assert (first - nearest_etf(means, direction, proximal_weight=0.0).basis).norm() < 1e-2
    assert (first - later).norm() > 1e-2
    for value, expected in ((True, first), (False, later)):
        found = nearest_etf(means, direction, first_step=torch.tensor(value), **options).basis
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("solver", ["factors", "products"])
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(9, 4), pytest.param(5, 9, marks=pytest.mark.thorough)])
def test_compiles_without_graph_breaks_with_first_step_as_a_tensor(feature_dim, num_classes, solver):
    means, direction = centered_means(feature_dim, num_classes), any_basis(feature_dim, num_classes)

    def solve(means, first_step):
        return nearest_frame(means, direction, rounds=5, solver=solver, first_step=first_step).weight

    torch._dynamo.reset()  # otherwise earlier sizes would make these dynamic
    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")
    for first_step in (torch.tensor(True), torch.tensor(False)):
        found = []
        for function in (solve, compiled):
            leaf = means.clone().requires_grad_()
            weight = function(leaf, first_step)
            found.append([weight.detach(), *torch.autograd.grad(weight[0].sum(), leaf)])
        torch.testing.assert_close(*found)


@pytest.mark.thorough
@pytest.mark.parametrize("decades", [0, 5])
def test_imagenet_size_in_float32_is_exact(decades):
    means = (torch.randn(1000, 2048) * torch.logspace(0, -decades, 2048)).requires_grad_()
    anchor = random_basis(2048, 1000, torch.float32)
    solution = nearest_etf(means, anchor)
    solution.weight.sum().backward()
    unit, basis = means.detach().double() / means.detach().double().norm(), solution.basis.detach().double()
    symmetric = basis.T @ (2 / 999**0.5 * (unit - unit.mean(0)).T + 1e-3 * anchor)
    assert float((basis.T @ basis - torch.eye(1000)).abs().max()) < 1e-5
    assert float((symmetric - symmetric.T).norm() / symmetric.norm()) < 1e-5
    assert bool(torch.isfinite(means.grad).all())


@pytest.mark.parametrize(
    ("means", "options", "error", "message"),
    [
        (torch.zeros(3), {}, ValueError, r"matrix \(num_classes, feature_dim\); got shape \(3,\)"),
        (torch.zeros(3, 4, dtype=torch.int64), {}, TypeError, "floating-point tensor; got torch.int64"),
        ([[1.0]], {}, TypeError, "floating-point tensor; got <class 'list'>"),
        (torch.zeros(1, 4), {}, ValueError, "num_classes must be at least 2.*num_classes=1"),
        (torch.zeros(6, 4), {}, ValueError, "at least num_classes - 1.*feature_dim=4, num_classes=6"),
        (torch.ones(3, 4), {"proximal_weight": -1.0}, ValueError, "nonnegative and finite; got -1.0"),
        (torch.ones(3, 4), {"proximal_weight": float("nan")}, ValueError, "finite; got nan"),
        (torch.ones(3, 4), {"proximal_basis": torch.zeros(3, 4)}, ValueError, r"= \(4, 3\); got \(3, 4\)"),
        (torch.full((3, 4), torch.nan), {}, ValueError, "must be finite"),
        (torch.full((3, 4), torch.inf), {}, ValueError, "must be finite"),
        (torch.ones(3, 4), {"proximal_basis": torch.full((4, 3), torch.nan)}, ValueError, "proximal_basis must be finite"),
        (torch.ones(3, 4), {"solver": "newton"}, ValueError, "solver must be one of factors, products, or None; got 'newton'"),
    ],
)
def test_refusals(means, options, error, message):
    with pytest.raises(error, match=message):
        nearest_etf(means, options.pop("proximal_basis", None), **options)
