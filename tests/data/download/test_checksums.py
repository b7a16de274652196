import gzip
import hashlib

import pytest

from guided_collapse.data.download.checksums import sha256_of


def test_compression_does_not_count(tmp_path):
    contents = b"something" * 100
    for name, written in (("plain", contents), ("a.gz", gzip.compress(contents, 1)), ("b.gz", gzip.compress(contents, 9))):
        (tmp_path / name).write_bytes(written)
        assert sha256_of(tmp_path / name) == hashlib.sha256(contents).hexdigest()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="must be readable"):
        sha256_of(tmp_path / "missing")
