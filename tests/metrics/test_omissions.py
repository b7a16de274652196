from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.declared import entries
from guided_collapse.metrics.omissions import class_list
from tests.metrics.cases import case
from tests.metrics.machinery.test_streaming import filled


def test_what_is_none_is_left_out_with_a_reason():
    data = case("balanced")
    stream = filled(data, [40])
    for result in (
        measure_collapse(*data),
        measure_collapse(data.features, data.labels),
        measure_collapse(data.features, data.labels, test_features=data.features[:9], test_labels=data.labels[:9]),
        measure_collapse(data.features[:, :2], data.labels),
        stream.compute(),
        stream.measure(data.weight),
    ):
        missing = {entry.key for entry in entries() if getattr(result, entry.key) is None}
        lists = {name for name in ("cosine_margins", "numerical_ranks") if getattr(result, name) is None}
        assert set(result.left_out) == missing | lists


def test_of_several_reasons_the_first_is_said():
    data = case("balanced")
    assert measure_collapse(data.features, data.labels).left_out["test_nc4"] == "no test samples were given"
    alone = measure_collapse(data.features, data.labels, test_features=data.features[:9], test_labels=data.labels[:9])
    assert alone.left_out["test_nc4"] == "needs the classifier's weight"
    assert filled(data, [40]).compute().left_out["nc4"] == "needs the classifier's weight"
    assert filled(data, [40]).measure(data.weight).left_out["nc4"].startswith("needs a second pass")


def test_long_lists_are_shortened():
    assert class_list((3, 5)) == "3, 5"
    assert class_list(tuple(range(14))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4 more"
