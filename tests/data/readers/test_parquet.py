import datasets
import numpy as np
import pytest
import torch

from guided_collapse.data.batches import batches
from guided_collapse.data.readers import parquet
from guided_collapse.data.readers.parquet import load_parquet
from tests.data.made_up import encode, write_parquet
from tests.data.readers.test_cifar_package import same


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def write_rows(path, images, labels, num_classes=2):
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=num_classes)})
    datasets.Dataset.from_dict({"img": images, "label": labels}, features=features).to_parquet(str(path))


def read_all(folder, in_memory_bytes):
    data = load_parquet(folder, name="made up", image_size=16, in_memory_bytes=in_memory_bytes)
    return list(batches(data.train, [list(range(len(data.train)))], device="cpu"))


def picture(side=4):
    return {"bytes": encode(np.random.default_rng(0).integers(0, 256, (side, side, 3)).astype(np.uint8)), "path": None}


@pytest.mark.parametrize(("in_memory_bytes", "num_files"), [(10**9, 1), (10**9, 3), (0, 1), (0, 3)])
def test_rows_become_images(tmp_path, in_memory_bytes, num_files):
    written = write_parquet(tmp_path, num_train=20, num_test=9, size=6, num_classes=4, num_files=num_files)
    data = load_parquet(tmp_path, name="made up", in_memory_bytes=in_memory_bytes)
    assert data.train.in_memory is data.test.in_memory is (in_memory_bytes > 0)
    assert data.class_names == ("class 0", "class 1", "class 2", "class 3")
    assert data.image_shape == (3, 6, 6)
    assert torch.equal(data.train.labels, torch.from_numpy(written.train_labels))
    stacked = torch.stack([data.train.images[index] for index in range(20)])
    assert torch.equal(stacked, torch.from_numpy(written.train_images.transpose(0, 3, 1, 2)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_streaming_equals_memory(tmp_path, num_workers):
    write_parquet(tmp_path, num_train=20, num_test=9, size=6, num_classes=4, num_files=2)
    kept = load_parquet(tmp_path, name="made up", image_size=5)
    streamed = load_parquet(tmp_path, name="made up", image_size=5, in_memory_bytes=0)
    order = [[5, 0, 17], [3], [16, 2]]
    for expected, found in zip(
        batches(kept.train, order, device="cpu"),
        batches(streamed.train, order, device="cpu", num_workers=num_workers),
        strict=True,
    ):
        assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
def test_files_that_change_are_read_again(tmp_path, in_memory_bytes):
    for size in (6, 7):
        written = write_parquet(tmp_path, num_train=8 + size, num_test=6, size=size, num_classes=2)
        data = load_parquet(tmp_path, name="made up", in_memory_bytes=in_memory_bytes)
        assert data.image_shape == (3, size, size)
        assert torch.equal(data.train.images[0], torch.from_numpy(written.train_images[0].transpose(2, 0, 1)))


def test_decoded_images_are_kept(tmp_path, monkeypatch):
    written = write_parquet(tmp_path, num_train=8, num_test=6, size=6, num_classes=2)
    load_parquet(tmp_path, name="made up")
    assert load_parquet(tmp_path, name="made up", image_size=3).image_shape == (3, 3, 3)
    load_parquet(tmp_path, name="made up")
    monkeypatch.setattr(parquet, "_parquet_rows", lambda *arguments: pytest.fail("decoded again"))
    assert same(load_parquet(tmp_path, name="made up"), written)


def test_grey_images_and_the_validation_part(tmp_path):
    write_parquet(tmp_path, num_train=8, num_test=6, size=5, channels=1, num_classes=2, test_part="validation")
    (tmp_path / "test-00000-of-00001.parquet").write_bytes(b"labels of the test part are secret; it is not even opened")
    data = load_parquet(tmp_path, name="made up", channels=1, test_part="validation")
    assert data.image_shape == (1, 5, 5)
    assert len(data.test) == 6


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
@pytest.mark.parametrize(
    ("bad", "message"),
    [({"bytes": b"no image", "path": None}, "row 2 of .* is not"), (None, "every row must hold the bytes of an image; row 2")],
)
def test_an_unreadable_image_is_named(tmp_path, in_memory_bytes, bad, message):
    write_parquet(tmp_path, num_train=4, num_test=4, size=4, num_classes=2)
    write_rows(tmp_path / "train-00000-of-00001.parquet", [picture(), picture(), bad, picture()], [0, 1, 0, 1])
    with pytest.raises(ValueError, match=message):
        read_all(tmp_path, in_memory_bytes)


def test_labels_that_will_not_do(tmp_path):
    write_parquet(tmp_path, num_train=4, num_test=4, size=4, num_classes=2)
    train = tmp_path / "train-00000-of-00001.parquet"
    write_rows(train, [picture()] * 2, [-1, -1])
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        load_parquet(tmp_path, name="made up")
    write_rows(train, [picture()] * 2, [0, None])
    with pytest.raises(ValueError, match="labels must be integers; the column label of"):
        load_parquet(tmp_path, name="made up")


def test_parts_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(ValueError, match="it lacks train and test"):
        load_parquet(tmp_path, name="made up")
    write_parquet(tmp_path, num_train=5, num_test=4, size=16, num_classes=2)
    path = tmp_path / "train-00000-of-00001.parquet"
    contents = bytearray(path.read_bytes())
    contents[4:60] = b"\xff" * 56  # the header of the first page
    path.write_bytes(contents)
    for in_memory_bytes in (10**9, 0):
        with pytest.raises(ValueError, match=f"{tmp_path}.* must .*readable parquet file.*; reading"):
            read_all(tmp_path, in_memory_bytes)
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(ValueError, match="it lacks test"):
        load_parquet(tmp_path, name="made up")
