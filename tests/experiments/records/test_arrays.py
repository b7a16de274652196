import numpy as np
import pytest

from guided_collapse.experiments.records import contents
from guided_collapse.experiments.records.arrays import read_margins, read_trace
from guided_collapse.experiments.records.fields import RecordError
from tests.experiments.report.made_up import margins, trace


def saved(tmp_path, **arrays):
    path = tmp_path / "arrays.npz"
    np.savez(path, **arrays)
    return path


def test_margins_come_sorted_and_in_float64(tmp_path):
    path = saved(tmp_path, train=np.array([0.5, -0.25, 1.0], dtype=np.float32), other=np.zeros(3))
    found = read_margins(path)
    assert set(found) == {"train"}
    np.testing.assert_array_equal(found["train"], [-0.25, 0.5, 1.0])
    assert found["train"].dtype == np.float64
    assert set(read_margins(saved(tmp_path, **margins()))) == {"train", "test"}


def test_no_file_is_no_arrays(tmp_path):
    assert read_margins(tmp_path / "absent.npz") == {}
    assert read_trace(tmp_path / "absent.npz") is None


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, np.nan]),
        np.array([np.inf], dtype=np.float16),
        np.array([1e300]),
        np.array([np.longdouble("1e4000")]),
        np.zeros((2, 2)),
        np.zeros(0),
        np.array(["a"]),
    ],
)
def test_margins_that_are_none_are_refused(values, tmp_path):
    with pytest.raises(RecordError, match=r"train of arrays\.npz must be"):
        read_margins(saved(tmp_path, train=values))


def test_nothing_is_unpickled_and_damage_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"arrays\.npz cannot be read"):
        read_margins(saved(tmp_path, train=np.array([print], dtype=object)))
    path = saved(tmp_path, **trace())
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(RecordError, match=r"arrays\.npz cannot be read"):
        read_trace(path)


def test_an_archive_that_would_fill_the_memory_is_refused_before_it_does(tmp_path, monkeypatch):
    path = tmp_path / "arrays.npz"
    np.savez_compressed(path, train=np.zeros(10_000))
    monkeypatch.setattr(contents, "MOST_BYTES", 50_000)
    assert path.stat().st_size < contents.MOST_BYTES
    with pytest.raises(RecordError, match=r"arrays\.npz cannot be read: it must hold at most"):
        read_margins(path)


def test_only_the_arrays_of_a_record_are_read(tmp_path):
    assert set(read_margins(saved(tmp_path, train=np.zeros(2), other=np.array([print], dtype=object)))) == {"train"}


def test_a_trace_comes_as_it_was_written(tmp_path):
    arrays = trace(epochs=(2, 4), classes=3)
    found = read_trace(saved(tmp_path, **arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(found, name), array)


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": np.array([5, 5, 10, 20])},
        {"epochs": np.array([1.0, 2.0, 3.0, 4.0])},
        {"means": np.zeros((4, 4, 2), dtype=np.float32)},
        {"samples": np.full((4, 40, 3), np.inf)},
        {"sample_labels": np.repeat(np.arange(1, 5), 10)},
        {"sample_labels": np.zeros((40, 1), dtype=np.int64)},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(changes, tmp_path):
    with pytest.raises(RecordError, match=r"arrays\.npz must"):
        read_trace(saved(tmp_path, **{**trace(), **changes}))


def test_a_trace_that_lacks_something_says_what(tmp_path):
    arrays = trace()
    del arrays["means"], arrays["classes"]
    with pytest.raises(RecordError, match="lacks classes, means"):
        read_trace(saved(tmp_path, **arrays))
