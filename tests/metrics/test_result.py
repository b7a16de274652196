"""A result as a dictionary, text and HTML, and the reasons for missing metrics."""

import dataclasses
import json
import math
from xml.etree import ElementTree

from guided_collapse import measure_collapse
from guided_collapse.metrics.declared import metrics_of_results
from tests.metrics.cases import case, filled


def test_the_dictionary_is_plain_and_complete():
    result = measure_collapse(*case("missing"))
    values = result.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert list(values) == [field.name for field in dataclasses.fields(result)]
    assert values["cosine_margins"] == sorted(values["cosine_margins"])


def test_scalars_are_the_finite_numbers():
    result = dataclasses.replace(measure_collapse(*case("missing")), cdnv=math.nan, trace_ratio=math.inf)
    scalars = result.scalars(prefix="train/")
    assert {"train/nc1": result.nc1, "train/num_samples": result.num_samples}.items() <= scalars.items()
    assert all(type(value) in (int, float) and math.isfinite(value) for value in scalars.values())
    plain = {name for name, value in result.to_dict().items() if type(value) in (int, float)}
    assert {name.removeprefix("train/") for name in scalars} == plain
    assert not {"cdnv", "trace_ratio", "test_nc4", "counts", "center_weight", "global_mean"} & set(result.scalars())


def test_classes_of_one_sample_get_a_note():
    data = case("balanced")
    first = [data.labels.tolist().index(c) for c in range(6)]
    result = measure_collapse(data.features[first], data.labels[first])
    assert result.nc1 == 0
    assert any("6 classes have a single sample" in note for note in result.notes)


def test_every_metric_has_a_line_and_lines_are_aligned():
    data = case("missing")
    result = measure_collapse(*data, test_features=data.features[:9], test_labels=data.labels[:9])
    lines = str(result).splitlines()
    for metric in metrics_of_results():
        assert f"  {metric.label:<40}{getattr(result, metric.name):>12.6g}" in lines
    assert "  classes with samples: 5 of 7, from 9 to 20 samples each" in lines
    assert "left out" not in lines
    sections = {metric.section for metric in metrics_of_results()}
    assert [line for line in lines if line in sections] == ["variability", "frame", "samples", "test samples"]


def test_what_is_none_is_left_out_with_a_reason():
    data, many = case("balanced"), case("narrow")
    stream = filled(data, [40])
    for result in (
        measure_collapse(*data),
        measure_collapse(data.features, data.labels),
        measure_collapse(data.features, data.labels, test_features=data.features[:9], test_labels=data.labels[:9]),
        measure_collapse(many.features[:, :4], many.labels),
        stream.compute(),
        stream.measure(data.weight),
    ):
        missing = {metric.name for metric in metrics_of_results() if getattr(result, metric.name) is None}
        lists = {name for name in ("cosine_margins", "numerical_ranks") if getattr(result, name) is None}
        assert set(result.left_out) == missing | lists


def test_the_first_of_several_reasons_is_given():
    data = case("balanced")
    assert measure_collapse(data.features, data.labels).left_out["test_nc4"] == "no test samples were given"
    alone = measure_collapse(data.features, data.labels, test_features=data.features[:9], test_labels=data.labels[:9])
    assert alone.left_out["test_nc4"] == "needs the classifier's weight"
    assert filled(data, [40]).compute().left_out["nc4"] == "needs the classifier's weight"
    assert filled(data, [40]).measure(data.weight).left_out["nc4"].startswith("needs a second pass")


def shown(result):
    return ElementTree.fromstring(f"<div>{result._repr_html_().replace('<br>', '<br/>')}</div>")


def test_every_metric_is_in_the_table():
    data = case("missing")
    result = measure_collapse(*data, test_features=data.features[:9], test_labels=data.labels[:9])
    rows = [tuple(cell.text for cell in row.findall("td")) for row in shown(result).iter("tr") if row.findall("td")]
    expected = [(each.label, f"{getattr(result, each.name):.6g}", each.at_collapse) for each in metrics_of_results()]
    assert sorted(rows) == sorted(expected)


def test_missing_metrics_and_notes_follow_the_table_and_are_escaped():
    harmful = "<script>alert(1)</script>"
    result = dataclasses.replace(measure_collapse(*case("missing")[:2]), notes=(harmful,))
    lines = [line.text for line in shown(result).iter("li")]
    assert any("nc2" in line and "needs the classifier's weight" in line for line in lines)
    assert lines[-1] == harmful
    assert [line.text for line in shown(result).iter("p")] == ["left out", "notes"]
    assert f"  {harmful}" in str(result)
