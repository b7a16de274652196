import io
import stat
import tarfile
import zipfile

import numpy as np
import pytest

from guided_collapse.experiments.data.readers import archives
from guided_collapse.experiments.data.readers.archives import read_members
from tests.experiments.data.made_up import write_tarball, write_zip

MEMBERS = {"top/a.png": b"first", "top/b.txt": b"second", "top/deep/c.png": b"third"}


def is_png(name):
    return name.endswith(".png")


@pytest.mark.parametrize("write", [write_zip, write_tarball])
def test_files_that_are_wanted_are_read(tmp_path, write):
    write(tmp_path / "archive", MEMBERS)
    assert read_members(tmp_path / "archive", is_png) == {"top/a.png": b"first", "top/deep/c.png": b"third"}


@pytest.mark.parametrize("write", [write_zip, write_tarball])
@pytest.mark.parametrize("name", ["/a.png", "../a.png", "top/../../a.png", "top\\a.png", "C:/a.png"])
def test_names_that_lead_outside_are_refused(tmp_path, write, name):
    write(tmp_path / "archive", {name: b"x"})
    with pytest.raises(ValueError, match="must stay inside it; got"):
        read_members(tmp_path / "archive", is_png)
    assert read_members(tmp_path / "archive", lambda name: False) == {}


def with_link_in_tar(path):
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("top/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)


def with_hard_link_in_tar(path):
    with tarfile.open(path, "w:gz") as archive:
        file = tarfile.TarInfo("top/a.txt")
        file.size = 1
        archive.addfile(file, io.BytesIO(b"x"))
        link = tarfile.TarInfo("top/link.png")
        link.type, link.linkname = tarfile.LNKTYPE, "top/a.txt"
        archive.addfile(link)


def with_link_in_zip(path):
    link = zipfile.ZipInfo("top/link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")


@pytest.mark.parametrize("write", [with_link_in_tar, with_hard_link_in_tar, with_link_in_zip])
def test_links_are_refused(tmp_path, write):
    write(tmp_path / "archive")
    with pytest.raises(ValueError, match=r"top/link\.png must be a regular file"):
        read_members(tmp_path / "archive", is_png)


@pytest.mark.parametrize("write", [write_zip, write_tarball])
def test_sizes_are_bounded(tmp_path, write, monkeypatch):
    write(tmp_path / "archive", {"a.png": bytes(600), "b.png": bytes(600)})
    monkeypatch.setattr(archives, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1,000 bytes together"):
        read_members(tmp_path / "archive", is_png)
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 599)
    with pytest.raises(ValueError, match=r"a\.png has 600 bytes, more than 599"):
        read_members(tmp_path / "archive", is_png)


@pytest.mark.parametrize("write", [write_zip, write_tarball])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_damaged_archives_are_named(tmp_path, write, share):
    path = tmp_path / "archive"
    noise = np.random.default_rng(0).bytes(3000)
    write(path, dict.fromkeys(MEMBERS, noise))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=f"{path} must be a zip or tar archive; reading it failed"):
        read_members(path, is_png)


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(ValueError, match="missing must be the thing; reading it failed"):
        read_members(tmp_path / "missing", is_png, what="the thing")
