"""The variability collapse index and NC1 in exact rational arithmetic."""

from collections.abc import Sequence
from fractions import Fraction

Row = Sequence[Fraction]


def variability_collapse_index(features: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """1 - tr(pinv(S_T) S_B) / min(d, C-1) of lists of numbers, with the mean of all samples as global mean."""
    within, between = covariances(features, labels)
    total = [[w + b for w, b in zip(*both, strict=True)] for both in zip(within, between, strict=True)]
    return float(1 - trace_of_quotient(total, between) / min(len(total), len(set(labels)) - 1))


def nc1(features: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """tr(S_W inverse(S_B)) / C, for d < C dimensions that the class means fill."""
    within, between = covariances(features, labels)
    return float(trace_of_quotient(between, within) / len(set(labels)))


def covariances(features: Sequence[Sequence[float]], labels: Sequence[int]) -> tuple[list[list[Fraction]], list[list[Fraction]]]:
    rows = [[Fraction(value) for value in row] for row in features]
    members = {c: [row for row, label in zip(rows, labels, strict=True) if label == c] for c in set(labels)}
    means = {c: mean(own) for c, own in members.items()}
    within = covariance([difference(row, means[c]) for c, own in members.items() for row in own])
    return within, covariance([difference(row, mean(rows)) for row in means.values()])


def trace_of_quotient(divisor: list[list[Fraction]], matrix: list[list[Fraction]]) -> Fraction:
    """tr(pinv(divisor) matrix) of a symmetric divisor whose kernel is in that of the matrix.

    The dimensions in which elimination finds a pivot determine the others, and no linear map changes the trace: it is that of the
    inverse times the matrix in these dimensions alone.
    """
    dimensions = range(len(divisor))
    system = [left + right for left, right in zip(divisor, matrix, strict=True)]
    for i in dimensions:
        if system[i][i] == 0:
            continue
        system[i] = [value / system[i][i] for value in system[i]]
        for j in dimensions:
            if j != i and system[j][i] != 0:
                system[j] = difference(system[j], [system[j][i] * value for value in system[i]])
    return sum((system[i][len(dimensions) + i] for i in dimensions if system[i][i] == 1), Fraction(0))


def mean(rows: Sequence[Row]) -> list[Fraction]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def difference(left: Row, right: Row) -> list[Fraction]:
    return [a - b for a, b in zip(left, right, strict=True)]


def covariance(rows: Sequence[Row]) -> list[list[Fraction]]:
    columns = list(zip(*rows, strict=True))
    return [[sum(a * b for a, b in zip(x, y, strict=True)) / len(rows) for y in columns] for x in columns]
