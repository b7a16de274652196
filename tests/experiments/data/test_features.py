"""Files of features: what is read, what is held out, and what is refused."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from guided_collapse.experiments.data.features import as_file, feature_statistics, load_features
from guided_collapse.experiments.data.split import few_of_each, long_tailed

LABELS = np.arange(30) % 3
FEATURES = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)


def written(path, features=FEATURES, labels=LABELS, **others):
    np.savez(path, features=features, labels=labels, **others)
    return path


def test_samples_are_held_out_of_every_class_always_the_same_ones(tmp_path):
    data, again = (load_features(written(tmp_path / "digits.npz")) for _ in range(2))
    assert (data.name, data.class_names) == ("digits", ("0", "1", "2"))
    assert data.train.labels.bincount().tolist() == [8, 8, 8]
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    assert torch.equal(data.test.images, again.test.images)
    both = np.concatenate([data.train.images, data.test.images])
    assert np.array_equal(np.sort(both, axis=0), np.sort(FEATURES, axis=0))


def test_few_samples_still_leave_one_of_each_class_for_testing(tmp_path):
    data = load_features(written(tmp_path / "few.npz", FEATURES[:6], LABELS[:6]))
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 1, 2]


def test_test_features_come_from_the_same_file_or_from_another(tmp_path):
    one = written(tmp_path / "one.npz", FEATURES[:21], LABELS[:21], test_features=FEATURES[21:], test_labels=LABELS[21:])
    train, test = (written(tmp_path / f"{part}.npz", FEATURES[rows], LABELS[rows]) for part, rows in PARTS.items())
    for data in (load_features(one), load_features(train, test)):
        assert np.array_equal(data.train.images, FEATURES[:21])
        assert np.array_equal(data.test.images, FEATURES[21:])
        assert data.test.labels.tolist() == LABELS[21:].tolist()


PARTS = {"train": slice(0, 21), "test": slice(21, 30)}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_class_names_are_kept(suffix, tmp_path):
    file = tmp_path / f"named{suffix}"
    arrays = {"features": torch.tensor(FEATURES), "labels": torch.tensor(LABELS)}
    file.write_bytes(as_file(arrays, ("Ähre", "b c", "d"), suffix))
    data = load_features(file)
    assert data.class_names == ("Ähre", "b c", "d")
    assert len(data.train) + len(data.test) == 30


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.uint32, np.uint64, np.int32])
@pytest.mark.parametrize("precision", [np.float16, np.float64])
def test_any_integers_and_any_precision(kind, precision, tmp_path):
    data = load_features(written(tmp_path / "a.npz", FEATURES.astype(precision), LABELS.astype(kind)))
    assert data.train.images.dtype == torch.float32
    assert data.train.labels.bincount().tolist() == [8, 8, 8]


def test_bfloat16_and_unsigned_labels_in_safetensors(tmp_path):
    features, labels = torch.tensor(FEATURES).bfloat16(), torch.tensor(LABELS).to(torch.uint16)
    save_file({"features": features, "labels": labels}, tmp_path / "a.safetensors")
    data = load_features(tmp_path / "a.safetensors")
    assert set(data.train.images.flatten().tolist()) <= set(features.float().flatten().tolist())


def test_parts_of_features_are_taken_as_parts_of_images_are(tmp_path):
    train = load_features(written(tmp_path / "a.npz")).train
    assert few_of_each(train, 2).labels.bincount().tolist() == [2, 2, 2]
    assert long_tailed(train, kind="exponential", ratio=4.0).labels.bincount().tolist() == [8, 4, 2]


def changed(row, value):
    features = FEATURES.copy()
    features[row, 1] = value
    return features


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (changed(3, np.nan), LABELS, "must be finite in float32; row 3 of .* one of 1 such rows"),
        (changed(5, np.inf), LABELS, "must be finite in float32; row 5"),
        (FEATURES.astype(np.float64) * 1e200, LABELS, "must be finite in float32; row 0 .* one of 30"),
        ((FEATURES * 100).astype(int), LABELS, "features in .* must be floating-point; got int64"),
        (FEATURES, LABELS.astype(np.float32), "labels in .* must be integers; got float32"),
        (FEATURES, LABELS.astype(str), "labels in .* must be integers; got <U"),
        (FEATURES, LABELS.astype(object), "holds pickled objects, which are never loaded"),
        (FEATURES, LABELS[:-1], r"got \(30, 4\) and \(29,\)"),
        (FEATURES, LABELS[:, None], r"got \(30, 4\) and \(30, 1\)"),
        (FEATURES[:, 0], LABELS, r"got \(30,\)"),
        (FEATURES[:, :1], LABELS, "width of at least 2"),
        (FEATURES[:0], LABELS[:0], "at least one sample"),
        (FEATURES, np.where(LABELS == 1, 7, LABELS), "labels up to 7, and none of class 1"),
        (FEATURES, np.where(LABELS == 1, 10**15, LABELS), "none of class 1"),
        (FEATURES, LABELS - 1, "class indices from 0; got -1"),
        (FEATURES, LABELS * 0, "at least two classes"),
        (FEATURES[:3], LABELS[:3], "has no test features, and holding samples out failed.*Add --test-features"),
    ],
)
def test_what_does_not_fit_is_refused(features, labels, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_features(written(tmp_path / "a.npz", features, labels))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.c_[FEATURES, FEATURES], LABELS, "must have the same width; got 4 and 8"),
        (FEATURES, LABELS + 1, r"classes with training samples, 0 ... 2; got 3"),
        (changed(2, np.nan), LABELS, "row 2 of .*test.npz"),
    ],
)
def test_test_features_must_match(features, labels, message, tmp_path):
    test = written(tmp_path / "test.npz", features, labels)
    with pytest.raises(ValueError, match=message):
        load_features(written(tmp_path / "a.npz"), test)
    with pytest.raises(ValueError, match=message.replace("test.npz", "a.npz, test_features")):
        load_features(written(tmp_path / "a.npz", test_features=features, test_labels=labels))


def test_half_of_the_test_arrays_and_missing_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="must hold both test_features and test_labels, or neither; it lacks test_labels"):
        load_features(written(tmp_path / "a.npz", test_features=FEATURES))
    with pytest.raises(ValueError, match=f"there is no file nowhere.npz in {tmp_path}"):
        load_features(written(tmp_path / "a.npz"), type(tmp_path)("nowhere.npz"))


def test_class_names_must_be_names_of_all_classes(tmp_path):
    with pytest.raises(ValueError, match="class_names must be a list of names"):
        load_features(written(tmp_path / "a.npz", class_names=np.arange(3)))
    with pytest.raises(ValueError, match="none of class 3"):
        load_features(written(tmp_path / "a.npz", class_names=np.array(list("abcd"))))
    tensors = {"features": torch.tensor(FEATURES), "labels": torch.tensor(LABELS)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"class_names": json.dumps({"a": 1})})
    with pytest.raises(ValueError, match="class_names must be a list of names"):
        load_features(tmp_path / "a.safetensors")


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


def test_nothing_is_unpickled(tmp_path):
    file = tmp_path / "a.npz"
    for array in ("features", "labels", "class_names"):
        np.savez(file, **{"features": FEATURES, "labels": LABELS} | {array: np.array([Bomb()] * 30)})
        with pytest.raises(ValueError, match=r"pickle"):
            load_features(file)
    file.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="never loaded"):
        load_features(file)


def test_statistics_keep_the_shape_of_the_feature_space():
    features = torch.tensor([[1.0, 10.0], [3.0, 10.0], [1.0, 14.0], [3.0, 14.0]])
    mean, std = feature_statistics(features)
    assert mean.tolist() == [2.0, 12.0]
    assert std == pytest.approx(2.5**0.5)
    with pytest.raises(ValueError, match="must differ between samples"):
        feature_statistics(torch.ones(5, 3))
