"""Every metric is described in one place, and what follows from that does."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from guided_collapse.experiments.records.declared.quantities import QUANTITIES
from guided_collapse.metrics.declaration import MetricDeclaration
from guided_collapse.metrics.declared import METRICS, declare, entries, recorded
from guided_collapse.metrics.result import CollapseResult

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "guided_collapse"


def names_in(file: Path) -> Iterator[str]:
    """What a module says by name: strings, attributes that are read or written, keywords, and the fields of classes.

    Local variables and functions do not count: they may be called what they like. Nor does `__all__`, which says what a package
    exports.
    """
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.ClassDef):
            yield from (ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign))


@cache
def names_by_file() -> dict[str, set[str]]:
    return {str(file.relative_to(SOURCE)): set(names_in(file)) for file in sorted(SOURCE.rglob("*.py"))}


def files_that_name(name: str) -> list[str]:
    return [file for file, names in names_by_file().items() if name in names]


@pytest.mark.parametrize("name", METRICS)
def test_a_name_stands_in_three_source_files_at_most(name):
    found = files_that_name(name)
    assert "records/declared/metrics.py" in found
    assert len(found) <= 3, found


def test_the_check_sees_names():
    assert {"records/declared/metrics.py", "metrics/result.py", "metrics/collapse.py"} == set(files_that_name("cdnv"))
    assert "heads/classifier.py" in files_that_name("backbone")


def test_numbers_of_a_result_and_declarations_are_the_same():
    numbers = {field.name for field in fields(CollapseResult) if field.type in (float, float | None)}
    assert {entry.key for entry in entries()} == numbers
    assert {metric.each for metric in METRICS.values() if metric.each} <= {field.name for field in fields(CollapseResult)}


def test_a_record_has_what_is_charted():
    told_by_the_head = {name for name, metric in METRICS.items() if metric.section is None}
    for quantity in QUANTITIES:
        assert quantity.name in told_by_the_head | set(recorded(quantity.split))
    assert recorded("test")["nc4"] == "test_nc4"
    assert "accuracy" not in recorded("train")


def test_every_chart_is_shown_once():
    charts = [(name, split) for name, metric in METRICS.items() for split in metric.charts]
    assert sorted(charts) == sorted((quantity.name, quantity.split) for quantity in QUANTITIES)


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="a name of its own; 'vci' is declared already"):
        declare(MetricDeclaration("vci", "", None, "", "", ""))


def row(metric: MetricDeclaration) -> str:
    """A metric's row in the documentation."""
    formula = metric.formula.replace("|", "\\|")
    names = f"`{metric.name}`" + (f", `test_{metric.name}`" if "test" in metric.splits else "")
    each = f" `{metric.each}` has all." if metric.each else ""
    return f"| {names} | {metric.at_collapse} | {metric.meaning}{each} | `{formula}` |"


def test_the_documentation_has_the_same_table():
    lines = (ROOT / "docs" / "measuring.md").read_text().splitlines()
    start = lines.index("| name | at collapse | what it measures | formula |")
    shown = lines[start + 2 : lines.index("", start)]
    expected = [row(metric) for metric in METRICS.values() if metric.section is not None]
    assert shown == expected, "the table in docs/measuring.md must be:\n" + "\n".join(expected)
