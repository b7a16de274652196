from guided_collapse.experiments.records.reading import read_cost
from guided_collapse.experiments.report.tables.cost import cost_table, memory_table
from tests.experiments.report.made_up import cost_row, write_cost


def test_costs_are_shown_as_measured(tmp_path):
    table = cost_table([read_cost(write_cost(tmp_path))])
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["toy", "cosine", "1.25", "2.5", "0.25", "0.5", "12", ""],
        ["toy", "fixed-etf", "1.5", "2", "0.125", "0.375", "11", ""],
        ["toy", "nearest-etf", "4", "6.5", "3", "5", "30.5", "closed form"],
        ["toy", "paper-route", "12,346", "-", "12,000", "-", "-", "does not fit"],
    ]
    assert table.notes == ("toy: batch_size 256, precision 32-true; on cpu Abacus, cores 2.",)
    assert table.csv_rows[2]["forward_ms"] == 4.0


def test_memory_stands_beside_the_papers(tmp_path):
    costs = [read_cost(write_cost(tmp_path / name, name)) for name in ("toy", "ufm-1000")]
    table = memory_table(costs)
    assert table.columns == ("experiment", "source", "cosine", "fixed-etf", "nearest-etf", "nearest-etf-detached", "paper-route")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["toy", "ours", "12 MB", "11 MB", "30.5 MB", "-", "-"],
        ["ufm-1000", "ours", "12 MB", "11 MB", "30.5 MB", "-", "-"],
        ["ufm-1000", "paper", "1.9 GB", "1.9 GB", "-", "2.9 GB", "-"],
    ]
    papers = {record["head"]: record["peak_mb"] for record in table.csv_rows if record["source"] == "paper"}
    assert papers == {"cosine": 1900.0, "fixed-etf": 1900.0, "nearest-etf-detached": 2900.0, "nearest-etf": None}


def test_no_costs_no_tables(tmp_path):
    assert cost_table([]) is None
    assert memory_table([]) is None
    row = cost_row("fixed-etf", 1.0, 1.0, 1.0, 1.0, None)
    assert memory_table([read_cost(write_cost(tmp_path, rows=[row]))]) is None
