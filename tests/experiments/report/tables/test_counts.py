from dataclasses import replace

import pytest

from guided_collapse.experiments.records.reading import read_cost
from guided_collapse.experiments.records.schema import PeakRates
from guided_collapse.experiments.report.tables.counts import counts_table
from guided_collapse.experiments.report.tables.formats import all_tables
from tests.experiments.report.made_up import head_counts, write_cost

COUNTS = (
    head_counts("fixed-etf", "cpu", None),
    head_counts("nearest-etf", "accelerator", "products"),
)
PEAKS = PeakRates(device_name="Abacus 9", float32_tflops=20.0, memory_gbs=500.0, source="its leaflet")


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_counts_are_shown_as_counted(tmp_path):
    cost = read_cost(write_cost(tmp_path, counts=COUNTS))
    table = counts_table([cost])
    assert table.columns[4:] == ("operations", "host waits", "float64 operations", "factorizations", "GFLOP", "MB moved")
    assert texts(table) == [
        ["toy", "fixed-etf", "cpu", "-", "250", "14", "17", "1", "4", "1"],
        ["toy", "nearest-etf", "accelerator", "products", "250", "14", "17", "1", "4", "1"],
    ]
    assert table.notes[1:] == ("toy: batch_size 256.",)
    assert (table.csv_rows[1]["work"], table.csv_rows[1]["least_ms"]) == (4_000_000_000, None)
    assert table in all_tables([], [cost], [])


def test_peak_rates_give_a_bound_for_accelerators(tmp_path):
    cost = read_cost(write_cost(tmp_path / "toy", counts=COUNTS, peaks=PEAKS))
    other = read_cost(write_cost(tmp_path / "other", "other", counts=COUNTS))
    table = counts_table([cost, other])
    assert table.columns[-1] == "lower bound (ms)"
    assert [row[-1] for row in texts(table)] == ["-", "0.2", "-", "-"]
    assert [row["least_ms"] for row in table.csv_rows] == [None, pytest.approx(0.2), None, None]
    assert "at 20 TFLOP/s and 500 GB/s, the peak rates of Abacus 9 (its leaflet). It is not a measured time" in table.notes[1]
    assert table.notes[2:] == ("toy: batch_size 256.", "other: batch_size 256.")


def test_the_bound_is_that_of_what_takes_longer():
    assert PEAKS.least_ms(replace(COUNTS[1], work=0)) == pytest.approx(0.002)
    assert PEAKS.least_ms(replace(COUNTS[1], moved_bytes=0)) == pytest.approx(0.2)


def test_nothing_counted_no_table(tmp_path):
    assert counts_table([]) is None
    assert counts_table([read_cost(write_cost(tmp_path, peaks=PEAKS))]) is None
