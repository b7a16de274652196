import datasets
import numpy as np
import pytest
import torch

from guided_collapse.experiments.data.batches import batches
from guided_collapse.experiments.data.readers import parquet, pictures
from guided_collapse.experiments.data.readers.parquet import load_parquet
from tests.experiments.data.made_up import encode, write_parquet
from tests.experiments.data.readers.test_cifar_package import same
from tests.experiments.data.test_batches import same_batches


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def write_rows(path, images, labels, num_classes=2):
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=num_classes)})
    datasets.Dataset.from_dict({"img": images, "label": labels}, features=features).to_parquet(str(path))


def load(folder, image_size=6, **changes):
    return load_parquet(folder, **{"name": "made up", "channels": 3, "image_size": image_size, "test_part": "test", **changes})


def read_all(folder):
    data = load(folder, image_size=16)
    return list(batches(data.train, [list(range(len(data.train)))], device="cpu"))


def picture(side=4):
    return {"bytes": encode(np.random.default_rng(0).integers(0, 256, (side, side, 3)).astype(np.uint8)), "path": None}


@pytest.mark.parametrize(("in_memory_bytes", "num_files"), [(10**9, 1), (10**9, 3), (0, 1), (0, 3)])
def test_rows_become_images(tmp_path, in_memory_bytes, num_files, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    written = write_parquet(tmp_path, num_train=20, num_test=9, size=6, num_classes=4, num_files=num_files)
    data = load(tmp_path)
    assert {isinstance(split.images, torch.Tensor) for split in (data.train, data.test)} == {in_memory_bytes > 0}
    assert data.class_names == ("class 0", "class 1", "class 2", "class 3")
    assert data.image_shape == (3, 6, 6)
    assert torch.equal(data.train.labels, torch.from_numpy(written.train_labels))
    stacked = torch.stack([data.train.images[index] for index in range(20)])
    assert torch.equal(stacked, torch.from_numpy(written.train_images.transpose(0, 3, 1, 2)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_streaming_equals_memory(tmp_path, num_workers, monkeypatch):
    write_parquet(tmp_path, num_train=20, num_test=9, size=6, num_classes=4, num_files=2)
    kept = load(tmp_path, image_size=5)
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", 0)
    streamed = load(tmp_path, image_size=5)
    assert not isinstance(streamed.train.images, torch.Tensor)
    assert same_batches(kept.train, streamed.train, num_workers=num_workers)


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
def test_files_that_change_are_read_again(tmp_path, in_memory_bytes, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    for size in (6, 7):
        written = write_parquet(tmp_path, num_train=8 + size, num_test=6, size=size, num_classes=2)
        data = load(tmp_path, image_size=size)
        assert torch.equal(data.train.images[0], torch.from_numpy(written.train_images[0].transpose(2, 0, 1)))


def test_decoded_images_are_kept(tmp_path, monkeypatch):
    written = write_parquet(tmp_path, num_train=8, num_test=6, size=6, num_classes=2)
    load(tmp_path)
    assert load(tmp_path, image_size=3).image_shape == (3, 3, 3)
    load(tmp_path)
    monkeypatch.setattr(parquet, "_parquet_rows", lambda *arguments: pytest.fail("decoded again"))
    assert same(load(tmp_path), written)


def test_gray_images_and_the_validation_part(tmp_path):
    write_parquet(tmp_path, num_train=8, num_test=6, size=5, channels=1, num_classes=2, test_part="validation")
    (tmp_path / "test-00000-of-00001.parquet").write_bytes(b"labels of the test part are secret; it is not even opened")
    data = load(tmp_path, image_size=5, channels=1, test_part="validation")
    assert data.image_shape == (1, 5, 5)
    assert len(data.test) == 6


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
@pytest.mark.parametrize(
    ("bad", "message"),
    [({"bytes": b"no image", "path": None}, "row 2 of .* is not"), (None, "every row must hold the bytes of an image; row 2")],
)
def test_an_unreadable_image_is_named(tmp_path, in_memory_bytes, bad, message, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    write_parquet(tmp_path, num_train=4, num_test=4, size=4, num_classes=2)
    write_rows(tmp_path / "train-00000-of-00001.parquet", [picture(), picture(), bad, picture()], [0, 1, 0, 1])
    with pytest.raises(ValueError, match=message):
        read_all(tmp_path)


def test_labels_that_will_not_do(tmp_path):
    write_parquet(tmp_path, num_train=4, num_test=4, size=4, num_classes=2)
    train = tmp_path / "train-00000-of-00001.parquet"
    write_rows(train, [picture()] * 2, [-1, -1])
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        load(tmp_path)
    write_rows(train, [picture()] * 2, [0, None])
    with pytest.raises(ValueError, match="labels must be integers; the column label of"):
        load(tmp_path)


def test_parts_that_are_missing_or_damaged(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="it lacks train and test"):
        load(tmp_path)
    write_parquet(tmp_path, num_train=5, num_test=4, size=16, num_classes=2)
    path = tmp_path / "train-00000-of-00001.parquet"
    contents = bytearray(path.read_bytes())
    contents[4:60] = b"\xff" * 56  # the header of the first page
    path.write_bytes(contents)
    for in_memory_bytes in (10**9, 0):
        monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
        with pytest.raises(ValueError, match=f"{tmp_path}.* must .*readable parquet file.*; reading"):
            read_all(tmp_path)
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(ValueError, match="it lacks test"):
        load(tmp_path)
