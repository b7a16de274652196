"""`guided-collapse cost PRESET FLAGS`."""

from guided_collapse.cli.requests import cost_request, first_word
from guided_collapse.cli.status import DONE


def run(words: list[str]) -> int:
    """Measures and prints what the heads cost."""
    configuration, wanted = cost_request(*first_word(words))
    from guided_collapse.profiling.cost import measure_cost
    from guided_collapse.records.reading import read_cost
    from guided_collapse.report.tables.cost import cost_table
    from guided_collapse.report.tables.formats import plain_text

    file = measure_cost(configuration, wanted)
    table = cost_table([read_cost(file)])
    if table is not None:
        print(plain_text(table))
    print(file)
    return DONE
