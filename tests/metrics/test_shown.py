"""What a notebook shows of a result has everything that print has, and nothing in it is taken for markup."""

import dataclasses
from html.parser import HTMLParser

from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.declared import entries
from tests.metrics.cases import case

VOID = {"br"}


class Cells(HTMLParser):
    """The text of every element, by tag, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.tags = [], {}, set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.found.setdefault(self.open[-1], []).append(data)


def test_every_number_is_in_the_table():
    data = case("missing")
    result = measure_collapse(*data, test_features=data.features[:9], test_labels=data.labels[:9])
    cells = Cells(result._repr_html_()).found["td"]
    rows = list(zip(cells[::3], cells[1::3], cells[2::3], strict=True))
    expected = [(e.metric.label, f"{getattr(result, e.key):.6g}", e.metric.at_collapse) for e in entries()]
    assert sorted(rows) == sorted(expected)


def test_what_is_left_out_and_noted_stands_below():
    found = Cells(measure_collapse(*case("missing")[:2])._repr_html_()).found
    assert any("nc2" in line and "needs the classifier's weight" in line for line in found["li"])
    assert "left out" in found["b"]


def test_nothing_is_taken_for_markup():
    harmful = "<script>alert(1)</script>"
    result = dataclasses.replace(measure_collapse(*case("balanced")), notes=(harmful,), left_out={harmful: harmful})
    shown = Cells(result._repr_html_())
    assert "script" not in shown.tags
    assert harmful in shown.found["li"]
    assert f"  {harmful}" in str(result)
