import csv
import io
import re
from dataclasses import replace

import pytest

from guided_collapse.experiments.records.reading import read_cost, read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.tables.formats import all_tables, csv_text, latex, markdown, plain_text
from guided_collapse.experiments.report.tables.table import Cell, Table, words
from tests.experiments.report.made_up import write_cost, write_run

TABLE = Table(
    name="toy",
    title="A title with 5 %",
    stub=1,
    columns=("name", "a", "b", "a", "b"),
    groups=(("epoch 1", 2), ("epoch 2", 2)),
    rows=((words("<script>|*_`"), Cell("1", "$1$"), Cell("2", "$2$", best=True), Cell("3", "$3$"), words("-")),),
    csv_rows=({"name": "<script>|*_`,\n", "value": 0.1 + 0.2}, {"name": "other", "value": None}),
    notes=("A note_with & signs.",),
)


def test_markdown():
    lines = markdown(TABLE).splitlines()
    assert lines[0] == "**A title with 5 %**"
    assert lines[2] == "| name | epoch 1: a | epoch 1: b | epoch 2: a | epoch 2: b |"
    assert lines[3] == "| --- | --- | --- | --- | --- |"
    assert lines[4] == r"| &lt;script&gt;\|\*\_\` | 1 | **2** | 3 | - |"
    assert lines[6] == r"A note\_with &amp; signs."


def test_plain_text_for_a_terminal():
    assert plain_text(TABLE).splitlines() == [
        "A title with 5 %",
        "",
        "name          epoch 1: a  epoch 1: b  epoch 2: a  epoch 2: b",
        "<script>|*_`  1           2           3           -",
        "",
        "A note_with & signs.",
    ]


def test_csv_gives_back_every_digit():
    rows = list(csv.DictReader(io.StringIO(csv_text(TABLE), newline="")))
    assert rows[0]["name"] == "<script>|*_`,\n"
    assert float(rows[0]["value"]) == 0.1 + 0.2
    assert rows[1]["value"] == ""


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a", "\t=1", "\n=1", "=cmd|' /C calc'!A0"])
def test_no_text_in_csv_is_a_formula_to_a_spreadsheet_and_numbers_stay_numbers(name):
    table = replace(TABLE, csv_rows=({"name": name, "value": -0.5, "count": -3},))
    row = next(csv.reader(io.StringIO(csv_text(table).split("\n", 1)[1], newline="")))
    assert row == [f"'{name}", "-0.5", "-3"]


def test_a_table_for_a_terminal_has_one_line_for_each_row_whatever_it_holds():
    name = "a\nb\x1b[31m\x9b\u202ec"
    table = Table("t", name, 1, (name, "x"), ((words(name), words("1")),), (), notes=(name,))
    lines = plain_text(table).splitlines()
    assert lines == ["a b [31m c", "", "a b [31m c  x", "a b [31m c  1", "", "a b [31m c"]


def test_latex_is_a_booktabs_table():
    lines = [line.strip() for line in latex(TABLE).splitlines()]
    assert lines[2] == r"\caption{A title with 5 \%.}"
    assert r"\begin{tabular}{lcccc}" in lines
    assert r"& \multicolumn{2}{c}{epoch 1} & \multicolumn{2}{c}{epoch 2} \\" in lines
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in lines
    assert r"\textless{}script\textgreater{}\textbar{}*\_` & $1$ & {\boldmath\bfseries $2$} & $3$ & - \\" in lines
    assert [line for line in lines if "rule" in line and "cmid" not in line] == [r"\toprule", r"\midrule", r"\bottomrule"]


def test_every_row_of_every_table_has_every_column(tmp_path):
    for head in ("cosine", "fixed-etf", "nearest-etf"):
        for seed in range(2):
            write_run(tmp_path, "cifar10-resnet18", head, seed, epochs=5)
    tables = all_tables(by_experiment(read_records([tmp_path]).runs), [read_cost(write_cost(tmp_path))], (50, 200))
    names = ["train-top1", "test-top1", "pairs", "final", "epochs-to-accuracy", "seconds-to-accuracy", "cost", "memory", "runs"]
    assert [table.name for table in tables] == names
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert sum(width for _, width in table.groups) in (0, len(table.columns) - table.stub)
        assert len({tuple(record) for record in table.csv_rows}) == 1
        body = re.search(r"\\midrule\n(.*)\\bottomrule", latex(table), re.DOTALL)[1]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in body.strip().splitlines()} == {len(table.columns) - 1}


def test_no_runs_no_tables():
    assert all_tables([], [], (50,)) == []
