"""Tests whether the solver "products" could start from the inverse square root of the previous step, by Newton steps.

    python -m benchmarks.warm_start

With A = XX', the solution is Z X for Z = A^(-1/2). Z changes little from one step to the next, so Newton's iteration

    Z <- Z + (R Z + Z R)/4,      R = I - Z A Z,

could start from the previous Z, with three products of C x C matrices per step; from scratch, the solver takes 33 to 36 products in
total. Here it starts from the exact previous Z, in float64, on free features that train with a nearest-ETF head. The output is the
error of the weight after 1, 2, and 4 Newton steps, median and maximum over training steps, next to the error of the solver.
"""

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse import NearestETFHead, nearest_etf
from guided_collapse.geometry.simplex import center_classes, unit_frobenius_norm

SIZES = ((512, 10), (1024, 100), (1024, 400))
NEWTON_STEPS = (1, 2, 4)
SAMPLES_PER_CLASS = 8
DELTA = 1e-3


def problems(feature_dim: int, num_classes: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Returns the class means and proximal basis of every training step, in float64; each step sees half of the samples."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num_classes).repeat(SAMPLES_PER_CLASS)
    features = torch.randn(len(labels), feature_dim, generator=generator).requires_grad_()
    head, optimizer = NearestETFHead(feature_dim, num_classes), torch.optim.SGD([features], lr=100.0, momentum=0.9)
    found = []
    for _ in range(steps):
        chosen = torch.randperm(len(labels), generator=generator)[: len(labels) // 2]
        basis = head.basis.double()
        loss = functional.cross_entropy(head(features[chosen], labels[chosen]), labels[chosen])
        found.append((head.class_means.running.double(), basis))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"\nfeature_dim {feature_dim}, num_classes {num_classes}: loss {loss.item():.4f} after {steps} steps")
    return found


def weight_of(rows: Tensor) -> Tensor:
    return center_classes(rows) * (len(rows) / (len(rows) - 1)) ** 0.5


def measure(feature_dim: int, num_classes: int, steps: int) -> None:
    errors: dict[str, list[float]] = {f"{count} Newton steps": [] for count in NEWTON_STEPS} | {"cold, float32": []}
    spreads, before = [], None
    for means, basis in problems(feature_dim, num_classes, steps)[1:]:
        matrix = 2 / (num_classes - 1) ** 0.5 * center_classes(unit_frobenius_norm(means)) + DELTA * basis.T
        squares, vectors = torch.linalg.eigh(matrix @ matrix.T)
        exact = vectors * squares.rsqrt() @ vectors.T
        if before is not None:
            weight, inverse_root = weight_of(exact @ matrix), before
            for count in range(1, max(NEWTON_STEPS) + 1):
                residual = torch.eye(num_classes) - inverse_root @ matrix @ matrix.T @ inverse_root
                change = residual @ inverse_root
                inverse_root = inverse_root + (change + change.T) / 4
                if count in NEWTON_STEPS:
                    errors[f"{count} Newton steps"].append(float((weight_of(inverse_root @ matrix) - weight).abs().max()))
            cold = nearest_etf(means.float(), basis.float(), proximal_weight=DELTA, solver="products").weight
            errors["cold, float32"].append(float((cold - weight).abs().max()))
            spreads.append(float((squares[-1] / squares[0]).sqrt()))
        before = exact
    print(f"  largest over smallest singular value: {min(spreads):.0f} to {max(spreads):.0f}")
    for name, found in errors.items():
        values = torch.tensor(found)
        summary = f"median {values.median():8.1e}, largest {values.max():8.1e}, {(values < 1e-5).double().mean():4.0%} below 1e-5"
        print(f"  {name:15} {summary}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    arguments = parser.parse_args()
    for sizes in SIZES:
        measure(*sizes, arguments.steps)
