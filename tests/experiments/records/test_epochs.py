import gzip
import json

import numpy as np
import pytest

from guided_collapse.experiments.records.epochs import read_epochs
from guided_collapse.experiments.records.fields import RecordError

NAMES = {"train": frozenset({"loss", "nc1"}), "test": frozenset({"loss"})}


def written(tmp_path, *lines, end="\n"):
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


def test_values_stand_at_their_epochs_and_what_is_missing_is_nan(tmp_path):
    written(
        tmp_path,
        {"epoch": 1, "running": {"loss": 9.0}, "seconds": 2.0},
        {"epoch": 2, "seconds": 3.0, "train": {"loss": 0.5, "nc1": None, "other": 3}, "test": {"loss": 0.7}},
        {"epoch": 3, "train": {"loss": 0.25}},
    )
    epochs = read_epochs(tmp_path, NAMES)
    np.testing.assert_array_equal(epochs.numbers, [1, 2, 3])
    np.testing.assert_array_equal(epochs.seconds, [2.0, 3.0, np.nan])
    np.testing.assert_array_equal(epochs.of("train", "loss"), [np.nan, 0.5, 0.25])
    np.testing.assert_array_equal(epochs.of("test", "loss"), [np.nan, 0.7, np.nan])
    np.testing.assert_array_equal(epochs.of("train", "nc1"), [np.nan] * 3)
    np.testing.assert_array_equal(epochs.of("train", "never heard of"), [np.nan] * 3)


def test_what_was_seen_while_training_is_not_taken(tmp_path):
    epochs = read_epochs(written(tmp_path, {"epoch": 1, "running": {"loss": 9.0, "nc1": 9.0}, "seconds": 1.0}).parent, NAMES)
    assert not epochs.values


def test_elapsed_time_is_unknown_from_the_first_gap(tmp_path):
    lines = [{"epoch": epoch, "seconds": seconds} for epoch, seconds in ((1, 1.5), (2, 2.0), (3, None))]
    np.testing.assert_array_equal(read_epochs(written(tmp_path, *lines).parent, NAMES).elapsed(), [1.5, 3.5, np.nan])
    lines = [{"epoch": 1, "seconds": 1.0}, {"epoch": 2}, {"epoch": 3, "seconds": 1.0}]
    np.testing.assert_array_equal(read_epochs(written(tmp_path, *lines).parent, NAMES).elapsed(), [1.0, np.nan, np.nan])


def test_no_file_is_no_epochs_and_a_line_cut_off_at_the_end_is_passed_over(tmp_path):
    assert len(read_epochs(tmp_path, NAMES).numbers) == 0
    written(tmp_path, {"epoch": 1, "seconds": 1.0}, '{"epoch": 2, "sec', end="")
    np.testing.assert_array_equal(read_epochs(tmp_path, NAMES).numbers, [1])


@pytest.mark.parametrize(
    "line",
    [
        '{"epoch": 1, "sec',
        '{"epoch": 1}',
        '{"epoch": 0}',
        '{"epoch": 2.0}',
        '{"epoch": true}',
        '{"epoch": 2, "seconds": -1}',
        '{"epoch": 2, "train": {"loss": 1e400}}',
        '{"epoch": 2, "train": {"loss": 1e250}}',
        '{"epoch": 2, "train": {"loss": NaN}}',
        '{"epoch": 2, "train": {"loss": "low"}}',
        '{"epoch": 2, "train": []}',
        '{"epoch": 2, "train": null}',
        '{"epoch": 2, "train": {"other": "text"}}',
        '{"epoch": 2, "running": {"loss": true}}',
        "7",
    ],
)
def test_a_line_that_is_no_measurement_is_refused_with_its_number(line, tmp_path):
    with pytest.raises(RecordError, match=r"line 2 of metrics\.jsonl"):
        read_epochs(written(tmp_path, {"epoch": 1}, line).parent, NAMES)


@pytest.mark.parametrize("numbers", [[1, 2, 4], [2, 3], [1, 2, 2], [1, 3, 2]])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_hole_in_the_epochs_is_refused(numbers, compressed, tmp_path):
    path = written(tmp_path, *({"epoch": number} for number in numbers))
    if compressed:
        (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    named = r"metrics\.jsonl\.gz" if compressed else r"metrics\.jsonl"
    with pytest.raises(RecordError, match=rf"of {named} cannot be used: epochs must be 1, 2, 3 \.\.\. without a hole"):
        read_epochs(tmp_path, NAMES)


def test_a_file_of_other_bytes_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(RecordError, match="cannot be read"):
        read_epochs(tmp_path, NAMES)


def test_compressed_records_are_the_same_and_damaged_ones_are_refused(tmp_path):
    path = written(tmp_path, {"epoch": 1, "train": {"loss": 0.5}})
    kept = tmp_path / "metrics.jsonl.gz"
    kept.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    np.testing.assert_array_equal(read_epochs(tmp_path, NAMES).of("train", "loss"), [0.5])
    for damaged in (kept.read_bytes()[:-5], kept.read_bytes()[:12] + b"?" * 20, b"no archive"):
        kept.write_bytes(damaged)
        with pytest.raises(RecordError, match="cannot be read"):
            read_epochs(tmp_path, NAMES)
