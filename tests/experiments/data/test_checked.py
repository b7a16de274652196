import gzip
import hashlib
import json
import os

import pytest

from guided_collapse.experiments.data import checked, sources
from guided_collapse.experiments.data.checked import (
    RECORD,
    STAMPS,
    compare_once,
    load_checked,
    record_download,
    recorded_checksums,
    sha256_of,
)
from guided_collapse.experiments.data.download import check
from guided_collapse.experiments.data.known import CIFAR10_PACKAGE, KNOWN
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.training.tasks import build_task
from tests.experiments.data.made_up import write_cifar10_package, write_folders, write_idx, write_parquet


@pytest.fixture(autouse=True)
def _no_system_data(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path_factory.mktemp("system"))


@pytest.fixture
def sums(monkeypatch):
    """The files whose sha256 is taken, in turn."""
    taken = []
    monkeypatch.setattr(checked, "sha256_of", lambda path: taken.append(path) or hashlib.sha256(path.read_bytes()).hexdigest())
    return taken


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_run_refuses_data_that_are_not_the_real_ones(tmp_path, name):
    if name == "cifar10":
        write_cifar10_package(tmp_path / name / CIFAR10_PACKAGE, 4)
    else:
        write_idx(tmp_path / name, num_train=20, num_test=10)
    first, expected = next(iter(KNOWN[name].checksums.items()))
    message = rf"{first}.* must have the sha256 {expected}; it has .*run: guided-collapse data {name}\. .*class folders"
    with pytest.raises(ValueError, match=message):
        build_task(Configuration("made-up", name, "small"), data_root=tmp_path)
    assert not (tmp_path / name / STAMPS).exists()


def test_a_package_is_read_for_its_checksum_once_until_it_changes(tmp_path, sums, monkeypatch):
    package = tmp_path / "cifar10" / CIFAR10_PACKAGE
    write_cifar10_package(package, 4)
    monkeypatch.setitem(KNOWN["cifar10"].checksums, CIFAR10_PACKAGE, sha256(package))
    for _ in range(3):
        assert len(load_checked("cifar10", root=tmp_path).train) == 20
    assert sums == [package]
    os.utime(package, ns=(1, 1))
    load_checked("cifar10", root=tmp_path)
    assert sums == [package] * 2
    monkeypatch.setitem(KNOWN["cifar10"].checksums, CIFAR10_PACKAGE, "0" * 64)
    with pytest.raises(ValueError, match="must have the sha256 0000"):
        load_checked("cifar10", root=tmp_path)
    monkeypatch.setitem(KNOWN["cifar10"].checksums, CIFAR10_PACKAGE, sha256(package))
    write_cifar10_package(package, 5)
    with pytest.raises(ValueError, match=f"{package} must have the sha256"):
        load_checked("cifar10", root=tmp_path)


def test_stamps_of_files_of_the_system_are_kept_among_ones_own(tmp_path, sums, monkeypatch):
    folder = sources.SYSTEM_FOLDER / "fashion-mnist"
    write_idx(folder, num_train=20, num_test=10, compressed=False)
    for file in folder.iterdir():
        monkeypatch.setitem(KNOWN["fashion-mnist"].checksums, file.name, sha256(file))
    for _ in range(2):
        assert len(load_checked("fashion-mnist", root=tmp_path).train) == 20
    assert sorted(sums) == sorted(folder.iterdir())
    assert (tmp_path / "fashion-mnist" / STAMPS).is_file()


@pytest.mark.parametrize("stamps", [b"", b"[1]", b'{"a": 1}', b"[" * 100_000])
def test_damaged_stamps_cost_only_time(tmp_path, sums, stamps):
    file = tmp_path / "file"
    file.write_bytes(b"contents")
    (tmp_path / STAMPS).write_bytes(stamps)
    for _ in range(2):
        compare_once("it", {file: sha256(file)}, stamps=tmp_path / STAMPS)
    assert sums == [file]


