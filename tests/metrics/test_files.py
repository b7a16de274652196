import sys

import numpy as np
import pytest

from guided_collapse.metrics.files import read_arrays


def test_pickles_are_never_opened(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, features=np.array([{}], dtype=object), labels=np.zeros(1, dtype=int))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_arrays(path)


def test_without_safetensors_it_says_so(tmp_path, monkeypatch):
    path = tmp_path / "arrays.safetensors"
    path.touch()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ValueError, match=r"needs the package safetensors.* with its extra experiments"):
        read_arrays(path)


def test_other_arrays_are_passed_over(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, features=np.zeros((2, 3), np.float16), labels=np.arange(2, dtype=np.uint8), extra=np.ones(1))
    arrays = read_arrays(path)
    assert arrays.features.shape == (2, 3)
    assert arrays.weight is None
