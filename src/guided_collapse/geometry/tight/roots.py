"""The inverse square root of a small Gram matrix, and polar factors of upright matrices that are well-conditioned."""

from collections.abc import Sequence

import torch
from torch import Tensor

from guided_collapse.geometry.registration import constant_in_graphs
from guided_collapse.geometry.solvers.exact_products import product
from guided_collapse.geometry.solvers.products import OddPolynomial, polar_by_products, polar_polynomials

# More steps than a condition number of 1e5 needs.
MOST_STEPS = 24

# The singular values of orthonormal columns whose rows were made even are not further apart than this.
LEAST_OF_ROUNDS = 0.02


def inverse_square_root(gram: Tensor) -> Tensor:
    """G^(-1/2), by products alone where they converge, which takes a fraction of the time of eigenvectors.

    The coupled iteration of Newton and Schulz: with Y = G/c and Z = I, T = (3I - ZY)/2, Y <- YT, Z <- TZ, which takes Z to
    (G/c)^(-1/2) if the eigenvalues of G/c are below 3. Matrices that are too ill-conditioned for it have their eigenvalues clamped.

    Args:
        gram: G, (size, size), symmetric, positive semidefinite, not 0.

    Returns:
        (size, size), symmetric.
    """
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    # Eigenvalues are below 2 with the mean for a scale, near a multiple of I, and otherwise with half a bound of the largest.
    scale = gram.trace() / len(gram)
    if not float(torch.linalg.matrix_norm(gram / scale - identity)) < 1:
        scale = torch.linalg.matrix_norm(gram, ord=torch.inf) / 2
    root, inverse = gram / scale, identity
    tolerance = 4 * torch.finfo(gram.dtype).eps * len(gram) ** 0.5
    for _ in range(MOST_STEPS):
        product = inverse @ root
        # The next step squares what is left.
        error = float(torch.linalg.matrix_norm(product - identity))
        step = (3 * identity - product) / 2
        root, inverse = root @ step, step @ inverse
        if error**2 <= tolerance:
            return (inverse + inverse.T) / (2 * scale.sqrt())
    values, rotation = torch.linalg.eigh(gram)
    return rotation * values.clamp(min=torch.finfo(gram.dtype).eps * values[-1]).rsqrt() @ rotation.T


def polar_columns_by_products(matrix: Tensor) -> Tensor:
    """The polar factor of an upright matrix in a round, by products alone and differentiable any number of times.

    Args:
        matrix: (num_classes, num_columns), num_columns <= num_classes, whose least singular value is LEAST_OF_ROUNDS of the largest
            or more.

    Returns:
        (num_classes, num_columns), orthonormal columns.
    """
    constant = matrix.detach()
    scale = largest_value_bound(product(constant.T, constant)).sqrt()
    return polar_by_products((matrix / scale).T, round_polynomials()).T


@constant_in_graphs
def round_polynomials() -> tuple[OddPolynomial, ...]:
    """The polynomials for a matrix in a round."""
    return polar_polynomials(LEAST_OF_ROUNDS)


def largest_value_bound(gram: Tensor) -> Tensor:
    """What no eigenvalue of a Gram matrix is above, a positive scalar."""
    bound = torch.minimum(gram.trace(), torch.linalg.matrix_norm(gram, ord=torch.inf))
    return bound.clamp(min=torch.finfo(gram.dtype).tiny)


def polar_root_by_products(gram: Tensor, polynomials: Sequence[OddPolynomial]) -> Tensor:
    """What takes a matrix X with X'X = G to the polynomials of it: X R, for a symmetric R of the size of G.

    Args:
        gram: G, (size, size), with eigenvalues from 0 to 1.
        polynomials: from `polar_polynomials`, all of them or the next few. What rounding has left of an eigenvalue that is 0 grows
            with each, so that the matrix X R needs a Gram matrix of its own after a few.

    Returns:
        R, (size, size).
    """
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    root = identity
    for first, third, fifth in polynomials:
        factor = first * identity + third * gram + fifth * product(gram, gram)
        root, gram = product(root, factor), product(factor, product(gram, factor))
    return root
