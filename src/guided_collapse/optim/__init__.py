"""Automatic gradient descent, the paper's optimizer."""

from guided_collapse.optim.agd import AGD

__all__ = ["AGD"]
