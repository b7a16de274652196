import ast
import csv
import errno
import io
import re
import sys
from pathlib import Path

import pytest

from guided_collapse.experiments import report
from guided_collapse.experiments.cli import main
from guided_collapse.experiments.records.files import NotWrittenError
from guided_collapse.experiments.report.write import write_report
from tests.experiments.report.made_up import cost_row, lines, write_cost, write_run


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("written")
    for seed in range(2):
        write_run(root / "runs", head="nearest-etf", seed=seed, epochs=8)
    write_run(root / "runs", head="nearest-etf", seed=2, epochs=3, state="failed")
    write_run(root / "runs", head="nearest-etf", seed=3, epochs=3, state="unfinished")
    write_cost(root / "runs" / "toy")
    return root, write_report([root / "runs"], root / "deep" / "out", epochs=(6, 3))


def test_everything_is_written_and_nothing_else(written):
    root, summary = written
    out = root / "deep" / "out"
    tables = ["train-top1", "test-top1", "final", "epochs-to-accuracy", "seconds-to-accuracy", "cost", "memory", "runs"]
    expected = {out / "tables" / f"{name}.{kind}" for name in tables for kind in ("md", "csv", "tex")}
    expected |= {out / "figures" / f"{name}.{kind}" for name in ("panels-toy", "cost-toy") for kind in ("pdf", "png")}
    expected.add(out / "report.html")
    assert set(summary.files) == expected == {path for path in out.rglob("*") if path.is_file()}
    assert summary.files[-1] == summary.page == out / "report.html"
    assert (summary.num_finished, summary.num_unfinished, summary.num_failed) == (2, 1, 1)
    assert summary.experiments == ("toy",)
    assert summary.skipped == ()


def test_chosen_epochs_are_in_order_and_equal_the_records(written):
    _, summary = written
    path = next(path for path in summary.files if path.name == "train-top1.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["3", "6"]
    values = sorted(100 * lines("nearest-etf", seed, 8)[2]["train"]["top1"] for seed in range(2))
    values.append(100 * lines("nearest-etf", 3, 3)[2]["train"]["top1"])
    assert float(rows[0]["median"]) == pytest.approx(sorted(values)[1])
    assert (rows[1]["measured_at"], rows[1]["seeds"]) == ("3 to 6", "3")


def test_a_second_report_takes_the_place_of_the_first(written):
    root, summary = written
    before = summary.page.read_bytes()
    again = write_report([root / "runs"], root / "deep" / "out", epochs=(3, 6))
    assert again.page.read_bytes() == before


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused(place, tmp_path):
    write_run(tmp_path / "runs", epochs=2)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ValueError, match="needs a folder that can be written"):
        write_report([tmp_path / "runs"], tmp_path / place)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("place", ["tables", "figures"])
def test_nothing_is_written_where_a_part_has_no_room(place, tmp_path):
    write_run(tmp_path / "runs", epochs=2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / place).write_text("kept")
    with pytest.raises(ValueError, match=rf"needs a folder that can be written; .*{place} cannot"):
        write_report([tmp_path / "runs"], tmp_path / "out")
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [tmp_path / "out" / place]


@pytest.mark.usefixtures("_undrawn")
def test_one_bad_file_costs_the_report_that_run_alone(tmp_path):
    write_run(tmp_path / "runs", epochs=2)
    holed = write_run(tmp_path / "runs", seed=1, lines=[{"epoch": 1}, {"epoch": 3}])
    short = write_run(tmp_path / "runs", seed=2, epochs=2, configuration={"epochs": 6})
    rows = [cost_row("cosine", -1.25, 2.5, 0.25, 0.5, 12.0)]
    cost = write_cost(tmp_path / "runs" / "toy", rows=rows)
    with pytest.warns(UserWarning, match="left out: "):
        summary = write_report([tmp_path / "runs"], tmp_path / "out")
    assert (summary.num_finished, summary.num_unfinished) == (1, 1)
    said = summary.page.read_text()
    for folder, reason in (
        (holed, "line 2 of metrics.jsonl cannot be used: epochs must be 1, 2, 3"),
        (short, "the epochs after 2 of 6"),
        (cost.parent, "cost.json cannot be used: forward_ms must be a number from 0 to"),
    ):
        assert any(message.startswith(f"{folder}: ") and reason in message for message in summary.skipped), summary.skipped
        assert f"Left out: {folder}: " in said
    assert (tmp_path / "out" / "tables" / "final.csv").exists()
    assert not (tmp_path / "out" / "tables" / "cost.csv").exists()


