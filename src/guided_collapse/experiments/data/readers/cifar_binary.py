"""CIFAR-100 in the binary files of its authors."""

from pathlib import Path, PurePosixPath

import numpy as np

from guided_collapse.experiments.data.known import KnownData
from guided_collapse.experiments.data.readers.archives import PARTS, read_members
from guided_collapse.experiments.data.readers.decoded import Arrays

NAMES = "fine_label_names.txt"
FILES = {part: f"{part}.bin" for part in PARTS}
BEFORE_PIXELS = 2  # bytes: the coarse label, then the fine one


def read_cifar100_binary(path: Path, known: KnownData) -> Arrays:
    """Images, fine labels and the names of the classes, from train.bin, test.bin and fine_label_names.txt in the tarball.

    A sample is a byte for its coarse label, one for its fine label, and its pixels, channel by channel and row by row.

    Raises:
        ValueError: for a tarball that is damaged or incomplete.
    """
    wanted = {NAMES, *FILES.values()}
    members = read_members(path, lambda name: PurePosixPath(name).name in wanted)
    contents = {PurePosixPath(name).name: content for name, content in members.items()}
    if lacking := sorted(wanted - contents.keys()):
        raise ValueError(f"{path} must be the binary version of CIFAR-100; it lacks {', '.join(lacking)}.")
    class_names = contents[NAMES].decode("ascii", errors="replace").split()
    arrays: dict[str, np.ndarray] = {"class_names": np.array(class_names)}
    shape = (known.channels, known.image_size, known.image_size)
    length = BEFORE_PIXELS + int(np.prod(shape))
    for part, file in FILES.items():
        if not contents[file] or len(contents[file]) % length:
            raise ValueError(f"{file} in {path} must have {length} bytes for each image; it has {len(contents[file])}.")
        rows = np.frombuffer(contents[file], dtype=np.uint8).reshape(-1, length)
        arrays[f"{part}_images"] = rows[:, BEFORE_PIXELS:].reshape(-1, *shape).copy()
        arrays[f"{part}_labels"] = rows[:, BEFORE_PIXELS - 1].astype(np.int64)
    return arrays