def test_stamps_that_cannot_be_written_cost_only_time(tmp_path, sums):
    file = tmp_path / "file"
    file.write_bytes(b"contents")
    for _ in range(2):
        compare_once("it", {file: sha256(file)}, stamps=file / STAMPS)
    assert sums == [file] * 2
    assert list(tmp_path.iterdir()) == [file]


def test_downloaded_files_are_compared_with_what_came(tmp_path, sums):
    folder = tmp_path / "cifar10"
    write_parquet(folder / "plain_text", num_train=20, num_test=10)
    load_checked("cifar10", root=tmp_path)
    assert sums == []  # files that came otherwise have no record
    record_download(folder, {"repository": "uoft-cs/cifar10", "revision": "0123abcd"}, folder.rglob("*.parquet"))
    sums.clear()
    for _ in range(2):
        data = load_checked("cifar10", root=tmp_path)
    assert len(sums) == 2
    right = KNOWN["cifar10"].__class__(3, 32, 10, 20, 10, (0.5,) * 3, (0.5,) * 3)
    assert check(data, right) == "counts, and the sha256 of 2 files"
    changed = folder / "plain_text" / "test-00000-of-00001.parquet"
    write_parquet(folder / "plain_text", num_train=20, num_test=9)
    with pytest.raises(ValueError, match=f"{changed} must have the sha256"):
        load_checked("cifar10", root=tmp_path)


@pytest.mark.parametrize("contents", ["", "[]", "{}", '{"sha256": [1]}'])
def test_a_damaged_record_of_a_download_is_named(tmp_path, contents):
    write_parquet(tmp_path / "stl10", num_train=4, num_test=2, size=96, image_column="image")
    (tmp_path / "stl10" / RECORD).write_text(contents)
    with pytest.raises(ValueError, match=rf"{RECORD} must be the record of a download; .*get it again"):
        load_checked("stl10", root=tmp_path)


def test_nothing_is_known_of_class_folders_and_digits(tmp_path, sums):
    write_folders(tmp_path / "cifar10", num_per_class=2)
    assert load_checked("cifar10", root=tmp_path).class_names == ("cat", "dog", "eel")
    assert load_checked("digits", root=tmp_path, image_size=16).image_shape == (1, 16, 16)
    assert sums == []


def test_stamps_say_what_was_compared(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"contents")
    compare_once("it", {file: sha256(file)}, stamps=tmp_path / STAMPS)
    assert json.loads((tmp_path / STAMPS).read_text()) == {str(file): [8, file.stat().st_mtime_ns, sha256(file)]}


def test_compression_does_not_count(tmp_path):
    contents = b"something" * 100
    for name, written in (("plain", contents), ("a.gz", gzip.compress(contents, 1)), ("b.gz", gzip.compress(contents, 9))):
        (tmp_path / name).write_bytes(written)
        assert sha256_of(tmp_path / name) == hashlib.sha256(contents).hexdigest()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="must be readable"):
        sha256_of(tmp_path / "missing")


def test_checksums_are_those_of_the_time_of_the_download(tmp_path):
    assert recorded_checksums(tmp_path) == {}
    contents = {"train.parquet": b"a", "deep/test.parquet": b"b", "other.txt": b"c"}
    for name, written in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(written)
    record_download(tmp_path, {"address": None}, tmp_path.rglob("*.parquet"))
    (tmp_path / "train.parquet").write_bytes(b"changed")
    expected = {tmp_path / name: hashlib.sha256(contents[name]).hexdigest() for name in ("deep/test.parquet", "train.parquet")}
    assert recorded_checksums(tmp_path) == expected
    (tmp_path / "train.parquet").unlink()
    assert list(recorded_checksums(tmp_path)) == [tmp_path / "deep/test.parquet"]
    assert RECORD in [path.name for path in tmp_path.iterdir()]
