"""Costs in the notation of the paper."""

from typing import NamedTuple

from guided_collapse.records.schema import CostRecord
from guided_collapse.report.looks import label, letter


class Pass(NamedTuple):
    """The time of one pass in the paper's notation: S/F is the forward pass of the standard head."""

    notation: str
    head: str
    backward: bool
    milliseconds: float


def passes(cost: CostRecord) -> list[Pass]:
    """Every pass that was timed, forward and backward, head by head."""
    found = []
    for row in cost.rows:
        for backward, milliseconds in ((False, row.forward_ms), (True, row.backward_ms)):
            if milliseconds:
                found.append(Pass(f"{letter(row.head)}/{'B' if backward else 'F'}", row.head, backward, milliseconds))
    return found


def notation(cost: CostRecord) -> list[str]:
    """What the letters of the heads stand for."""
    return [f"{letter(row.head)} = {label(row.head)}" for row in cost.rows if letter(row.head) != row.head]
