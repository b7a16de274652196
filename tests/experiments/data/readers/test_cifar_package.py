import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.data.readers import archives, cifar_package
from guided_collapse.experiments.data.readers.archives import load_archive
from tests.experiments.data.made_up import cifar10_members, encode, make_up, write_cifar10_package, write_tarball


def load_cifar10_package(path):
    return load_archive(path, name="cifar10", known=KNOWN["cifar10"], cache=path.parent / "decoded.npz")


def same(data, written):
    return all(
        torch.equal(split.images, torch.from_numpy(images.transpose(0, 3, 1, 2)))
        and torch.equal(split.labels, torch.from_numpy(labels))
        for split, images, labels in (
            (data.train, written.train_images, written.train_labels),
            (data.test, written.test_images, written.test_labels),
        )
    )


def test_strips_become_images(tmp_path):
    path = tmp_path / "package.tgz"
    written = write_cifar10_package(path, 12)
    data = load_cifar10_package(path)
    assert (len(data.train), len(data.test), data.image_shape) == (60, 12, (3, 32, 32))
    assert data.class_names[6] == "frog"
    assert data.location == path
    assert same(data, written)


def test_decoded_images_are_kept_until_the_package_changes(tmp_path, monkeypatch):
    path = tmp_path / "package.tgz"
    first = write_cifar10_package(path, 10)
    load_cifar10_package(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["decoded.npz", "package.tgz"]
    with monkeypatch.context() as patched:
        patched.setattr(cifar_package, "read_package", lambda *arguments: pytest.fail("decoded again"))
        assert same(load_cifar10_package(path), first)
    second = write_cifar10_package(path, 11)
    assert same(load_cifar10_package(path), second)


def damaged(tmp_path, **changes):
    """A package with some members replaced, or left out where the change is None."""
    members = cifar10_members(make_up(50, 10, size=32, channels=3, num_classes=10))
    members |= {f"package/{name}": contents for name, contents in changes.items()}
    path = tmp_path / "package.tgz"
    write_tarball(path, {name: contents for name, contents in members.items() if contents is not None})
    return path


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("data_batch_3.png", None, r"lacks package/data_batch_3\.png"),
        ("test_lables.json", None, r"lacks package/test_lables\.json"),
        ("data_batch_2.png", b"no image", r"package/data_batch_2\.png in .* is not"),
        ("test_batch.png", encode(np.zeros((10, 1023, 3), dtype=np.uint8)), "row of 1024 pixels; got 1023"),
        ("test_batch.png", encode(np.zeros((9, 1024, 3), dtype=np.uint8)), "one label for each image; it has 9 and 10 in test"),
        ("test_lables.json", b"[1, 2", "must be a JSON list of labels"),
        ("test_lables.json", b'{"a": 1}', "must be a JSON list of integers"),
        ("test_lables.json", b"[" * 100_000, "must be a JSON list of labels"),
        ("test_lables.json", b"[1.5]", "must be a JSON list of integers"),
        ("test_lables.json", b"[[1], [2, 3]]", "must be a JSON list"),
        ("test_lables.json", json.dumps([10] * 10).encode(), "below its 10 classes; got 10"),
    ],
)
def test_damaged_members_are_named(tmp_path, name, contents, message):
    with pytest.raises(ValueError, match=message):
        load_cifar10_package(damaged(tmp_path, **{name: contents}))


def test_a_truncated_strip_is_named(tmp_path):
    whole = encode(np.random.default_rng(0).integers(0, 256, (10, 1024, 3)).astype(np.uint8))
    with pytest.raises(ValueError, match=r"package/data_batch_1\.png in .* is not"):
        load_cifar10_package(damaged(tmp_path, **{"data_batch_1.png": whole[: len(whole) // 2]}))


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_truncated_tarball_is_named_and_nothing_is_kept(tmp_path, share):
    path = tmp_path / "package.tgz"
    write_cifar10_package(path, 10)
    contents = path.read_bytes()
    path.write_bytes(contents[: int(share * len(contents))])
    with pytest.raises(ValueError, match=f"{path} must be the tarball"):
        load_cifar10_package(path)
    assert [file.name for file in tmp_path.iterdir()] == ["package.tgz"]


def test_other_files_are_named(tmp_path):
    path = tmp_path / "package.tgz"
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match=f"{path} must be the tarball"):
        load_cifar10_package(path)


def test_huge_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 1000)
    with pytest.raises(ValueError, match="more than 1000"):
        load_cifar10_package(damaged(tmp_path))


def test_members_that_do_not_matter_are_not_even_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 300_000)
    assert len(load_cifar10_package(damaged(tmp_path, **{"huge": bytes(300_001)})).test) == 10


def test_members_elsewhere_are_never_written(tmp_path):
    inner = tmp_path / "inner"
    members = cifar10_members(make_up(50, 10, size=32, channels=3, num_classes=10))
    write_tarball(inner / "package.tgz", {"../evil": b"x", "/tmp/evil-absolute": b"x", **members})
    load_cifar10_package(inner / "package.tgz")
    assert [file.name for file in tmp_path.iterdir()] == ["inner"]
    assert sorted(file.name for file in inner.iterdir()) == ["decoded.npz", "package.tgz"]


def test_strips_with_an_alpha_channel(tmp_path):
    written = make_up(50, 10, size=32, channels=3, num_classes=10)
    buffer = io.BytesIO()
    Image.fromarray(written.test_images.reshape(-1, 1024, 3)).convert("RGBA").save(buffer, "PNG")
    assert same(load_cifar10_package(damaged(tmp_path, **{"test_batch.png": buffer.getvalue()})), written)
