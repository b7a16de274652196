import hashlib

import torch
from sklearn.datasets import load_digits as bundled

from guided_collapse.data.augmentation.pixel_statistics import pixel_statistics
from guided_collapse.data.known import KNOWN
from guided_collapse.data.readers.digits import load_digits


def test_all_digits_are_there_once_with_their_labels():
    data = load_digits()
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.image_shape == (1, 8, 8)
    assert data.class_names == tuple("0123456789")
    images = torch.cat([data.train.images, data.test.images]).flatten(1)
    rows = torch.cat([images.long(), torch.cat([data.train.labels, data.test.labels])[:, None]], dim=1)
    levels = (torch.from_numpy(bundled().data) * 255 / 16).round().long()
    expected = torch.cat([levels, torch.from_numpy(bundled().target)[:, None]], dim=1)
    assert sorted(rows.tolist()) == sorted(expected.tolist())


def test_both_parts_have_every_class_in_proportion():
    data = load_digits()
    train, test = data.train.labels.bincount(), data.test.labels.bincount()
    assert float((test - (train + test) * 360 / 1797).abs().max()) < 1


def test_the_parts_are_always_the_same():
    # Part of what a result means: a change here makes old and new results incomparable.
    test = load_digits().test
    assert test.labels[:20].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 3, 6, 5, 9, 2, 1, 7, 8, 4]
    digest = hashlib.sha256(test.images.numpy().tobytes()).hexdigest()
    assert digest == "db9a64f574beb0e6cc60bee352739c42919eb03c00256cb146027f351050a3b0"


def test_the_known_normalisation_is_that_of_the_training_images():
    found = pixel_statistics(load_digits().train)
    assert tuple(round(value, 4) for value in found.mean) == KNOWN["digits"].mean
    assert tuple(round(value, 4) for value in found.std) == KNOWN["digits"].std
