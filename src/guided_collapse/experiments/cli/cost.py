"""`guided-collapse cost PRESET FLAGS`."""

from collections.abc import Sequence
from typing import NamedTuple

from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.cli.command import DONE
from guided_collapse.experiments.cli.requests import asks_for_help, check_heads, check_out, parsed, split_words
from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS, preset
from guided_collapse.experiments.profiling.cost import CostRequest
from guided_collapse.experiments.configuration import Configuration


class Wanted(NamedTuple):
    """An experiment, and how to measure it."""

    configuration: Configuration
    request: CostRequest


def run(words: list[str]) -> int:
    """Measures and prints what the heads cost."""
    wanted = cost_request(*split_words(words))
    from guided_collapse.experiments.profiling.cost import measure_cost
    from guided_collapse.experiments.records.reading import read_cost
    from guided_collapse.experiments.report.tables.cost import cost_table
    from guided_collapse.experiments.report.tables.counts import counts_table
    from guided_collapse.experiments.report.tables.formats import plain_text

    file = measure_cost(wanted.configuration, wanted.request)
    cost = read_cost(file)
    for table in (cost_table([cost]), counts_table([cost])):
        if table is not None:
            print(plain_text(table))
    print(file)
    return DONE


def cost_request(name: str | None, flags: Sequence[str]) -> Wanted:
    """What `cost PRESET FLAGS` asks for.

    Raises:
        RequestError: for no or an unknown preset, or an unknown head.
    """
    check_heads(flags)
    if name is None and not asks_for_help(flags):
        raise RequestError(f"cost needs an experiment; got none. Name one of {', '.join(PRESETS)}.")
    configuration = OWN_IMAGES if name is None else preset(name)
    request = parsed(CostRequest(), f"cost {name or 'PRESET'}", flags)
    num_samples = configuration.num_samples
    if request.batch_size is not None and num_samples is not None and request.batch_size > num_samples:
        raise RequestError(f"batch_size must be at most num_samples = {num_samples}; got {request.batch_size}.")
    check_out(request.out)
    return Wanted(configuration, request)
