from dataclasses import replace
from importlib import resources

import pytest
import torch

from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.data.readers import class_archives
from guided_collapse.experiments.data.readers.archives import Sample, load_archive
from guided_collapse.experiments.data.readers.class_archives import listed_samples
from guided_collapse.experiments.data.readers.pictures import decode
from tests.experiments.data.made_up import omniglot_members, tiny_imagenet_members, write_tarball, write_zip


def load(path, name):
    return load_archive(path, name=name, known=KNOWN[name], cache=path.parent / "kept" / "decoded.npz")


def test_tiny_imagenet_with_its_validation_part_for_test(tmp_path):
    members = tiny_imagenet_members(3, 5)
    write_zip(tmp_path / "tiny.zip", members)
    data = load(tmp_path / "tiny.zip", "tiny-imagenet")
    assert data.class_names == ("n01", "n02")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [1, 0, 1, 0, 1]  # n02 comes first in the annotations
    first = members["tiny-imagenet-200/train/n01/images/n01_0.JPEG"]
    assert torch.equal(data.train.images[0], decode(first, (3, 64, 64), name="it"))
    last = members["tiny-imagenet-200/val/images/val_4.JPEG"]
    assert torch.equal(data.test.images[4], decode(last, (3, 64, 64), name="it"))
    assert data.location == tmp_path / "tiny.zip"


def test_decoded_images_are_kept(tmp_path, monkeypatch):
    write_zip(tmp_path / "tiny.zip", tiny_imagenet_members(3, 5))
    first = load(tmp_path / "tiny.zip", "tiny-imagenet")
    monkeypatch.setattr(class_archives, "read_tiny_imagenet", lambda *arguments: pytest.fail("decoded again"))
    again = load(tmp_path / "tiny.zip", "tiny-imagenet")
    assert torch.equal(first.train.images, again.train.images)
    assert first.class_names == again.class_names


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("val/val_annotations.txt", None, r"must hold val_annotations\.txt"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn01\n", r"val_1\.JPEG in .* has none"),
        ("val/val_annotations.txt", b"\xff\x00\n\n", r"val_0\.JPEG in .* has none"),
        ("train/n01/images/n01_0.JPEG", b"%!PS-Adobe-3.0 EPSF-3.0\n", r"n01_0\.JPEG in .* is not: it is none of PNG"),
    ],
)
def test_damaged_members_are_named(tmp_path, name, contents, message):
    members = {**tiny_imagenet_members(3, 5), f"tiny-imagenet-200/{name}": contents}
    write_zip(tmp_path / "tiny.zip", {key: value for key, value in members.items() if value is not None})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "tiny.zip", "tiny-imagenet")


def test_a_class_for_test_alone_is_refused(tmp_path):
    members = tiny_imagenet_members(3, 5)
    write_zip(tmp_path / "tiny.zip", {name: contents for name, contents in members.items() if "train/n02" not in name})
    with pytest.raises(ValueError, match="images of the same classes; it lacks some of test"):
        load(tmp_path / "tiny.zip", "tiny-imagenet")


def test_the_list_names_files_of_the_published_training_part():
    known, listed = KNOWN["tiny-imagenet-100"], listed_samples()
    assert sum(sample.part == "train" for sample in listed) == known.num_train
    assert sum(sample.part == "test" for sample in listed) == known.num_test
    assert len({sample.member for sample in listed}) == len(listed)
    assert len({sample.class_name for sample in listed}) == known.num_classes
    assert listed[0] == Sample("train", "n03255030", "n03255030_0.JPEG")
    assert listed[-1] == Sample("test", "n12267677", "n12267677_349.JPEG")
    assert all(sample.member.startswith(f"{sample.class_name}_") for sample in listed)
    assert resources.files("guided_collapse.experiments.data").joinpath("tiny_imagenet_100.txt").is_file()


def test_the_listed_part_is_the_same_from_the_public_archive_and_from_one_of_its_own(tmp_path, monkeypatch):
    listed = [
        Sample("train" if number < 2 else "test", name, f"{name}_{number}.JPEG") for name in ("n01", "n02") for number in (0, 1, 3)
    ]
    monkeypatch.setattr(class_archives, "listed_samples", lambda: listed)
    members = tiny_imagenet_members(4, 2)
    write_zip(tmp_path / "public" / "tiny-imagenet-200.zip", members)
    files = {name.rpartition("/")[2]: contents for name, contents in members.items()}
    own = {f"tiny-imagenet-100/{part}/{name}/{file}": files[file] for part, name, file in reversed(listed)}
    write_tarball(tmp_path / "own" / "tiny-imagenet-100.tar.gz", own)
    public = load(tmp_path / "public" / "tiny-imagenet-200.zip", "tiny-imagenet-100")
    mine = load(tmp_path / "own" / "tiny-imagenet-100.tar.gz", "tiny-imagenet-100")
    assert public.class_names == mine.class_names == ("n01", "n02")
    for one, other in ((public.train, mine.train), (public.test, mine.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    assert (len(mine.train), len(mine.test)) == (4, 2)
    write_tarball(tmp_path / "own" / "tiny-imagenet-100.tar.gz", dict(list(own.items())[1:]))
    with pytest.raises(ValueError, match=r"must hold the 6 files of the list; it lacks 1, such as n02_3\.JPEG"):
        load(tmp_path / "own" / "tiny-imagenet-100.tar.gz", "tiny-imagenet-100")


def test_omniglot_holds_four_drawings_of_each_character_out(tmp_path):
    write_zip(tmp_path / "omniglot.zip", omniglot_members())
    data = load(tmp_path / "omniglot.zip", "omniglot-small1")
    assert data.class_names == ("Greek/character01", "Greek/character02", "Latin/character01")
    assert data.image_shape == (1, 105, 105)
    assert data.train.labels.bincount().tolist() == [16] * 3
    drawings = (data.test.images[:, 0, 0, 0] // 10).view(3, 4)
    assert drawings.tolist() == [[3, 8, 13, 18]] * 3


def test_archives_that_hold_something_else(tmp_path):
    write_zip(tmp_path / "omniglot.zip", {"readme.txt": b"nothing"})
    with pytest.raises(ValueError, match="must hold drawings as ALPHABET/CHARACTER/FILE; dividing them failed"):
        load(tmp_path / "omniglot.zip", "omniglot")
    write_zip(tmp_path / "omniglot.zip", omniglot_members(3))
    with pytest.raises(ValueError, match="dividing them failed"):
        load(tmp_path / "omniglot.zip", "omniglot")


def test_a_folder_that_cannot_be_written_to_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("in the way")
    write_zip(tmp_path / "omniglot.zip", omniglot_members())
    known = replace(KNOWN["omniglot"], image_size=20)
    data = load_archive(tmp_path / "omniglot.zip", name="omniglot", known=known, cache=tmp_path / "file" / "decoded.npz")
    assert data.image_shape == (1, 20, 20)
