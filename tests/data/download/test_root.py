from pathlib import Path

from guided_collapse.data.download.root import data_folder, data_root


def test_the_environment_decides(monkeypatch, tmp_path):
    monkeypatch.setenv("GUIDED_COLLAPSE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_folder("digits", None) == tmp_path / "digits"
    assert data_folder("digits", Path("elsewhere")) == Path("elsewhere/digits")


def test_the_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("GUIDED_COLLAPSE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "guided-collapse"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "guided-collapse"
