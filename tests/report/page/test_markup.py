from guided_collapse.report.page.markup import listing, pairs, table_html, tag, text
from guided_collapse.report.tables.table import Cell, Table, words

EVIL = "<script>alert(1)</script>\" onmouseover='x"
SAFE = "&lt;script&gt;alert(1)&lt;/script&gt;&quot; onmouseover=&#x27;x"


def test_elements():
    assert tag("p", "a", tag("b", "c"), class_="x", aria_label="y", hidden=True, id=False) == (
        '<p class="x" aria-label="y" hidden>a<b>c</b></p>'
    )
    assert tag("br") == "<br>"
    assert tag("input", type="range") == '<input type="range">'


def test_text_and_attributes_are_escaped():
    assert text(EVIL) == SAFE
    assert tag("p", title=EVIL) == f'<p title="{SAFE}"></p>'
    assert listing([EVIL]) == f"<ul><li>{SAFE}</li></ul>"
    assert pairs([(EVIL, EVIL)]) == f"<dl><div><dt>{SAFE}</dt><dd>{SAFE}</dd></div></dl>"


def test_a_table_is_escaped_everywhere():
    table = Table("t", EVIL, 1, (EVIL, EVIL), ((words(EVIL), words(EVIL)),), (), groups=((EVIL, 1),), notes=(EVIL,))
    found = table_html(table)
    assert "<script" not in found
    assert found.count(SAFE) == 9


def test_rows_have_headings_and_medians_their_range():
    row = (words("a"), words("paper"), Cell("5 (4 to 6) [epoch 3]", "", best=True), words("7 (6 to 8), 2 of 3"), words("7"))
    found = table_html(Table("t", "T", 2, ("name", "source", "x", "y", "z"), (row,), ()), without=1)
    assert '<th scope="row">paper</th>' in found
    assert '<tr class="paper">' in found
    assert "<strong>5 <small>(4 to 6)</small> <small>[epoch 3]</small></strong>" in found
    assert "<td>7 <small>(6 to 8)</small> <small>2 of 3</small></td>" in found
    assert "<td>7</td>" in found
    assert ">name<" not in found
