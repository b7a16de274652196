import csv
import errno
import io
from pathlib import Path

import pytest

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.files import NotWrittenError
from guided_collapse.experiments.report import write_report
from tests.experiments.report.made_up import lines, write_run


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("written")
    for seed in range(2):
        write_run(root / "runs", head="nearest-etf", seed=seed, epochs=8)
    write_run(root / "runs", head="nearest-etf", seed=2, epochs=3, state="failed")
    write_run(root / "runs", head="nearest-etf", seed=3, epochs=3, state="unfinished")
    return root, write_report([root / "runs"], root / "deep" / "out", epochs=(6, 3))


def test_everything_is_written_and_nothing_else(written):
    root, summary = written
    out = root / "deep" / "out"
    tables = ["train-top1", "test-top1", "final", "epochs-to-accuracy", "seconds-to-accuracy", "runs"]
    expected = {out / "tables" / f"{name}.{kind}" for name in tables for kind in ("md", "csv", "tex")}
    expected |= {out / "figures" / f"panels-toy.{kind}" for kind in ("pdf", "png")} | {out / "report.html"}
    assert set(summary.files) == expected == {path for path in out.rglob("*") if path.is_file()}
    assert summary.files[-1] == summary.page == out / "report.html"
    assert summary.skipped == ()


def test_chosen_epochs_are_in_order_and_equal_the_records(written):
    _, summary = written
    path = next(path for path in summary.files if path.name == "train-top1.csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [row["epoch"] for row in rows] == ["3", "6"]
    values = [100 * lines("nearest-etf", seed, epochs)[2]["train"]["top1"] for seed, epochs in ((0, 8), (1, 8), (3, 3))]
    assert float(rows[0]["median"]) == pytest.approx(sorted(values)[1])
    assert (rows[1]["measured_at"], rows[1]["seeds"]) == ("3 to 6", "3")


@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize(("longest", "epochs"), [(7, {"7"}), (60, {"50"}), (250, {"50", "200"})])
def test_epochs_that_are_not_chosen_are_the_papers_as_far_as_runs_go(longest, epochs, tmp_path):
    write_run(tmp_path / "runs", epochs=longest)
    write_run(tmp_path / "runs", seed=1, epochs=3)
    write_report([tmp_path / "runs"], tmp_path / "out")
    rows = csv.DictReader(io.StringIO((tmp_path / "out" / "tables" / "train-top1.csv").read_text()))
    assert {row["epoch"] for row in rows} == epochs


@pytest.mark.parametrize(
    ("epochs", "reason"),
    [((), r"\[\]"), ((0, 5), r"\[0, 5\]"), ((5, 10**23), r"\[5, 10{23}\]")],
)
def test_epochs_that_no_run_has_are_refused_before_anything_is_written(epochs, reason, tmp_path):
    write_run(tmp_path / "runs", epochs=7, state="unfinished")
    with pytest.raises(ValueError, match=f"epochs must be from 1 to 20, .*; got {reason}"):
        write_report([tmp_path / "runs"], tmp_path / "out", epochs=epochs)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("out", "file"), [("file", "file"), ("file/below", "file"), ("out", "out/tables"), ("out", "out/figures")])
def test_nothing_is_written_where_a_folder_cannot_be_made(out, file, tmp_path):
    write_run(tmp_path / "runs", epochs=2)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("kept")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"out must be a writable folder; .*{Path(file).name}.* is not"):
        write_report([tmp_path / "runs"], tmp_path / out)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.filterwarnings("always")
@pytest.mark.usefixtures("_undrawn")
@pytest.mark.parametrize(("damage", "status"), [(False, 0), (True, 1)])
def test_the_command_says_whether_something_was_left_out(damage, status, tmp_path, capsys):
    write_run(tmp_path / "runs", epochs=2)
    if damage:
        bad = write_run(tmp_path / "runs", seed=1, lines=[{"epoch": 1}, {"epoch": 3}])
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == status
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'report.html'}\n"
    assert err.count("\n") == status
    assert not damage or f"{bad}: metrics.jsonl must have epoch 2 in line 2; got epoch 3" in err


@pytest.mark.usefixtures("_undrawn")
def test_a_write_that_fails_names_the_file_and_leaves_no_half_file(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "runs", epochs=2)
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    with pytest.raises(NotWrittenError, match=r"report\.html could not be written"):
        write_report([tmp_path / "runs"], tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("guided_collapse.experiments.files.os.fsync", full)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "full")]) == 1
    assert "train-top1.md could not be written: No space left on device" in capsys.readouterr().err
