import subprocess
import sys

import pytest
import torch

from guided_collapse import nearest_etf, simplex_etf
from guided_collapse.geometry.nearest import unit_frobenius_norm
from guided_collapse.geometry.simplex import frame_basis

pytestmark = pytest.mark.slow

SIZES = [(12, 5), (5, 5), (4, 5), (2, 2), (1, 2)]


def centered_means(feature_dim, num_classes, dtype=torch.float64):
    means = torch.randn(num_classes, feature_dim, dtype=dtype)
    return means - means.mean(0)


def random_basis(feature_dim, num_classes, dtype=torch.float64):
    return frame_basis(feature_dim, num_classes, direction="random", dtype=dtype)


def exact_etf(feature_dim, num_classes, dtype=torch.float64):
    return 3.0 * simplex_etf(num_classes, dtype=dtype) @ random_basis(feature_dim, num_classes, dtype).T


def finite_difference(function, means, step=1e-6):
    gradient = torch.zeros_like(means)
    for index in range(means.numel()):
        offset = torch.zeros_like(means).flatten().index_fill(0, torch.tensor(index), step).reshape(means.shape)
        gradient.view(-1)[index] = (function(means + offset) - function(means - offset)) / (2 * step)
    return gradient


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solution_is_a_simplex_etf(feature_dim, num_classes, dtype):
    solution = nearest_etf(centered_means(feature_dim, num_classes, dtype), random_basis(feature_dim, num_classes, dtype))
    expected = simplex_etf(num_classes, dtype=dtype)
    torch.testing.assert_close(solution.weight @ solution.weight.T, expected @ expected.T, rtol=0, atol=2e-6)
    assert solution.weight.dtype == solution.basis.dtype == solution.distance.dtype == dtype
    assert solution.basis.shape == (feature_dim, num_classes)
    assert int(solution.rank) == min(feature_dim, num_classes)


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_no_rotation_of_the_frame_is_nearer(feature_dim, num_classes):
    means = centered_means(feature_dim, num_classes)
    solution = nearest_etf(means)
    unit = means / means.norm()
    for _ in range(50):
        other = simplex_etf(num_classes, dtype=torch.float64) @ random_basis(feature_dim, num_classes).T
        assert (unit - other / num_classes**0.5).square().sum() >= solution.distance - 1e-12


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_an_etf_is_its_own_nearest(feature_dim, num_classes):
    means = exact_etf(feature_dim, num_classes)
    solution = nearest_etf(means)
    torch.testing.assert_close(solution.weight, means / 3.0)
    assert abs(float(solution.distance)) < 1e-20
    assert int(solution.rank) == num_classes - 1


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_scale_of_the_means_does_not_matter(feature_dim, num_classes):
    means, anchor = centered_means(feature_dim, num_classes), random_basis(feature_dim, num_classes)
    for scale in (1e-200, 1e-4, 1e4, 1e200):
        scaled = (scale * means).requires_grad_()
        solution = nearest_etf(scaled, anchor)
        torch.testing.assert_close(solution.weight, nearest_etf(means, anchor).weight)
        torch.testing.assert_close(solution.distance, nearest_etf(means, anchor).distance)
        (gradient,) = torch.autograd.grad(solution.weight[0, 0], scaled)
        plain = means.clone().requires_grad_()
        (expected,) = torch.autograd.grad(nearest_etf(plain, anchor).weight[0, 0], plain)
        torch.testing.assert_close(gradient * scale, expected, rtol=1e-6, atol=1e-9)
    for scale in (1e-30, 1e30):
        single = nearest_etf((scale * means).float(), anchor.float()).weight
        torch.testing.assert_close(single.double(), nearest_etf(means, anchor).weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
@pytest.mark.parametrize("proximal_weight", [None, 0.0, 1e-3, 1.0])
def test_gradcheck(feature_dim, num_classes, proximal_weight):
    anchor = None if proximal_weight is None else random_basis(feature_dim, num_classes)
    means = torch.randn(num_classes, feature_dim, dtype=torch.float64, requires_grad=True)

    def solve(means):
        solution = nearest_etf(means - means.mean(0), anchor, proximal_weight=proximal_weight or 0.0)
        return solution.basis, solution.weight, solution.distance

    assert torch.autograd.gradcheck(solve, (means,))


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (5, 5), (4, 5)])
@pytest.mark.parametrize("with_anchor", [False, True])
def test_gradient_at_an_exact_etf_where_all_singular_values_repeat(feature_dim, num_classes, with_anchor):
    means = exact_etf(feature_dim, num_classes).requires_grad_()
    anchor = random_basis(feature_dim, num_classes) if with_anchor else None
    direction = torch.randn(num_classes, feature_dim, dtype=torch.float64)

    def value(means):
        return (nearest_etf(means - means.mean(0), anchor).weight * direction).sum()

    (gradient,) = torch.autograd.grad(value(means), means)
    expected = finite_difference(lambda means: value(means).detach(), means.detach(), step=1e-5)
    assert torch.isfinite(gradient).all()
    assert (gradient - expected).norm() < 1e-6 * expected.norm()
    single = means.detach().float().requires_grad_()
    in_single = nearest_etf(single - single.mean(0), None if anchor is None else anchor.float()).weight
    (single_gradient,) = torch.autograd.grad((in_single * direction.float()).sum(), single)
    assert (single_gradient.double() - gradient).norm() < 1e-3 * gradient.norm()


