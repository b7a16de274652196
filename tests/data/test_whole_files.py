import pytest

from guided_collapse.data.whole_files import written_whole


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    with written_whole(path) as file:
        file.write(b"first")
        assert not path.exists()
    assert path.read_bytes() == b"first"
    with pytest.raises(TypeError), written_whole(path) as file:
        file.writelines([b"half", 1])
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="No such file"), written_whole(tmp_path / "missing" / "file"):
        pass
