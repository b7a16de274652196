import gzip
import os

import pytest

from guided_collapse.experiments.records import contents
from guided_collapse.experiments.records.contents import read_bytes, read_object, read_text
from guided_collapse.experiments.records.fields import RecordError


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"absent\.json cannot be read"):
        read_object(tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match=r"binary\.json cannot be read"):
        read_object(tmp_path / "binary.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(RecordError, match=r"list\.json cannot be used: it must be a JSON object; got list"):
        read_object(tmp_path / "list.json")


def test_no_file_is_nothing_and_a_compressed_one_is_its_text(tmp_path):
    assert read_bytes(tmp_path / "absent") is None
    assert read_text(tmp_path / "absent.gz") is None
    (tmp_path / "text.gz").write_bytes(gzip.compress("grün".encode()))
    assert read_text(tmp_path / "text.gz") == "grün"


def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MOST_BYTES", 1000)
    (tmp_path / "long").write_bytes(bytes(1001))
    with pytest.raises(RecordError, match="long cannot be read: it must hold at most"):
        read_bytes(tmp_path / "long")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(RecordError, match=r"bomb\.gz cannot be read: it must hold at most"):
        read_text(tmp_path / "bomb.gz")


def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "folder", "device", "loop"):
        with pytest.raises(RecordError, match=f"{name} cannot be read"):
            read_bytes(tmp_path / name)
