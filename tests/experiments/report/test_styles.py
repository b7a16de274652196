from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.report.styles import STYLES, in_order, label, letter, styles_of


def test_order_is_that_of_the_known_heads_then_of_names():
    assert in_order(["zebra", "nearest-etf", "ant", "cosine", "nearest-etf"]) == ["cosine", "nearest-etf", "ant", "zebra"]


def test_a_known_head_looks_the_same_in_every_report():
    assert styles_of(["nearest-etf"])["nearest-etf"] == styles_of([*HEADS, "other"])["nearest-etf"]


def test_heads_differ_in_color_dash_and_marker():
    for part in ("light", "dark", "dash", "print_dash", "marker", "print_marker"):
        assert len({getattr(style, part) for style in STYLES}) == len(STYLES)
    styles = styles_of(["cosine", "nearest-etf", "mine", "yours"])
    assert len(set(styles.values())) == 4


def test_there_is_a_style_for_any_number_of_heads():
    assert set(styles_of([f"head {number}" for number in range(30)])) == {f"head {number}" for number in range(30)}
    assert len(styles_of([*HEADS, "a", "b"])) == len(HEADS) + 2


def contrast(one, other):
    def luminance(color):
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_can_be_seen_on_both_grounds():
    for style in STYLES:
        assert contrast(style.light, "#ffffff") >= 3
        assert contrast(style.dark, "#14171b") >= 3


def test_names_in_print():
    assert label("fixed-etf") == "Fixed ETF"
    assert [letter(head) for head in ("cosine", "fixed-etf", "nearest-etf")] == ["S", "F", "I"]
    assert label("mine") == letter("mine") == "mine"
    assert (label("paper-route"), letter("paper-route")) == ("the paper's route", "P")
