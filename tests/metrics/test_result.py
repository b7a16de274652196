import dataclasses
import json
import math

import pytest

from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.declared import entries
from tests.metrics.cases import case


def test_the_dictionary_is_plain_and_whole():
    result = measure_collapse(*case("missing"))
    values = result.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert list(values) == [field.name for field in dataclasses.fields(result) if field.name != "added"]
    assert values["cosine_margins"] == sorted(values["cosine_margins"])


def test_scalars_are_the_finite_numbers():
    result = dataclasses.replace(measure_collapse(*case("missing")), cdnv=math.nan, trace_ratio=math.inf)
    scalars = result.scalars(prefix="train/")
    assert {"train/nc1": result.nc1, "train/num_samples": result.num_samples}.items() <= scalars.items()
    assert all(type(value) in (int, float) and math.isfinite(value) for value in scalars.values())
    plain = {name for name, value in result.to_dict().items() if type(value) in (int, float)}
    assert {name.removeprefix("train/") for name in scalars} == plain
    assert not {"cdnv", "trace_ratio", "test_nc4", "counts", "center_weight", "global_mean"} & set(result.scalars())


def test_it_is_frozen():
    result = measure_collapse(*case("balanced"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.nc1 = 0.0


def test_one_sample_each_is_said_to_be_no_evidence():
    data = case("balanced")
    first = [data.labels.tolist().index(c) for c in range(6)]
    result = measure_collapse(data.features[first], data.labels[first])
    assert result.nc1 == 0
    assert any("6 classes have a single sample" in note for note in result.notes)


def test_every_number_has_its_line_and_all_are_aligned():
    data = case("missing")
    result = measure_collapse(*data, test_features=data.features[:9], test_labels=data.labels[:9])
    lines = str(result).splitlines()
    for entry in entries():
        assert f"  {entry.metric.label:<40}{getattr(result, entry.key):>12.6g}" in lines
    assert "  classes with samples: 5 of 7, from 9 to 20 samples each" in lines
    assert "left out" not in lines
    assert [line for line in lines if line in {entry.section for entry in entries()}] == [
        "variability",
        "frame",
        "samples",
        "test samples",
    ]
