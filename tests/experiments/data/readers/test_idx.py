import gzip
import hashlib
import tracemalloc

import numpy as np
import pytest
import torch

from guided_collapse.experiments.data.checked import sha256_of
from guided_collapse.experiments.data.readers import idx
from guided_collapse.experiments.data.readers.idx import IMAGE_MAGIC, LABEL_MAGIC, has_idx, load_idx, read_idx
from tests.experiments.data.made_up import idx_bytes, write_idx

NAMES = tuple("0123456789")


def load(folder):
    return load_idx(folder, name="made up", class_names=NAMES)


@pytest.mark.parametrize("compressed", [False, True])
def test_four_files_make_a_data_set(tmp_path, compressed):
    assert not has_idx(tmp_path)
    written = write_idx(tmp_path, num_train=30, num_test=20, size=5, compressed=compressed)
    assert has_idx(tmp_path)
    data = load(tmp_path)
    assert data.image_shape == (1, 5, 5)
    assert data.location == tmp_path
    for split, images, labels in (
        (data.train, written.train_images, written.train_labels),
        (data.test, written.test_images, written.test_labels),
    ):
        assert torch.equal(split.images, torch.from_numpy(images.transpose(0, 3, 1, 2)))
        assert torch.equal(split.labels, torch.from_numpy(labels))


def test_images_need_not_be_square(tmp_path):
    array = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "file").write_bytes(idx_bytes(array, IMAGE_MAGIC))
    assert np.array_equal(read_idx(tmp_path / "file", IMAGE_MAGIC), array)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda contents: contents[:-1], "must have 29 bytes .*it has 28"),
        (lambda contents: contents + b"x", "must have 29 bytes .*it has 30"),
        (lambda contents: contents[:6], "must have"),
        (lambda contents: contents[:2], "magic number 0x00000801"),
        (lambda contents: b"", "magic number"),
        (lambda contents: idx_bytes(np.zeros((1, 2, 2)), IMAGE_MAGIC), "magic number 0x00000801; got 0x00000803"),
        (lambda contents: b"\x00\x00\x08\x01" + b"\xff" * 4, "must have 4294967303 bytes"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_files_are_named(tmp_path, damage, message, compressed):
    contents = damage(idx_bytes(np.arange(21), LABEL_MAGIC))
    path = tmp_path / ("labels.gz" if compressed else "labels")
    path.write_bytes(gzip.compress(contents) if compressed else contents)
    with pytest.raises(ValueError, match=f"{path}.*{message}"):
        read_idx(path, LABEL_MAGIC)


@pytest.mark.parametrize(
    "damage", [lambda contents: contents[:-9], lambda contents: b"no gzip", lambda contents: contents[:30] + b"\xff" * 40]
)
def test_damaged_compression_is_named(tmp_path, damage):
    path = tmp_path / "labels.gz"
    path.write_bytes(damage(gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 9, 500), LABEL_MAGIC))))
    with pytest.raises(ValueError, match=f"{path} must be readable"):
        read_idx(path, LABEL_MAGIC)


def test_files_that_do_not_fit_together(tmp_path):
    write_idx(tmp_path, num_train=30, num_test=20, size=4)
    labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(np.zeros(19), LABEL_MAGIC)))
    with pytest.raises(ValueError, match="one label for each image; it has 20 and 19 in test"):
        load(tmp_path)
    labels.write_bytes(gzip.compress(idx_bytes(np.full(20, 10), LABEL_MAGIC)))
    with pytest.raises(ValueError, match="below its 10 classes; got 10 among the test labels"):
        load(tmp_path)
    labels.unlink()
    with pytest.raises(ValueError, match="must hold t10k-labels-idx1-ubyte"):
        load(tmp_path)


def test_a_small_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "LARGEST_CONTENTS", 3 * 2**20)
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x08\x01" + bytes(64 * 2**20)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=f"{path} must be readable; reading it failed: it holds more than 3,145,728 bytes"):
        read_idx(path, LABEL_MAGIC)
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    assert sha256_of(path) == hashlib.sha256(b"\x00\x00\x08\x01" + bytes(64 * 2**20)).hexdigest()