def test_the_usual_way_fails_where_ours_does_not():
    means = exact_etf(12, 5).requires_grad_()
    left, _, right = torch.linalg.svd(means, full_matrices=False)
    (gradient,) = torch.autograd.grad((left @ right).sum(), means)
    assert not torch.isfinite(gradient).all() or gradient.norm() > 1e6


def test_second_derivatives_are_refused():
    means = centered_means(6, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(nearest_etf(means).weight[0, 0], means, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiated once, not twice"):
        gradient.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_is_refused():
    means = centered_means(6, 4)
    with pytest.raises(NotImplementedError, match="reverse-mode gradient only"):
        torch.func.jvp(lambda means: nearest_etf(means).weight, (means,), (torch.ones_like(means),))


@pytest.mark.parametrize(("feature_dim", "num_classes"), SIZES)
def test_means_that_vanish_leave_the_proximal_point(feature_dim, num_classes):
    anchor = random_basis(feature_dim, num_classes)
    means = torch.zeros(num_classes, feature_dim, dtype=torch.float64, requires_grad=True)
    for proximal_weight in (0.0, 1e-3):
        solution = nearest_etf(means, anchor, proximal_weight=proximal_weight)
        torch.testing.assert_close(solution.basis, anchor)
        (gradient,) = torch.autograd.grad(solution.weight.sum() + solution.distance, means)
        assert torch.equal(gradient, torch.zeros_like(gradient))
    torch.testing.assert_close(nearest_etf(means).basis, frame_basis(feature_dim, num_classes, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_proximal_term_float32_noise_does_not_decide_open_directions(dtype):
    # Means of rank 2, but for the rounding errors of the product: these must not invent more directions.
    factors = torch.randn(6, 2, dtype=torch.float64), torch.randn(2, 9, dtype=torch.float64)
    means = factors[0].to(dtype) @ factors[1].to(dtype)
    anchor = random_basis(9, 6, dtype)
    solution = nearest_etf(means, anchor, proximal_weight=0.0)
    assert int(solution.rank) == 2
    nearly = nearest_etf(factors[0] @ factors[1], anchor.double(), proximal_weight=1e-8)
    torch.testing.assert_close(solution.basis.double(), nearly.basis, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (40, 10), (200, 150)])
@pytest.mark.parametrize("proximal_weight", [0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-3])
def test_float32_basis_is_orthonormal_though_one_direction_dominates(feature_dim, num_classes, proximal_weight):
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
def test_rounding_errors_of_an_offset_count_as_no_direction(offset, dtype):
    means = (offset + torch.randn(6, 9, dtype=torch.float64) + torch.randn(9, dtype=torch.float64)).to(dtype)
    assert int(nearest_etf(means).rank) == 5
    flat = (offset + torch.randn(6, 2, dtype=torch.float64) @ torch.randn(2, 9, dtype=torch.float64)).to(dtype)
    assert int(nearest_etf(flat).rank) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    means = centered_means(12, 5, torch.float32).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        solution = nearest_etf(means)
        solution.weight.square().sum().backward()
    assert solution.weight.dtype == torch.float32
    assert means.grad.dtype == dtype
    torch.testing.assert_close(solution.weight, nearest_etf(means.detach().float()).weight, rtol=0, atol=1e-6)


def test_backward_under_autocast_keeps_its_precision():
    means, anchor = centered_means(12, 5, torch.float32), random_basis(12, 5, torch.float32)
    gradients = []
    for enabled in (False, True):
        leaf = means.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            (nearest_etf(leaf, anchor).weight * means).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (4, 5)])
def test_registered_operations_keep_their_promises(feature_dim, num_classes):
    means = centered_means(feature_dim, num_classes, torch.float32).requires_grad_()
    anchor = random_basis(feature_dim, num_classes, torch.float32).T.contiguous()
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.guided_collapse.nearest_basis.default, (means, anchor, 1e-3), test_utils=checks)
    outputs = torch.ops.guided_collapse.nearest_basis.default(means.detach(), anchor, 1e-3)
    backward = torch.ops.guided_collapse.nearest_basis_backward.default
    torch.library.opcheck(backward, (anchor, means.detach(), anchor, *outputs[1:]), test_utils=checks[:2])


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(9, 4), (4, 5)])
@pytest.mark.parametrize("proximal_weight", [0.0, 1e-3])
def test_the_first_step_takes_the_solution_without_proximal_term_for_proximal_point(feature_dim, num_classes, proximal_weight):
    means, direction = centered_means(feature_dim, num_classes), random_basis(feature_dim, num_classes)
    anchor = nearest_etf(means, direction, proximal_weight=0.0).basis
    expected = nearest_etf(means, anchor, proximal_weight=proximal_weight).basis
    later = nearest_etf(means, direction, proximal_weight=proximal_weight).basis
    for convert in (bool, torch.tensor):
        for first, basis in ((True, expected), (False, later)):
            found = nearest_etf(means, direction, proximal_weight=proximal_weight, first_step=convert(first))
            torch.testing.assert_close(found.basis, basis, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_by_products_the_first_step_has_a_vanishing_pull(dtype):
    means, direction = centered_means(9, 4, dtype), random_basis(9, 4, dtype)
    options = {"proximal_weight": 0.5, "solver": "products"}
    first, later = (nearest_etf(means, direction, first_step=first, **options).basis for first in (True, False))
    assert (first - nearest_etf(means, direction, proximal_weight=0.0).basis).norm() < 1e-2
    assert (first - later).norm() > 1e-2
    for value, expected in ((True, first), (False, later)):
        found = nearest_etf(means, direction, first_step=torch.tensor(value), **options).basis
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.parametrize("solver", ["factors", "products"])
def test_compiles_whole_with_the_first_step_as_a_tensor(solver):
    means, direction = centered_means(9, 4), random_basis(9, 4)

    def solve(means, first_step):
        return nearest_etf(means, direction, solver=solver, first_step=first_step).weight

    compiled = torch.compile(solve, fullgraph=True, backend="aot_eager")
    for first_step in (torch.tensor(True), torch.tensor(False)):
        found = []
        for function in (solve, compiled):
            leaf = means.clone().requires_grad_()
            weight = function(leaf, first_step)
            found.append([weight.detach(), *torch.autograd.grad(weight[0].sum(), leaf)])
        torch.testing.assert_close(*found)


def test_zero_stays_zero_when_normalized_and_gets_no_gradient():
    zero = torch.zeros(3, 4, requires_grad=True)
    unit_frobenius_norm(zero).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(3, 4))


