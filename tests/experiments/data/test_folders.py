import pytest
import torch

from guided_collapse.experiments.data import pictures
from guided_collapse.experiments.data.batches import batches
from guided_collapse.experiments.data.folders import load_folder
from guided_collapse.experiments.data.pictures import decode
from tests.experiments.data.made_up import write_folders
from tests.experiments.data.test_batches import same_batches


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("Train", "Test"), ("training", "testing"), ("TRAIN", "Valid"), ("Training", "val")]
)
def test_train_and_test_folders(tmp_path, train, test):
    write_folders(tmp_path / "mine", num_per_class=4, parts=(train, test))
    data = load_folder(tmp_path / "mine")
    assert data.name == "mine"
    assert data.class_names == ("cat", "dog", "eel")
    assert data.image_shape == (3, 16, 16)
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for split, part in ((data.train, train), (data.test, test)):
        for number, class_name in ((0, "cat"), (5, "dog"), (11, "eel")):
            path = tmp_path / "mine" / part / class_name / f"{number:04d}.png"
            assert torch.equal(split.images[number], decode(str(path), (3, 16, 16), name="it"))


def test_a_test_folder_without_classes_and_folders_without_images_are_passed_over(tmp_path):
    # ImageNet as people have it: val has class folders, test has images without labels.
    write_folders(tmp_path, num_per_class=3, parts=("train", "val"))
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "boxes.txt").write_text("none")
    (tmp_path / "test").mkdir()
    (tmp_path / "val" / "cat" / "0000.png").rename(tmp_path / "test" / "0000.png")
    assert len(load_folder(tmp_path).test) == 8


@pytest.mark.parametrize("parts", [("",), ("train",), ("Training",)])
def test_a_fraction_of_every_class_is_held_out(tmp_path, parts):
    write_folders(tmp_path, num_per_class=10, parts=parts)
    data = load_folder(tmp_path, test_fraction=0.3)
    assert data.train.labels.bincount().tolist() == [7] * 3
    assert data.test.labels.bincount().tolist() == [3] * 3
    everything = torch.cat([data.train.images, data.test.images]).flatten(1).tolist()
    assert len({tuple(image) for image in everything}) == 30
    assert torch.equal(data.test.images, load_folder(tmp_path, test_fraction=0.3).test.images)


@pytest.mark.parametrize(
    ("parts", "classes_beside", "named"),
    [
        (("Val", "testing"), (), "Val, testing"),
        (("test",), ("cat", "dog"), "test, cat, dog"),
        (("train", "test"), ("dog",), "test, train, dog"),
        (("train", "Training", "test"), (), "Training, test, train"),
    ],
)
def test_splits_that_are_incomplete_doubled_or_mixed_with_classes_are_refused(tmp_path, parts, classes_beside, named):
    write_folders(tmp_path, num_per_class=3, parts=parts)
    for name in classes_beside:
        write_folders(tmp_path, num_per_class=3, parts=("",), classes=(name,))
    with pytest.raises(ValueError, match=f"in one train and at most one test and one validation folder; .* has {named}. If some"):
        load_folder(tmp_path)


def test_other_files_and_what_is_hidden_are_skipped(tmp_path):
    write_folders(tmp_path, num_per_class=4, parts=("",))
    (tmp_path / "cat" / "notes.txt").write_text("none")
    (tmp_path / "readme.md").write_text("none")
    write_folders(tmp_path / ".hidden", num_per_class=1, parts=("",))
    write_folders(tmp_path / "cat", num_per_class=3, parts=("",), classes=(".ipynb_checkpoints",))
    (tmp_path / "cat" / "._0000.png").write_bytes(b"what a Mac leaves behind")
    (tmp_path / "dog" / "0004.png").rename(tmp_path / "dog" / "UPPER.PNG")
    assert load_folder(tmp_path).class_names == ("cat", "dog", "eel")
    assert len(load_folder(tmp_path).train) + len(load_folder(tmp_path).test) == 12


