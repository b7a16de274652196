import json

import pytest

from guided_collapse.experiments.records.fields import (
    RecordError,
    number_field,
    object_field,
    parse_object,
    text_field,
    whole_field,
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{",
        '{"a": NaN}',
        '{"a": -Infinity}',
        "[" * 100_000,
        '{"a": ' + "[" * 900 + "]" * 900 + "}",
        '{"a": ' + "[" * 100 + "1" + "]" * 100 + "}",
        '{"a": ' + "1" * 5000 + "}",
    ],
)
def test_text_that_is_no_usable_object_is_refused(text):
    with pytest.raises(RecordError):
        parse_object(text)


def test_strings_can_always_be_written_again():
    found = parse_object(json.dumps({"name\ud800": ["half \udfff", {"in": "\ud800"}], "whole": "\U0001f600"}))
    json.dumps(found, ensure_ascii=False).encode("utf-8")
    assert found["whole"] == "\U0001f600"


@pytest.mark.parametrize(
    ("take", "value"),
    [
        (text_field, 1),
        (text_field, None),
        (whole_field, 1.0),
        (whole_field, True),
        (whole_field, -1),
        (whole_field, 2**60),
        (number_field, "1"),
        (number_field, True),
        (number_field, 10**400),
        (number_field, float("inf")),
        (object_field, []),
    ],
)
def test_a_field_of_another_kind_is_refused(take, value):
    with pytest.raises(RecordError, match="x must be"):
        take({"x": value}, "x")


def test_fields_are_taken_as_they_are():
    record = {"text": "a", "whole": 3, "number": 2, "null": None, "object": {"b": 1}}
    assert text_field(record, "text") == "a"
    assert whole_field(record, "whole", least=3) == 3
    assert number_field(record, "number") == 2.0
    assert number_field(record, "null") is None
    assert number_field(record, "missing") is None
    assert object_field(record, "object") == {"b": 1}
    assert object_field(record, "missing") == {}
