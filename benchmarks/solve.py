"""Time and memory of the nearest-ETF solve: both solvers, the paper's route, and autograd through torch.linalg.svd.

    python -m benchmarks.solve --record results/records/solve.json

prints and records three parts: times and memory at all sizes, ratios to autograd through an SVD, and ratios to one thin SVD at
(2048, 1000). Without --record, it only prints. In the first part, times are medians, and every measurement runs in a separate
process, so that it has its own peak memory. All ratios are measured in a single process. Compare times only within a run. The
paper's route is the trust region forward and the dense declarative node backward, where its matrices fit into memory.

Operations, host waits, float64 operations, factorizations, floating-point work of products and bytes moved are counted over one
forward and backward pass and are the same on every machine. The paper's route leaves torch and has no counts.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.counting import CountOperations, OperationCounts, peak_mb, start_counting_memory
from guided_collapse import nearest_etf
from guided_collapse.experiments.launch import commit, hardware, versions
from guided_collapse.geometry.simplex import center_classes, frame_basis, frame_weight, haar_basis, unit_frobenius_norm
from guided_collapse.paper.declarative_node import basis_by_paper_route

SIZES = {"UFM-10": (512, 10), "UFM-100": (1024, 100), "UFM-200": (1024, 200), "UFM-1000": (1024, 1000), "ImageNet": (2048, 1000)}
DELTA = 1e-3
REPETITIONS = 9
PAPER_ROUTE = "the paper's route"


def inner_matrix(means: Tensor, anchor: Tensor) -> Tensor:
    """Returns X = 2 H~ M~ + delta U_prox, (feature_dim, num_classes)."""
    return 2 / (len(means) - 1) ** 0.5 * center_classes(unit_frobenius_norm(means)).T + DELTA * anchor


def by_factors(means: Tensor, anchor: Tensor) -> Tensor:
    return nearest_etf(means, anchor, proximal_weight=DELTA, solver="factors").weight


def by_products(means: Tensor, anchor: Tensor) -> Tensor:
    return nearest_etf(means, anchor, proximal_weight=DELTA, solver="products").weight


def through_svd(means: Tensor, anchor: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(inner_matrix(means, anchor), full_matrices=False)
    return frame_weight(left @ right)


def by_paper_route(means: Tensor, anchor: Tensor) -> Tensor:
    return frame_weight(basis_by_paper_route(unit_frobenius_norm(means), anchor, DELTA))


METHODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "factors": by_factors,
    "products": by_products,
    "autograd through svd": through_svd,
    PAPER_ROUTE: by_paper_route,
}


def inputs(feature_dim: int, num_classes: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(num_classes, feature_dim), frame_basis(feature_dim, num_classes, direction="random").T.contiguous().T


def median_seconds(run: Callable[[], object], repetitions: int) -> float:
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(method: str, feature_dim: int, num_classes: int) -> dict[str, Any]:
    solve = METHODS[method]

    def both(leaf: Tensor, anchor: Tensor) -> None:
        weight = solve(leaf, anchor)
        weight.backward(torch.ones_like(weight))

    # Call everything once first, to exclude one-time allocations of libraries.
    few_means, few_anchor = inputs(16, 4) if method == PAPER_ROUTE else inputs(256, 64)
    both(few_means.requires_grad_(), few_anchor)
    means, anchor = inputs(feature_dim, num_classes)
    repetitions = 1 if method == PAPER_ROUTE else REPETITIONS
    before = start_counting_memory(torch.device("cpu"))
    result: dict[str, Any] = {"forward": median_seconds(lambda: solve(means, anchor), repetitions)}
    leaf = means.clone().requires_grad_()
    try:
        result["forward and backward"] = median_seconds(lambda: both(leaf, anchor), repetitions)
    except MemoryError as error:
        result["refused"] = str(error)
    result["megabytes"] = peak_mb(torch.device("cpu")) - before
    if method != PAPER_ROUTE:
        with CountOperations() as counting:
            both(leaf, anchor)
        result["counts"] = asdict(counting.counts)
    return result


def measure_in_a_process_of_its_own(method: str, feature_dim: int, num_classes: int, limit_seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.solve", "--one", method, str(feature_dim), str(num_classes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        return {"refused": f"not done after {limit_seconds:.0f} s"}
    return json.loads(done.stdout.splitlines()[-1])


def compare_methods(limit_seconds: float) -> list[dict[str, Any]]:
    rows = []
    counted = f"{'operations':>11} {'waits':>6} {'float64':>8} {'factorizations':>15} {'GFLOP':>9} {'MB moved':>9}"
    print(f"{'size':10} {'method':22} {'forward':>10} {'+ backward':>10} {'peak extra':>12} {counted}")
    for name, (feature_dim, num_classes) in SIZES.items():
        for method in METHODS:
            result = measure_in_a_process_of_its_own(method, feature_dim, num_classes, limit_seconds)
            rows.append({"method": method, "feature_dim": feature_dim, "num_classes": num_classes, **result})
            forward = f"{1e3 * result['forward']:8.1f}ms" if "forward" in result else "-"
            both = f"{1e3 * result['forward and backward']:8.1f}ms" if "forward and backward" in result else "-"
            memory = f"{result['megabytes']:9.0f} MB" if "megabytes" in result else "-"
            counts = counts_text(result["counts"]) if "counts" in result else ""
            print(f"{name:10} {method:22} {forward:>10} {both:>10} {memory:>12} {counts} {result.get('refused', '')}", flush=True)
    return rows


def counts_text(counts: dict[str, int]) -> str:
    """Returns the counts as columns of the printed table."""
    found = OperationCounts(**counts)
    asked = f"{found.operations:11} {found.waits:6} {found.double_precision:8} {found.factorizations:15}"
    return f"{asked} {found.work / 1e9:9.4g} {found.moved_bytes / 1e6:9.4g}"


def compare_with_autograd() -> list[dict[str, Any]]:
    """Returns the fastest interleaved forward and backward passes, and whether gradients at exact collapse are finite."""
    rows = []
    print("\nForward and backward pass relative to autograd through torch.linalg.svd: fastest of many, interleaved, float32")
    for feature_dim, num_classes, rounds in ((512, 10, 400), (1024, 100, 100), (2048, 1000, 9)):
        means, anchor = inputs(feature_dim, num_classes)
        leaf, grad = means.requires_grad_(), torch.randn(num_classes, feature_dim)
        seconds = dict.fromkeys(("factors", "autograd through svd"), float("inf"))
        for method in (*seconds, *rounds * tuple(seconds)):  # only the fastest pass counts, so the first rounds warm up
            start = time.perf_counter()
            METHODS[method](leaf, anchor).backward(grad)
            seconds[method] = min(seconds[method], time.perf_counter() - start)
        collapsed = frame_weight(anchor).clone().requires_grad_()
        finite = {}
        for method in seconds:
            collapsed.grad = None
            METHODS[method](collapsed, anchor).backward(grad)
            finite[method] = bool(collapsed.grad.isfinite().all())
        ours, theirs = seconds.values()
        print(
            f"({feature_dim}, {num_classes}) {1e3 * ours:8.3f} ms, ratio {ours / theirs:.2f}; finite at collapse: {finite}",
            flush=True,
        )
        rows.append({"feature_dim": feature_dim, "num_classes": num_classes, "seconds": seconds, "finite at collapse": finite})
    return rows


def spectra(size: int) -> dict[str, Tensor | None]:
    return {
        "Gaussian means": None,
        "all equal (collapse)": torch.ones(size),
        "over 4 decades": torch.logspace(0, -4, size),
        "over 7 decades": torch.logspace(0, -7, size),
        "half of them zero": torch.cat([torch.linspace(2, 1, size // 2), torch.zeros(size - size // 2)]),
        "one large, rest 1e-6": torch.cat([torch.ones(1), torch.full((size - 1,), 1e-6)]),
    }


def compare_with_one_svd() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    feature_dim, num_classes = SIZES["ImageNet"]
    torch.manual_seed(0)
    print(f"\nRatio to torch.linalg.svd(X, full_matrices=False) of the same matrix, {SIZES['ImageNet']}, float32, interleaved")
    print(f"{'singular values of the means':30} {'delta':>7} {'SVD':>9} {'forward':>8} {'+ backward':>10}  |U'U - I|, asymmetry")
    rotation, frame = (
        haar_basis(num_classes, num_classes, dtype=torch.float64),
        haar_basis(feature_dim, num_classes, dtype=torch.float64),
    )
    anchor = haar_basis(feature_dim, num_classes).T.contiguous().T
    for name, values in spectra(num_classes).items():
        means = torch.randn(num_classes, feature_dim) if values is None else (rotation * values.double() @ frame.T).float()
        leaf, grad = means.clone().requires_grad_(), torch.randn(num_classes, feature_dim)
        for delta in (DELTA, 1e-9, 0.0):
            unit = unit_frobenius_norm(means.double())
            exact = 2 / (num_classes - 1) ** 0.5 * center_classes(unit).T + delta * anchor
            matrix = exact.float().contiguous()

            def forward(means=means, delta=delta):
                return nearest_etf(means, anchor, proximal_weight=delta)

            def both(leaf=leaf, grad=grad, delta=delta):
                nearest_etf(leaf, anchor, proximal_weight=delta).weight.backward(grad)

            runs = [lambda matrix=matrix: torch.linalg.svd(matrix, full_matrices=False), forward, both]
            try:
                runs[0]()
            except torch.linalg.LinAlgError as error:
                print(f"{name:30} {delta:7.0e}  no ratio: {str(error).partition(' because')[0]}", flush=True)
                continue
            times: list[list[float]] = [[], [], []]
            for _ in range(REPETITIONS):
                for run, taken in zip(runs, times, strict=True):
                    taken.append(median_seconds(run, 1))
            svd, ahead, full = (statistics.median(taken) for taken in times)
            basis = forward().basis.double()
            product = basis.T @ exact
            orthonormality = float((basis.T @ basis - torch.eye(num_classes)).abs().max())
            asymmetry = float((product - product.T).norm() / product.norm())
            times_and_ratios = f"{1e3 * svd:7.0f}ms {ahead / svd:8.2f} {full / svd:10.2f}"
            print(f"{name:30} {delta:7.0e} {times_and_ratios}  {orthonormality:.1e} {asymmetry:.1e}", flush=True)
            rows.append({"singular values": name, "delta": delta, "svd": svd, "forward": ahead, "forward and backward": full})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "D", "C"), help="measure one case and print it as JSON")
    parser.add_argument("--ratio", action="store_true", help="measure only the ratios")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all measurements to this file, in seconds")
    parser.add_argument("--limit-seconds", type=float, default=120.0, help="time limit per measurement")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]), int(arguments.one[2]))))
    else:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
        record = {
            "commit": commit(),
            "versions": versions(),
            "hardware": hardware(torch.device("cpu"), 1),
            "solves": [] if arguments.ratio else compare_methods(arguments.limit_seconds),
            "against autograd": compare_with_autograd(),
            "against one SVD": compare_with_one_svd(),
        }
        if arguments.record:
            arguments.record.write_text(json.dumps(record, indent=1) + "\n")
