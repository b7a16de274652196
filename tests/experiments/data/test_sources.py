import hashlib
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as bundled

from guided_collapse.experiments.data import archives, pictures, sources
from guided_collapse.experiments.data.augment import pixel_statistics
from guided_collapse.experiments.data.batches import batches
from guided_collapse.experiments.data.known import KNOWN, known_data
from tests.experiments.data import made_up
from tests.experiments.data.test_archives import same


@pytest.fixture(autouse=True)
def _no_system_data(monkeypatch, tmp_path_factory):
    datasets.disable_progress_bars()
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path_factory.mktemp("system"))


made_up_for_real = pytest.mark.usefixtures("_made_up_data_pass_for_real")


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match=r"must be one of digits, mnist.*got 'cifar-100'. Did you mean cifar100"):
        sources.load_data("cifar-100")
    with pytest.raises(ValueError, match=r"got 'zebra'\.$"):
        known_data("zebra")


@pytest.mark.parametrize("name", sorted(set(KNOWN) - {"digits"}))
def test_missing_data_with_the_command_that_gets_it(tmp_path, name):
    with pytest.raises(sources.MissingData, match=f"must be in {tmp_path / name}; it is not. Run: guided-collapse data {name}"):
        sources.load_data(name, root=tmp_path)


def test_where_data_live(monkeypatch, tmp_path):
    assert sources.data_folder("digits", Path("elsewhere")) == Path("elsewhere/digits")
    for name in ("GUIDED_COLLAPSE_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sources.data_folder("digits", None) == tmp_path / "home" / ".cache" / "guided-collapse" / "digits"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.data_folder("digits", None) == tmp_path / "guided-collapse" / "digits"
    monkeypatch.setenv("GUIDED_COLLAPSE_DATA", str(tmp_path / "chosen"))
    assert sources.data_folder("digits", None) == tmp_path / "chosen" / "digits"


@made_up_for_real
def test_idx_files_of_ones_own_or_else_of_the_system(tmp_path):
    written = made_up.write_idx(sources.SYSTEM_FOLDER / "fashion-mnist", num_train=20, num_test=10)
    assert same(sources.load_data("fashion-mnist", root=tmp_path), written)
    with pytest.raises(sources.MissingData):
        sources.load_data("mnist", root=tmp_path)
    own = made_up.write_idx(tmp_path / "fashion-mnist", num_train=30, num_test=10)
    assert same(sources.load_data("fashion-mnist", root=tmp_path), own)


@made_up_for_real
def test_cifar_from_its_authors_archive_or_else_from_parquet(tmp_path):
    second = made_up.write_parquet(tmp_path / "cifar10" / "data", num_train=20, num_test=10)
    assert same(sources.load_data("cifar10", root=tmp_path), second)
    first = made_up.write_cifar10_binary(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", 5)
    assert same(sources.load_data("cifar10", root=tmp_path), first)
    small = sources.load_data("cifar10", root=tmp_path, image_size=16).train.images
    assert small.shape == (25, 3, 16, 16)
    full = sources.load_data("cifar10", root=tmp_path).train.images.double()
    torch.testing.assert_close(small.double().mean((2, 3)), full.mean((2, 3)), atol=3, rtol=0)


def test_class_folders(tmp_path):
    made_up.write_folders(tmp_path / "imagenet", num_per_class=2, parts=("Train", "val"), size=20)
    data = sources.load_data("imagenet", root=tmp_path)
    assert (data.name, data.image_shape) == ("imagenet", (3, 256, 256))


@pytest.mark.parametrize(("name", "first"), [("mnist", "train-images-idx3-ubyte"), ("cifar10", "cifar-10-binary.tar.gz")])
def test_data_that_are_not_the_real_ones_are_refused(tmp_path, name, first):
    made_up.write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    made_up.write_cifar10_binary(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", 4)
    message = rf"{first}.* must have the (sha256|md5) {KNOWN[name].checksums[first]}; it has .*run: guided-collapse data {name}\."
    with pytest.raises(ValueError, match=message):
        sources.load_data(name, root=tmp_path)


def test_the_checksum_of_an_archive_is_taken_when_it_is_decoded(tmp_path, monkeypatch):
    path, checksums = tmp_path / "cifar10" / "cifar-10-binary.tar.gz", KNOWN["cifar10"].checksums
    made_up.write_cifar10_binary(path, 4)
    monkeypatch.setitem(checksums, path.name, hashlib.md5(path.read_bytes()).hexdigest())
    assert len(sources.load_data("cifar10", root=tmp_path).train) == 20
    monkeypatch.setattr(archives, "compare_checksum", lambda *arguments: pytest.fail("compared again"))
    assert len(sources.load_data("cifar10", root=tmp_path).train) == 20
    monkeypatch.undo()
    made_up.write_cifar10_binary(path, 5)
    with pytest.raises(ValueError, match=f"{path} must have the md5"):
        sources.load_data("cifar10", root=tmp_path)


def test_digits(tmp_path):
    data = sources.load_data("digits", root=tmp_path)
    assert (len(data.train), len(data.test), data.image_shape) == (1437, 360, (1, 8, 8))
    assert sources.load_data("digits", root=tmp_path, image_size=16).image_shape == (1, 16, 16)
    images = torch.cat([data.train.images, data.test.images]).flatten(1)
    rows = torch.cat([images.long(), torch.cat([data.train.labels, data.test.labels])[:, None]], dim=1)
    levels = (torch.from_numpy(bundled().data) * 255 / 16).round().long()
    expected = torch.cat([levels, torch.from_numpy(bundled().target)[:, None]], dim=1)
    assert sorted(rows.tolist()) == sorted(expected.tolist())
    train, test = data.train.labels.bincount(), data.test.labels.bincount()
    assert float((test - (train + test) * 360 / 1797).abs().max()) < 1
    found = pixel_statistics(data.train)
    assert tuple(round(value, 4) for value in found.mean + found.std) == KNOWN["digits"].mean + KNOWN["digits"].std


def test_the_digits_for_test_are_always_the_same():
    # Part of what a result means: a change here makes old and new results incomparable.
    test = sources.load_digits().test
    assert test.labels[:20].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 3, 6, 5, 9, 2, 1, 7, 8, 4]
    digest = hashlib.sha256(test.images.numpy().tobytes()).hexdigest()
    assert digest == "db9a64f574beb0e6cc60bee352739c42919eb03c00256cb146027f351050a3b0"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("cifar100", {"size": 32, "num_classes": 100, "label_column": "fine_label"}),
        ("stl10", {"size": 96, "image_column": "image"}),
        ("mnist", {"size": 28, "channels": 1, "image_column": "image", "num_files": 3}),
        ("imagenet", {"size": 256, "image_column": "image", "num_classes": 1000, "test_part": "validation"}),
    ],
)
@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
def test_parquet_files(tmp_path, name, columns, in_memory_bytes, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    written = made_up.write_parquet(tmp_path / name / "data", num_train=12, num_test=10, **columns)
    data, known = sources.load_data(name, root=tmp_path), KNOWN[name]
    assert data.image_shape == (known.channels, known.image_size, known.image_size)
    assert data.class_names == tuple(f"class {label}" for label in range(known.num_classes))
    assert isinstance(data.train.images, torch.Tensor) == (in_memory_bytes > 0)
    stacked = torch.stack([data.train.images[index] for index in range(12)])
    assert torch.equal(stacked, torch.from_numpy(written.train_images.transpose(0, 3, 1, 2)))
    assert torch.equal(data.test.labels, torch.from_numpy(written.test_labels))


def load(folder, image_size=6):
    return sources.load_parquet(folder, name="made up", channels=3, image_size=image_size, test_part="test")


def write_rows(path, images, labels):
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=2)})
    datasets.Dataset.from_dict({"img": images, "label": labels}, features=features).to_parquet(str(path))


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
def test_files_that_change_are_read_again(tmp_path, in_memory_bytes, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    for size in (6, 7):
        written = made_up.write_parquet(tmp_path, num_train=8 + size, num_test=6, size=size, num_classes=2)
        data = load(tmp_path, image_size=size)
        assert torch.equal(data.train.images[0], torch.from_numpy(written.train_images[0].transpose(2, 0, 1)))
    if in_memory_bytes:
        monkeypatch.setattr(pictures, "decode", lambda *arguments, **options: pytest.fail("decoded again"))
        assert same(load(tmp_path, image_size=7), written)


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
@pytest.mark.parametrize("bad", [{"bytes": b"no image", "path": None}, None])
def test_an_unreadable_row_is_named(tmp_path, in_memory_bytes, bad, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    made_up.write_parquet(tmp_path, num_train=4, num_test=4, size=4, num_classes=2)
    good = {"bytes": made_up.encode(np.zeros((4, 4, 3), dtype=np.uint8)), "path": None}
    write_rows(tmp_path / "train-00000-of-00001.parquet", [good, good, bad, good], [0, 1, 0, 1])
    with pytest.raises(ValueError, match=f"every image must be readable; row 2 in {tmp_path} is not"):
        list(batches(load(tmp_path).train, [[0, 1, 2, 3]], device="cpu"))
    write_rows(tmp_path / "train-00000-of-00001.parquet", [good, good], [0, None])
    with pytest.raises(ValueError, match="labels must be integers; the column label of"):
        load(tmp_path)


def test_columns_without_the_hub_s_notes(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    written = made_up.write_parquet(tmp_path, num_train=6, num_test=3, size=6, num_classes=3)
    for path in tmp_path.glob("*.parquet"):
        parquet.write_table(parquet.read_table(path).replace_schema_metadata(None), path)
    data = load(tmp_path)
    assert same(data, written)
    assert data.class_names == ("0", "1", "2")
    path = tmp_path / "train-00000-of-00001.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns(["label"]), path)
    with pytest.raises(ValueError, match=r"column of labels \(fine_label, label, labels\); it has img"):
        load(tmp_path)


@pytest.mark.parametrize("damage", [lambda contents: contents[:-20], lambda contents: b"", lambda contents: b"no parquet" * 9])
def test_damaged_files_are_named(tmp_path, damage):
    made_up.write_parquet(tmp_path, num_train=6, num_test=3, size=4, num_classes=3)
    path = tmp_path / "train-00000-of-00001.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{tmp_path} must hold readable parquet files; reading train failed"):
        load(tmp_path)


def test_names_of_parquet_files(tmp_path):
    places = ["whole/a/train-00000-of-00002-abc.parquet", "whole/a/train-00001-of-00002-abc.parquet"]
    places += ["cut/train-00000-of-00003.parquet", "cut/train-00002-of-00003.parquet"]
    places += ["doubled/a/train-00000-of-00001.parquet", "doubled/b/train-00000-of-00001.parquet"]
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    assert sources.find_parquet(tmp_path / "whole", "train") == [tmp_path / place for place in places[:2]]
    for folder, words in (("cut", "2 of 3"), ("doubled", "2 of 1"), ("no", "0 of them")):
        with pytest.raises(ValueError, match=f"every parquet file of train once, .*; it has {words}"):
            sources.find_parquet(tmp_path / folder, "train")
