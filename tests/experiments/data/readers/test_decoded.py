import errno
import os
import sys

import numpy as np
import pytest

from guided_collapse.experiments.data.readers.decoded import decoded


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(b"contents")
    return path


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"images": np.arange(1000) + self.calls}


def test_arrays_are_built_once(tmp_path, source):
    build, cache = Builder(), tmp_path / "cache.npz"
    for _ in range(3):
        assert decoded(cache, [source], build)["images"][0] == 1
    assert build.calls == 1
    assert sorted(decoded(cache, [source], build)) == ["images"]


def test_another_source_or_variant_is_built_again(tmp_path, source):
    build, cache = Builder(), tmp_path / "cache.npz"
    decoded(cache, [source], build)
    os.utime(source, ns=(1, 1))
    assert decoded(cache, [source], build)["images"][0] == 2
    source.write_bytes(b"longer contents")
    os.utime(source, ns=(1, 1))
    assert decoded(cache, [source], build)["images"][0] == 3
    assert decoded(cache, [source], build, variant="other")["images"][0] == 4


@pytest.mark.parametrize("place", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_file_is_built_again(tmp_path, source, place, cut):
    build, cache = Builder(), tmp_path / "cache.npz"
    decoded(cache, [source], build)
    contents = bytearray(cache.read_bytes())
    position = int(place * len(contents))
    contents[position] ^= 0xFF
    cache.write_bytes(contents[:position] if cut else contents)
    found = decoded(cache, [source], build)["images"]
    # Either the damage was where nothing is read, or everything was built again; never a wrong number.
    assert np.array_equal(found, np.arange(1000) + build.calls)
    if cut or place == 0.5:
        assert build.calls == 2


def test_a_pickle_is_never_loaded(tmp_path, source):
    build, cache = Builder(), tmp_path / "cache.npz"
    decoded(cache, [source], build)
    with np.load(cache) as archive:
        stamp = archive["stamp"]
    np.savez(cache, images=np.array([{"a": 1}], dtype=object), stamp=stamp)
    assert decoded(cache, [source], build)["images"][0] == 2


def test_a_full_disk_costs_only_time(tmp_path, source, monkeypatch):
    def full(file, *arguments, **keywords):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    build = Builder()
    assert decoded(tmp_path / "cache.npz", [source], build)["images"][0] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_a_folder_that_cannot_be_written_to_costs_only_time(tmp_path, source):
    assert decoded(tmp_path / "missing" / "cache.npz", [source], Builder())["images"][0] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="it has no pipes with names")
def test_a_pipe_in_its_place_is_not_waited_for(tmp_path, source):
    os.mkfifo(tmp_path / "cache.npz")
    build = Builder()
    for _ in range(2):
        assert decoded(tmp_path / "cache.npz", [source], build)["images"][0] == 1
    assert build.calls == 1
