"""`guided-collapse compare [PRESET] FLAGS`."""

import sys

from guided_collapse.cli.requests import compare_request, first_word
from guided_collapse.cli.status import DONE, FAILED


def run(words: list[str]) -> int:
    """Runs the grid and prints its table."""
    wanted = compare_request(*first_word(words))
    from guided_collapse.data.known import check_source
    from guided_collapse.experiments.comparison import compare, comparison_table
    from guided_collapse.report.write import write_report
    from guided_collapse.training.launch import check_launch

    # Once, instead of a failure of every run.
    check_launch(wanted.placement, wanted.configuration.precision)
    if not wanted.configuration.is_unconstrained:
        check_source(wanted.configuration.data)
    comparison = compare(wanted.configuration, wanted.heads, wanted.seeds, wanted.placement)
    if comparison.finished:
        print(comparison_table(comparison))
        folder = wanted.placement.out / wanted.configuration.experiment
        print(f"\n{write_report([folder], folder / 'report').page}")
    for failed, reason in comparison.failed:
        print(f"failed: {failed.path}: {reason}", file=sys.stderr)
    return FAILED if comparison.failed else DONE
