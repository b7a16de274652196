"""Handwritten digits that come with scikit-learn."""

import numpy as np
import torch

from guided_collapse.data.known import KNOWN
from guided_collapse.data.optional import optional
from guided_collapse.data.sampling.hold_out import hold_out
from guided_collapse.data.split import ImageData, Split


def load_digits() -> ImageData:
    """The 1797 images of 8 x 8: 1437 to train on and 360 to test on, stratified, always the same.

    Grey levels 0 ... 16 become 0 ... 255, rounded.

    Raises:
        ValueError: if scikit-learn is not installed.
    """
    bundle = optional("sklearn.datasets", install="scikit-learn").load_digits()
    levels = np.rint(bundle.images * (255 / 16)).astype(np.uint8)
    everything = Split(torch.from_numpy(levels)[:, None], torch.from_numpy(bundle.target.astype(np.int64)))
    known = KNOWN["digits"]
    parts = hold_out(everything.labels, known.num_test, seed=None)
    return ImageData("digits", everything.take(parts.train), everything.take(parts.test), known.class_names or ())
