import pytest
from jinja2 import UndefinedError

from guided_collapse.experiments.report.page.page import templates
from guided_collapse.experiments.report.tables.table import Cell, Table, words

EVIL = "<script>alert(1)</script>\" onmouseover='x"
SAFE = "&lt;script&gt;alert(1)&lt;/script&gt;&#34; onmouseover=&#39;x"

PARTS = templates().get_template("parts.html").module


def test_text_and_attributes_are_escaped_and_on_one_line():
    filled = templates().from_string('<p title="{{ name }}">{{ name }}</p>').render(name=f"{EVIL}\n\u202ey")
    assert filled == f'<p title="{SAFE} y">{SAFE} y</p>'
    assert PARTS.listing([EVIL]).strip() == f"<ul><li>{SAFE}</li></ul>"
    assert PARTS.pairs([(EVIL, EVIL)]).strip() == f"<dl><div><dt>{SAFE}</dt><dd>{SAFE}</dd></div></dl>"


def test_a_name_that_the_page_does_not_give_is_an_error():
    with pytest.raises(UndefinedError):
        templates().from_string("{{ absent }}").render()


def test_a_table_is_escaped_everywhere():
    table = Table("t", EVIL, 1, (EVIL, EVIL), ((words(EVIL), words(EVIL)),), (), groups=((EVIL, 1),), notes=(EVIL,))
    found = PARTS.table(table)
    assert "<script" not in found
    assert found.count(SAFE) == 9


def test_rows_have_headings_and_medians_their_range():
    row = (words("a"), words("paper"), Cell("5 (4 to 6) [epoch 3]", "", best=True), words("7 (6 to 8), 2 of 3"), words("7"))
    found = PARTS.table(Table("t", "T", 2, ("name", "source", "x", "y", "z"), (row,), ()), without=1)
    assert '<th scope="row">paper</th>' in found
    assert '<tr class="paper">' in found
    assert "<strong>5 <small>(4 to 6)</small> <small>[epoch 3]</small></strong>" in found
    assert "<td>7 <small>(6 to 8)</small> <small>2 of 3</small></td>" in found
    assert "<td>7</td>" in found
    assert ">name<" not in found
