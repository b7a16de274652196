import gzip
import hashlib
import io
import os

import numpy as np
import pytest
import torch

from guided_collapse.experiments.data import archives
from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.data.pictures import decode
from tests.experiments.data import made_up


def load(path, name):
    return archives.load_archive(path, name=name, known=KNOWN[name], archive=path.name)


def same(data, written):
    """Whether the data are those that a writer of made-up data returned."""
    return all(
        torch.equal(split.images, torch.from_numpy(images.transpose(0, 3, 1, 2)))
        and torch.equal(split.labels, torch.from_numpy(labels))
        for split, images, labels in (
            (data.train, written.train_images, written.train_labels),
            (data.test, written.test_images, written.test_labels),
        )
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files(tmp_path, compressed):
    written = made_up.write_idx(tmp_path, num_train=30, num_test=20, size=5, compressed=compressed)
    data = archives.load_idx(tmp_path, name="made up", known=KNOWN["digits"])
    assert same(data, written)
    assert data.location == tmp_path


def test_idx_files_that_do_not_fit_together(tmp_path):
    made_up.write_idx(tmp_path, num_train=30, num_test=20, size=4)
    labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    for values, message in (
        (np.zeros(19), "each with a label; got 20 samples and 19"),
        (np.full(20, 10), "less than its number of classes, 10; got 10"),
    ):
        labels.write_bytes(gzip.compress(made_up.idx_bytes(values, 0x801)))
        with pytest.raises(ValueError, match=message):
            archives.load_idx(tmp_path, name="made up", known=KNOWN["digits"])
    labels.unlink()
    with pytest.raises(ValueError, match=r"must hold all four IDX files, .*; it lacks t10k-labels-idx1-ubyte"):
        archives.load_idx(tmp_path, name="made up", known=KNOWN["digits"])


def test_the_checksum_of_idx_files_does_not_depend_on_compression(tmp_path):
    contents = b"something" * 100
    files = {"plain": contents, "a-ubyte.gz": gzip.compress(contents, 1), "b-ubyte.gz": gzip.compress(contents, 9)}
    for name, written in files.items():
        (tmp_path / name).write_bytes(written)
        archives.compare_checksum("it", tmp_path / name, hashlib.sha256(contents).hexdigest())
        archives.compare_checksum("it", tmp_path / name, hashlib.md5(contents).hexdigest())
        with pytest.raises(ValueError, match=f"{name} must have the sha256 0000.*; it has .*run: guided-collapse data it"):
            archives.compare_checksum("it", tmp_path / name, "0" * 64)


@pytest.mark.parametrize("write", [made_up.write_zip, made_up.write_tarball])
def test_wanted_members_are_read_and_damaged_archives_named(tmp_path, write):
    path, noise = tmp_path / "archive", np.random.default_rng(0).bytes(3000)
    write(path, {"top/a.png": noise, "top/b.txt": b"second", "top/deep/c.png": b"third"})
    assert archives.read_members(path, lambda name: name.endswith(".png")) == {"top/a.png": noise, "top/deep/c.png": b"third"}
    whole = path.read_bytes()
    for share in (0.0, 0.3, 0.8):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=f"{path} must be a zip or tar archive; reading it failed"):
            archives.read_members(path, lambda name: True)


def test_cifar_binary_files(tmp_path):
    hundred = made_up.write_cifar100_binary(tmp_path / "100.tar.gz", 120, 30)
    data = load(tmp_path / "100.tar.gz", "cifar100")
    assert same(data, hundred)
    assert (data.num_classes, data.class_names[7]) == (100, "class_7")
    ten = made_up.write_cifar10_binary(tmp_path / "10.tar.gz", 12)
    data = load(tmp_path / "10.tar.gz", "cifar10")
    assert same(data, ten)
    assert (len(data.train), len(data.test), data.class_names[6]) == (60, 12, "frog")


def test_tiny_imagenet_with_its_validation_part_for_test(tmp_path):
    members = made_up.tiny_imagenet_members(3, 5)
    made_up.write_zip(tmp_path / "tiny.zip", members)
    data = load(tmp_path / "tiny.zip", "tiny-imagenet")
    assert data.class_names == ("n01", "n02")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [1, 0, 1, 0, 1]  # n02 comes first in the annotations
    for image, member in ((data.train.images[0], "train/n01/images/n01_0"), (data.test.images[4], "val/images/val_4")):
        assert torch.equal(image, decode(members[f"tiny-imagenet-200/{member}.JPEG"], (3, 64, 64), name="it"))
    assert data.location == tmp_path / "tiny.zip"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train/n01/images/n01_0.JPEG": b"%!PS-Adobe-3.0"}, r"n01_0\.JPEG in .* is not: it is none of PNG"),
        ({f"train/n02/images/n02_{number}.JPEG": None for number in range(3)}, "the same classes; it lacks some of test"),
    ],
)
def test_damaged_members_are_named(tmp_path, changes, message):
    members = made_up.tiny_imagenet_members(3, 5) | {f"tiny-imagenet-200/{name}": contents for name, contents in changes.items()}
    made_up.write_zip(tmp_path / "tiny.zip", {name: contents for name, contents in members.items() if contents is not None})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "tiny.zip", "tiny-imagenet")


