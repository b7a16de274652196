"""The variability collapse index in fractions, without any rounding."""

from collections.abc import Sequence
from fractions import Fraction

Row = Sequence[Fraction]


def variability_collapse_index(features: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """1 - tr(pinv(S_T) S_B) / min(d, C-1) of lists of numbers, with the mean of all samples as global mean.

    The dimensions in which elimination of S_T finds a pivot determine the others, and no linear map changes the trace: it is that
    of inverse(S_T) S_B in these dimensions alone.
    """
    rows = [[Fraction(value) for value in row] for row in features]
    members = {c: [row for row, label in zip(rows, labels, strict=True) if label == c] for c in set(labels)}
    means = {c: mean(own) for c, own in members.items()}
    within = covariance([difference(row, means[c]) for c, own in members.items() for row in own])
    between = covariance([difference(row, mean(rows)) for row in means.values()])
    dimensions = range(len(rows[0]))
    system = [[w + b for w, b in zip(*both, strict=True)] + both[1] for both in zip(within, between, strict=True)]
    for i in dimensions:
        if system[i][i] == 0:
            continue
        system[i] = [value / system[i][i] for value in system[i]]
        for j in dimensions:
            if j != i and system[j][i] != 0:
                system[j] = difference(system[j], [system[j][i] * value for value in system[i]])
    trace = sum(system[i][len(dimensions) + i] for i in dimensions if system[i][i] == 1)
    return float(1 - trace / min(len(dimensions), len(means) - 1))


def mean(rows: Sequence[Row]) -> list[Fraction]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def difference(left: Row, right: Row) -> list[Fraction]:
    return [a - b for a, b in zip(left, right, strict=True)]


def covariance(rows: Sequence[Row]) -> list[list[Fraction]]:
    columns = list(zip(*rows, strict=True))
    return [[sum(a * b for a, b in zip(x, y, strict=True)) / len(rows) for y in columns] for x in columns]