@pytest.mark.filterwarnings("always")
@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize(("damage", "status"), [(False, 0), (True, 1)])
def test_the_command_says_whether_something_was_left_out(damage, status, tmp_path, capsys):
    write_cost(tmp_path / "runs")
    if damage:
        bad = write_run(tmp_path / "runs", lines=[{"epoch": 2}])
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == status
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'report.html'}\n"
    assert err.count("\n") == status
    assert not damage or f"{bad}: line 1 of metrics.jsonl cannot be used" in err


HOSTILE = "<script>alert(1)</script>|&\\\n\u202e$x_%{}#^~`*[a](b)"


@pytest.mark.thorough
@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize(("experiment", "head"), [(HOSTILE, f"={HOSTILE}"), ("x" * 300, "y" * 300), ("word " * 60, "@ " * 150)])
def test_names_that_are_made_to_harm_stay_names_in_every_file(experiment, head, tmp_path):
    for seed in range(2):
        write_run(tmp_path / "runs", experiment, head, seed, folder=f"a-{seed}", epochs=2)
        write_run(tmp_path / "runs", experiment, "cosine", seed, folder=f"b-{seed}", epochs=2)
    write_cost(tmp_path / "runs" / "cost", experiment, rows=[cost_row(head, 1.0, 2.0, 0.5, 0.5, 3.0, head)])
    summary = write_report([tmp_path / "runs"], tmp_path / "out")
    assert max(len(path.name) for path in summary.files) < 120
    texts = {path: path.read_text() for path in summary.files if path.suffix in (".html", ".md", ".tex", ".csv")}
    assert len(texts) > 20
    for path, text in texts.items():
        if path.suffix != ".csv":
            assert "<script>alert" not in text
            assert "\u202e" not in text
        if path.suffix == ".md":
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| ")}) == 1
        if path.suffix == ".tex":
            assert not re.search(r"(?<!\\)[#%~](?! needs)|\^\~", re.sub(r"\$[^$]*\$", "", text.replace(r"\$", "")))
        if path.suffix == ".csv":
            rows = list(csv.reader(io.StringIO(text, newline="")))
            assert len({len(row) for row in rows}) == 1
            assert not [cell for row in rows for cell in row if cell[:1] in tuple("=@")]


def test_a_folder_in_which_nobody_may_write_is_refused(tmp_path):
    write_run(tmp_path / "runs", epochs=2)
    with pytest.raises(ValueError, match="needs a folder that can be written"):
        write_report([tmp_path / "runs"], Path("/proc"))


def test_a_write_that_fails_leaves_no_half_file(tmp_path):
    write_cost(tmp_path / "runs")
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    with pytest.raises(NotWrittenError, match=r"report\.html could not be written"):
        write_report([tmp_path / "runs"], tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]


@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize(("longest", "epochs"), [(7, {"7"}), (60, {"50"}), (250, {"50", "200"})])
def test_epochs_that_are_not_chosen_are_the_papers_as_far_as_runs_go(longest, epochs, tmp_path):
    write_run(tmp_path / "runs", epochs=longest)
    write_run(tmp_path / "runs", seed=1, epochs=3)
    write_report([tmp_path / "runs"], tmp_path / "out")
    with (tmp_path / "out" / "tables" / "train-top1.csv").open(newline="") as file:
        assert {row["epoch"] for row in csv.DictReader(file)} == epochs


def test_wrong_requests_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="epochs must be"):
        write_report([tmp_path], tmp_path / "out", epochs=())
    with pytest.raises(ValueError, match="epochs must be"):
        write_report([tmp_path], tmp_path / "out", epochs=(0, 5))
    with pytest.raises(ValueError, match="none was found"):
        write_report([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    for package in ("plotly", "matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ValueError, match=f"needs the package {package},.* with its extra experiments"):
            write_report([tmp_path], tmp_path / "out")


def test_the_room_knows_no_torch():
    for file in Path(report.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"torch", "safetensors", "lightning_fabric"}, file


def test_a_full_disk_fails_on_the_way_and_names_the_file(tmp_path, capsys, monkeypatch):
    write_cost(tmp_path / "runs")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("guided_collapse.experiments.records.files.os.fsync", full)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "cost.md could not be written: No space left on device. What was there before is whole. Make room" in said
