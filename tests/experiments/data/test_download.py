import hashlib
from dataclasses import replace

import datasets
import huggingface_hub
import pytest

from guided_collapse.experiments.data import sources
from guided_collapse.experiments.data.download import check_counts, download
from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.data.sources import MissingData, load_data
from tests.experiments.data import made_up

ZIP = "tiny-imagenet-200.zip"


@pytest.fixture(autouse=True)
def _no_system_data_and_no_hub(monkeypatch, tmp_path_factory):
    def fail(*arguments, **options):
        raise ConnectionError("no route\nto the hub")

    datasets.disable_progress_bars()
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path_factory.mktemp("system"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


@pytest.fixture
def known(monkeypatch):
    """Changes what is known of a data set, such as its size."""

    def change(name, **changes):
        monkeypatch.setitem(KNOWN, name, replace(KNOWN[name], **changes))

    return change


def test_counts_and_checksums_of_what_is_there_are_compared(tmp_path, known):
    made_up.write_idx(tmp_path / "mnist", num_train=20, num_test=10, compressed=False)
    checksums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (tmp_path / "mnist").iterdir()}
    known("mnist", num_train=20, num_test=10, checksums=checksums)
    assert "20 training and 10 test images of 1 x 28 x 28 in 10 classes\nchecked: counts and checksums\n" in download(
        "mnist", root=tmp_path
    )
    for wrong in ({"num_train": 21}, {"num_test": 9}, {"num_classes": 11}, {"channels": 3}, {"image_size": 29}):
        with pytest.raises(
            ValueError, match=r"mnist must have .*; .* has 20 training and 10 test .* in 10 classes, of shape \(1, 28, 28\)"
        ):
            check_counts(load_data("mnist", root=tmp_path), replace(KNOWN["mnist"], **wrong))
    without_a_class = load_data("mnist", root=tmp_path)
    without_a_class.train.labels.clamp_(max=8)
    with pytest.raises(ValueError, match="has 20 training and 10 test images in 9"):
        check_counts(without_a_class, KNOWN["mnist"])
    known("mnist", checksums={**checksums, "t10k-labels-idx1-ubyte": "0" * 64})
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte must have the sha256 0000"):
        download("mnist", root=tmp_path)


def test_parquet_files_come_from_the_hub(tmp_path, known, monkeypatch):
    calls = []

    def snapshot(*arguments, **options):
        calls.append((arguments, options))
        made_up.write_parquet(tmp_path / "stl10" / "data", num_train=20, num_test=10, size=96, image_column="image")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    known("stl10", num_train=20, num_test=10)
    for _ in range(2):
        assert "20 training" in (text := download("stl10", root=tmp_path))
    assert "no checksum is known" in text
    options = {"repo_type": "dataset", "local_dir": tmp_path / "stl10", "allow_patterns": ["*.parquet"]}
    assert calls == [(("tanganke/stl10",), options)]


def test_the_hub_is_out_of_reach_and_imagenet_never_downloaded(tmp_path, monkeypatch):
    with pytest.raises(MissingData, match=r"downloaded from the Hugging Face hub: no route to the hub\. Get it by hand: "):
        download("stl10", root=tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *arguments, **options: pytest.fail("a download"))
    with pytest.raises(MissingData, match=r"imagenet must be in .*hf download ILSVRC/imagenet-1k .*--local-dir"):
        download("imagenet", root=tmp_path)


@pytest.fixture
def published(tmp_path, known):
    """Publishes a small Tiny ImageNet at an address on this machine, in the place of the real one."""
    file = tmp_path / "public" / ZIP
    made_up.write_zip(file, made_up.tiny_imagenet_members(3, 5))

    real, right = file.as_uri(), hashlib.md5(file.read_bytes()).hexdigest()

    def publish(*, address=real, md5=right, num_train=6):
        counts = {"num_classes": 2, "num_train": num_train, "num_test": 5}
        known("tiny-imagenet", **counts, archives={ZIP: address}, checksums={ZIP: md5} if md5 else {})
        return file

    return publish


def test_an_archive_is_downloaded_and_checked(tmp_path, published):
    file = published()
    text = download("tiny-imagenet", root=tmp_path / "data")
    assert "6 training and 5 test images of 3 x 64 x 64 in 2 classes\nchecked: counts and checksums\n" in text
    assert (tmp_path / "data" / "tiny-imagenet" / ZIP).read_bytes() == file.read_bytes()
    file.unlink()
    assert "6 training" in download("tiny-imagenet", root=tmp_path / "data")  # it is there


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"md5": "0" * 32}, ValueError, "must have the md5 0000"),
        ({"md5": None, "num_train": 7}, ValueError, "must have 7 training"),
        ({"address": "file:///nowhere/tiny.zip"}, MissingData, "from file:///nowhere/tiny.zip: .*Get it by hand"),
    ],
)
def test_what_is_not_the_archive_is_thrown_away(tmp_path, published, changes, error, message):
    published(**changes)
    with pytest.raises(error, match=message):
        download("tiny-imagenet", root=tmp_path / "data")
    assert list((tmp_path / "data" / "tiny-imagenet").iterdir()) == []


def test_cifar_comes_from_its_authors_when_the_hub_is_out_of_reach(tmp_path, known):
    file = tmp_path / "cifar-100-binary.tar.gz"
    made_up.write_cifar100_binary(file, 200, 100)
    known("cifar100", num_train=200, num_test=100, archives={file.name: file.as_uri()}, checksums={})
    assert "200 training and 100 test images of 3 x 32 x 32 in 100 classes" in download("cifar100", root=tmp_path / "data")


def test_an_archive_that_is_there_already_is_taken(tmp_path, published, known):
    mine = published(address=None).rename(tmp_path / "mine.zip")
    text = download("tiny-imagenet", root=tmp_path / "data", archive=mine)
    assert str(tmp_path / "data" / "tiny-imagenet" / ZIP) in text
    assert len(load_data("tiny-imagenet", root=tmp_path / "data").train) == 6
    made_up.write_zip(mine, made_up.omniglot_members())
    known("omniglot-small2", num_classes=3, num_train=48, num_test=12)
    assert "48 training and 12 test images of 1 x 105 x 105" in download("omniglot-small2", root=tmp_path / "data", archive=mine)


@pytest.mark.parametrize("members", [made_up.tiny_imagenet_members(2, 5), {"no": b"pictures"}], ids=["too few", "no pictures"])
@pytest.mark.parametrize("md5", [None, "0" * 32])
def test_a_refused_archive_leaves_nothing_behind(tmp_path, published, members, md5):
    published(address=None, md5=md5)
    made_up.write_zip(tmp_path / "mine.zip", members)
    with pytest.raises(ValueError, match="must"):
        download("tiny-imagenet", root=tmp_path / "data", archive=tmp_path / "mine.zip")
    assert not (tmp_path / "data").exists()
    (tmp_path / "mine.txt").write_text("no archive")
    for name, words in (("tiny-imagenet", f"the archive of tiny-imagenet must be {ZIP}"), ("mnist", "mnist has no archive")):
        with pytest.raises(ValueError, match=f"{words}; got .*mine.txt"):
            download(name, root=tmp_path / "data", archive=tmp_path / "mine.txt")