def test_links_are_followed(tmp_path):
    write_folders(tmp_path / "elsewhere", num_per_class=3, parts=("",), classes=("cat", "dog", "eel"))
    write_folders(tmp_path / "mine", num_per_class=3, parts=("",), classes=("ape",))
    for name in ("cat", "dog"):
        (tmp_path / "mine" / name).symlink_to(tmp_path / "elsewhere" / name)
    (tmp_path / "mine" / "eel").mkdir()
    for name in ("0006.png", "0007.png"):
        (tmp_path / "mine" / "eel" / name).symlink_to(tmp_path / "elsewhere" / "eel" / name)
    (tmp_path / "mine" / "ape" / "more").symlink_to(tmp_path / "elsewhere" / "eel")
    (tmp_path / "elsewhere" / "eel" / "loop").symlink_to(tmp_path / "mine" / "ape")
    data = load_folder(tmp_path / "mine")
    assert data.class_names == ("ape", "cat", "dog", "eel")
    assert (data.train.labels.bincount() + data.test.labels.bincount()).tolist() == [6, 3, 3, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_streaming_equals_memory(tmp_path, num_workers, monkeypatch):
    write_folders(tmp_path, num_per_class=6, suffix=".jpg")
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", 18 * 3 * 12 * 12)
    kept = load_folder(tmp_path, image_size=12)
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", 18 * 3 * 12 * 12 - 1)
    streamed = load_folder(tmp_path, image_size=12)
    assert isinstance(kept.train.images, torch.Tensor)
    assert not isinstance(streamed.train.images, torch.Tensor)
    assert streamed.image_shape == kept.image_shape == (3, 12, 12)
    assert torch.equal(streamed.train.labels, kept.train.labels)
    assert same_batches(kept.train, streamed.train, num_workers=num_workers)


def test_images_of_several_sizes_become_one(tmp_path):
    write_folders(tmp_path, num_per_class=2, size=16)
    write_folders(tmp_path, num_per_class=1, size=24, parts=("train",))  # the first image of every class is another one now
    assert load_folder(tmp_path).image_shape == (3, 16, 16)
    assert load_folder(tmp_path, image_size=9).image_shape == (3, 9, 9)


@pytest.mark.parametrize("in_memory_bytes", [10**9, 0])
def test_an_unreadable_image_is_named(tmp_path, in_memory_bytes, monkeypatch):
    monkeypatch.setattr(pictures, "IN_MEMORY_BYTES", in_memory_bytes)
    write_folders(tmp_path, num_per_class=3)
    bad = tmp_path / "train" / "dog" / "0004.png"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{bad} is not"):
        list(batches(load_folder(tmp_path).train, [list(range(9))], device="cpu"))


def test_folders_that_will_not_do(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        load_folder(tmp_path / "missing")
    with pytest.raises(ValueError, match="has none"):
        load_folder(tmp_path)
    write_folders(tmp_path, num_per_class=3, classes=("cat",), parts=("",))
    with pytest.raises(ValueError, match=r"at least two classes; .* has only cat"):
        load_folder(tmp_path)
    write_folders(tmp_path, num_per_class=1, classes=("dog",), parts=("",))
    with pytest.raises(ValueError, match=r"has no test folder, and holding images out failed: .*the rarest with 1"):
        load_folder(tmp_path)
    write_folders(tmp_path / "parts", num_per_class=2, parts=("train",))
    write_folders(tmp_path / "parts", num_per_class=2, parts=("test",), classes=("cat", "yak"))
    with pytest.raises(ValueError, match="got yak, not among cat, dog, eel"):
        load_folder(tmp_path / "parts")
    (tmp_path / "parts" / "train" / "yak").mkdir()
    with pytest.raises(ValueError, match=r"every class folder must have images \(.*\); .* has none in yak\. Remove them"):
        load_folder(tmp_path / "parts")
    (tmp_path / "bare" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"at least two classes; {tmp_path / 'bare' / 'train'} has none"):
        load_folder(tmp_path / "bare")
