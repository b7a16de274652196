import hashlib
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits as bundled

from guided_collapse.experiments.data import sources
from guided_collapse.experiments.data.augmentation.normalize import pixel_statistics
from guided_collapse.experiments.data.known import CIFAR10_PACKAGE, KNOWN
from guided_collapse.experiments.data.readers import pictures
from guided_collapse.experiments.data.sources import MissingData, data_folder, data_root, load_data, load_digits
from tests.experiments.data.made_up import write_cifar10_package, write_cifar100_binary, write_folders, write_idx, write_parquet
from tests.experiments.data.readers.test_cifar_package import same


@pytest.fixture(autouse=True)
def _no_system_data(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path_factory.mktemp("system"))


def test_digits_need_no_files(tmp_path):
    assert len(load_data("digits", root=tmp_path).train) == 1437
    assert load_data("digits", root=tmp_path, image_size=16).image_shape == (1, 16, 16)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files(tmp_path, name):
    written = write_idx(tmp_path / name, num_train=20, num_test=10)
    data = load_data(name, root=tmp_path)
    assert data.name == name
    assert same(data, written)


def test_idx_files_of_the_system(tmp_path):
    written = write_idx(sources.SYSTEM_FOLDER / "fashion-mnist", num_train=20, num_test=10)
    assert same(load_data("fashion-mnist", root=tmp_path), written)
    with pytest.raises(MissingData):
        load_data("mnist", root=tmp_path)
    own = write_idx(tmp_path / "fashion-mnist", num_train=30, num_test=10)
    assert same(load_data("fashion-mnist", root=tmp_path), own)


def test_cifar10_from_the_package_or_else_from_parquet(tmp_path):
    second = write_parquet(tmp_path / "cifar10" / "plain_text", num_train=20, num_test=10)
    assert same(load_data("cifar10", root=tmp_path), second)
    first = write_cifar10_package(tmp_path / "cifar10" / CIFAR10_PACKAGE, 10)
    assert same(load_data("cifar10", root=tmp_path), first)


def test_cifar100_from_its_authors_archive_or_else_from_parquet(tmp_path):
    second = write_parquet(tmp_path / "cifar100" / "data", num_train=20, num_test=10, num_classes=100, label_column="fine_label")
    assert same(load_data("cifar100", root=tmp_path), second)
    first = write_cifar100_binary(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", 30, 10)
    assert same(load_data("cifar100", root=tmp_path), first)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("cifar100", {"size": 32, "num_classes": 100, "label_column": "fine_label"}),
        ("stl10", {"size": 96, "image_column": "image"}),
        ("mnist", {"size": 28, "channels": 1, "image_column": "image"}),
        ("imagenet", {"size": 256, "image_column": "image", "num_classes": 1000, "test_part": "validation"}),
    ],
)
def test_parquet_files(tmp_path, name, columns):
    written = write_parquet(tmp_path / name / "data", num_train=12, num_test=10, **columns)
    data = load_data(name, root=tmp_path)
    known = KNOWN[name]
    assert data.image_shape == (known.channels, known.image_size, known.image_size)
    assert data.num_classes == known.num_classes
    assert same(data, written)


def test_the_number_of_bytes_decides_what_streams(tmp_path, monkeypatch):
    write_parquet(tmp_path / "stl10", num_train=12, num_test=10, size=96, image_column="image")
    assert isinstance(load_data("stl10", root=tmp_path).train.images, torch.Tensor)
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", 1000)
    assert not isinstance(load_data("stl10", root=tmp_path).train.images, torch.Tensor)


def test_class_folders(tmp_path):
    write_folders(tmp_path / "imagenet", num_per_class=2, parts=("train", "val"), size=20)
    data = load_data("imagenet", root=tmp_path)
    assert data.name == "imagenet"
    assert data.image_shape == (3, 256, 256)


def test_another_size(tmp_path):
    write_cifar10_package(tmp_path / "cifar10" / CIFAR10_PACKAGE, 10)
    data = load_data("cifar10", root=tmp_path, image_size=16)
    assert data.train.images.shape == (50, 3, 16, 16)
    full = load_data("cifar10", root=tmp_path).train.images.double()
    torch.testing.assert_close(data.train.images.double().mean((2, 3)), full.mean((2, 3)), atol=3, rtol=0)


@pytest.mark.parametrize("name", sorted(set(KNOWN) - {"digits"}))
def test_missing_data_with_the_command_that_gets_it(tmp_path, name, monkeypatch):
    with pytest.raises(MissingData, match=f"{name} must be in {tmp_path / name}; it is not. Run: guided-collapse data {name}"):
        load_data(name, root=tmp_path)
    monkeypatch.setenv("GUIDED_COLLAPSE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(MissingData, match=str(tmp_path / "elsewhere" / name)):
        load_data(name)


def test_an_unknown_name():
    with pytest.raises(ValueError, match="must be one of digits"):
        load_data("cifar-10")


def test_all_digits_are_there_once_with_their_labels():
    data = load_digits()
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.image_shape == (1, 8, 8)
    assert data.class_names == tuple("0123456789")
    images = torch.cat([data.train.images, data.test.images]).flatten(1)
    rows = torch.cat([images.long(), torch.cat([data.train.labels, data.test.labels])[:, None]], dim=1)
    levels = (torch.from_numpy(bundled().data) * 255 / 16).round().long()
    expected = torch.cat([levels, torch.from_numpy(bundled().target)[:, None]], dim=1)
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_both_parts_have_every_class_in_proportion():
    data = load_digits()
    train, test = data.train.labels.bincount(), data.test.labels.bincount()
    assert float((test - (train + test) * 360 / 1797).abs().max()) < 1


def test_the_parts_are_always_the_same():
    # Part of what a result means: a change here makes old and new results incomparable.
    test = load_digits().test
    assert test.labels[:20].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 3, 6, 5, 9, 2, 1, 7, 8, 4]
    digest = hashlib.sha256(test.images.numpy().tobytes()).hexdigest()
    assert digest == "db9a64f574beb0e6cc60bee352739c42919eb03c00256cb146027f351050a3b0"


def test_the_known_normalization_is_that_of_the_training_images():
    found = pixel_statistics(load_digits().train)
    assert tuple(round(value, 4) for value in found.mean) == KNOWN["digits"].mean
    assert tuple(round(value, 4) for value in found.std) == KNOWN["digits"].std


def test_the_environment_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("GUIDED_COLLAPSE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_folder("digits", None) == tmp_path / "digits"
    assert data_folder("digits", Path("elsewhere")) == Path("elsewhere/digits")


def test_the_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("GUIDED_COLLAPSE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "guided-collapse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "guided-collapse"