def test_the_list_names_files_of_the_published_training_part():
    known, listed = KNOWN["tiny-imagenet-100"], archives.listed_samples()
    assert [sum(sample.part == part for sample in listed) for part in ("train", "test")] == [known.num_train, known.num_test]
    assert len({sample.member for sample in listed}) == len(listed)
    assert len({sample.class_name for sample in listed}) == known.num_classes
    assert listed[0] == archives.Sample("train", "n03255030", "n03255030_0.JPEG")
    assert listed[-1] == archives.Sample("test", "n12267677", "n12267677_349.JPEG")


def test_the_listed_part_is_the_same_from_the_public_archive_and_from_one_of_its_own(tmp_path, monkeypatch):
    numbers = [(name, number) for name in ("n01", "n02") for number in (0, 1, 3)]
    listed = [archives.Sample("train" if number < 2 else "test", name, f"{name}_{number}.JPEG") for name, number in numbers]
    monkeypatch.setattr(archives, "listed_samples", lambda: listed)
    members = made_up.tiny_imagenet_members(4, 2)
    made_up.write_zip(tmp_path / "public.zip", members)
    files = {name.rpartition("/")[2]: contents for name, contents in members.items()}
    own = {f"tiny-imagenet-100/{part}/{name}/{file}": files[file] for part, name, file in reversed(listed)}
    made_up.write_tarball(tmp_path / "own.tar.gz", own)
    public, mine = (load(tmp_path / file, "tiny-imagenet-100") for file in ("public.zip", "own.tar.gz"))
    assert public.class_names == mine.class_names == ("n01", "n02")
    for one, other in ((public.train, mine.train), (public.test, mine.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    assert (len(mine.train), len(mine.test)) == (4, 2)
    made_up.write_tarball(tmp_path / "own.tar.gz", dict(list(own.items())[1:]))
    with pytest.raises(ValueError, match=r"must hold the 6 files of the list; it lacks 1, such as n02_3\.JPEG"):
        load(tmp_path / "own.tar.gz", "tiny-imagenet-100")


def test_omniglot_holds_four_drawings_of_each_character_out(tmp_path):
    made_up.write_zip(tmp_path / "omniglot.zip", made_up.omniglot_members())
    data = load(tmp_path / "omniglot.zip", "omniglot-small1")
    assert data.class_names == ("Greek/character01", "Greek/character02", "Latin/character01")
    assert data.image_shape == (1, 105, 105)
    assert data.train.labels.bincount().tolist() == [16] * 3
    assert (data.test.images[:, 0, 0, 0] // 10).view(3, 4).tolist() == [[3, 8, 13, 18]] * 3
    made_up.write_zip(tmp_path / "omniglot.zip", {"readme.txt": b"nothing"})
    with pytest.raises(ValueError, match="training and test images of the same classes; it lacks some of train"):
        load(tmp_path / "omniglot.zip", "omniglot")


def test_decoded_images_are_kept_until_their_source_the_variant_or_the_cache_itself_changes(tmp_path):
    source, cache, built = tmp_path / "source", tmp_path / "cache.npz", []
    source.write_bytes(b"contents")

    def build():
        built.append(1)
        return {"images": np.arange(1000) + len(built)}

    def times_built(variant="first"):
        arrays = archives.decoded(cache, [source], build, variant=variant)
        assert np.array_equal(arrays["images"], np.arange(1000) + len(built))
        return len(built)

    assert [times_built() for _ in range(3)] == [1, 1, 1]
    os.utime(source, ns=(1, 1))
    assert [times_built(), times_built()] == [2, 2]
    assert [times_built("other"), times_built("other")] == [3, 3]
    contents = cache.read_bytes()
    with np.load(cache) as archive:
        stamp = archive["stamp"]
    pickled = io.BytesIO()
    np.savez(pickled, images=np.array([{"a": 1}], dtype=object), stamp=stamp)
    for damaged in (contents[:100], contents[:2000] + bytes(100) + contents[2100:], b"", pickled.getvalue()):
        before = times_built("other")
        cache.write_bytes(damaged)
        assert times_built("other") == before + 1
    cache.unlink()
    cache.mkdir()  # in the way
    assert [times_built(), times_built()] == [before + 2, before + 3]
