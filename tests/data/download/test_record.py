import hashlib

from guided_collapse.data.download.record import RECORD, record_download, recorded_checksums


def test_checksums_are_those_of_the_time_of_the_download(tmp_path):
    assert recorded_checksums(tmp_path) == {}
    contents = {"train.parquet": b"a", "deep/test.parquet": b"b", "other.txt": b"c"}
    for name, written in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(written)
    record_download(tmp_path, "owner/name", None)
    (tmp_path / "train.parquet").write_bytes(b"changed")
    expected = {tmp_path / name: hashlib.sha256(contents[name]).hexdigest() for name in ("deep/test.parquet", "train.parquet")}
    assert recorded_checksums(tmp_path) == expected
    (tmp_path / "train.parquet").unlink()
    assert list(recorded_checksums(tmp_path)) == [tmp_path / "deep/test.parquet"]
    assert RECORD in [path.name for path in tmp_path.iterdir()]
