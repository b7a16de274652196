from guided_collapse.records.text import one_line
from guided_collapse.report.tables.table import escape_latex, words


def test_latex_sets_any_text_as_it_is():
    assert escape_latex("a_b & 5% of $x$ #1 {y} ~^\\") == (
        r"a\_b \& 5\% of \$x\$ \#1 \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escape_latex("<script>|") == r"\textless{}script\textgreater{}\textbar{}"


def test_text_stays_on_one_line():
    assert one_line(" a\n\tb\x00c\r\nd ") == "a b c d"
    assert words("a\nb_c").text == "a b_c"
    assert words("a\nb_c").latex == r"a b\_c"
