from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.table import SECTIONS, class_list
from tests.metrics.cases import case


def test_every_number_has_its_line_and_all_are_aligned():
    data = case("missing")
    result = measure_collapse(*data, test_features=data.features[:9], test_labels=data.labels[:9])
    lines = str(result).splitlines()
    for entries in SECTIONS.values():
        for name, label in entries.items():
            assert f"  {label:<40}{getattr(result, name):>12.6g}" in lines
    assert "  classes with samples: 5 of 7, from 9 to 20 samples each" in lines
    assert "left out" not in lines


def test_long_lists_are_shortened():
    assert class_list((3, 5)) == "3, 5"
    assert class_list(tuple(range(14))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 more"