IMAGENET_SIZE = """
import resource, torch
from guided_collapse import nearest_etf
from guided_collapse.geometry.simplex import frame_basis
torch.manual_seed(0)
def step(feature_dim, num_classes, singular_ratio):
    means = torch.randn(num_classes, feature_dim)
    means = (means * torch.logspace(0, singular_ratio, feature_dim)).requires_grad_()
    anchor = frame_basis(feature_dim, num_classes, direction="random")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    solution = nearest_etf(means, anchor)
    solution.weight.backward(torch.ones_like(solution.weight))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return solution, means, anchor, after - before
step(64, 32, 0)
*_, first = step(2048, 1000, 0)
solution, means, anchor, second = step(2048, 1000, -5)
with torch.no_grad():
    unit = means.double() / means.double().norm()
    matrix = 2 / 999**0.5 * (unit - unit.mean(0)).T + 1e-3 * anchor
    basis = solution.basis.double()
    symmetric = basis.T @ matrix
    print(first + second, float((basis.T @ basis - torch.eye(1000)).abs().max()),
          float((symmetric - symmetric.T).norm() / symmetric.norm()), bool(torch.isfinite(means.grad).all()))
"""


@pytest.mark.thorough
def test_imagenet_size_in_float32_is_exact_and_small():
    printed = subprocess.run([sys.executable, "-c", IMAGENET_SIZE], capture_output=True, text=True, check=True).stdout.split()
    kilobytes, orthonormality, asymmetry, finite = float(printed[0]), float(printed[1]), float(printed[2]), printed[3]
    assert kilobytes < 250e3
    assert orthonormality < 1e-5
    assert asymmetry < 1e-5
    assert finite == "True"


@pytest.mark.parametrize(
    ("means", "options", "error", "message"),
    [
        (torch.zeros(3), {}, ValueError, r"matrix \(num_classes, feature_dim\); got shape \(3,\)"),
        (torch.zeros(3, 4, dtype=torch.int64), {}, TypeError, "floating-point tensor; got torch.int64"),
        ([[1.0]], {}, TypeError, "floating-point tensor; got <class 'list'>"),
        (torch.zeros(1, 4), {}, ValueError, "num_classes must be at least 2.*num_classes=1"),
        (torch.zeros(6, 4), {}, ValueError, "at least num_classes - 1.*feature_dim=4, num_classes=6"),
        (torch.ones(3, 4), {"proximal_weight": -1.0}, ValueError, "not negative; got -1.0"),
        (torch.ones(3, 4), {"proximal_weight": float("nan")}, ValueError, "finite number.*got nan"),
        (torch.ones(3, 4), {"proximal_weight": "1"}, TypeError, "not supported"),
        (
            torch.ones(3, 4),
            {"proximal_basis": torch.zeros(3, 4)},
            ValueError,
            r"\(feature_dim, num_classes\) = \(4, 3\); got \(3, 4\)",
        ),
        (torch.full((3, 4), torch.nan), {}, ValueError, "must be finite"),
        (torch.full((3, 4), torch.inf), {}, ValueError, "must be finite"),
        (torch.ones(3, 4), {"proximal_basis": torch.full((4, 3), torch.nan)}, ValueError, "proximal_basis must be finite"),
        (torch.ones(3, 4), {"solver": "newton"}, ValueError, "solver must be one of factors, products, or None; got 'newton'"),
    ],
)
def test_refusals(means, options, error, message):
    with pytest.raises(error, match=message):
        nearest_etf(means, options.pop("proximal_basis", None), **options)
