"""A data set fetched, checked and described."""

from pathlib import Path

from guided_collapse.data.download.checked import compare, files_with_checksums
from guided_collapse.data.download.obtain import download_from_hub, instructions, pack_cifar10
from guided_collapse.data.download.root import VARIABLE, MissingData, data_folder
from guided_collapse.data.known import KnownData, known_data
from guided_collapse.data.sources import load_data
from guided_collapse.data.split import ImageData


def fetch(name: str, *, root: Path | None = None) -> str:
    """Gets a data set unless it is there, checks counts and checksums, and says what it is and where.

    ImageNet is never downloaded by itself: it is large, and its licence must be accepted by a person.

    Args:
        name: as for `load_data`.
        root: None takes `data_root()`.

    Returns:
        A few lines for a person.

    Raises:
        MissingData: if it is not there and cannot be fetched, with what to do.
        ValueError: for an unknown name, or files that are damaged or not those of the real data set.
    """
    known = known_data(name)
    try:
        data = load_data(name, root=root)
    except MissingData:
        _obtain_or_say_why(name, data_folder(name, root))
        data = load_data(name, root=root)
    checked = check(data, known)
    channels, height, width = data.image_shape
    return (
        f"{name}: {len(data.train):,} training and {len(data.test):,} test images of {channels} x {height} x {width} "
        f"in {data.num_classes} classes\n"
        f"checked: {checked}\n"
        f"where: {data.location if data.location is not None else 'it comes with scikit-learn'}"
    )


def check(data: ImageData, known: KnownData) -> str:
    """What was compared with the facts about the data set, and agreed.

    Raises:
        ValueError: for counts, shapes or checksums that do not.
    """
    expected = (known.num_train, known.num_test, known.num_classes, (known.channels, known.image_size, known.image_size))
    found = (len(data.train), len(data.test), data.num_classes, data.image_shape)
    if found != expected:
        raise ValueError(
            f"{data.name} must have {expected[0]} training and {expected[1]} test images in {expected[2]} classes, "
            f"of shape {expected[3]}; {data.location} has {found[0]} and {found[1]} in {found[2]}, of shape {found[3]}. "
            "Get it again."
        )
    absent = (data.train.labels.bincount(minlength=data.num_classes) == 0).sum()
    if absent:
        raise ValueError(f"{data.name} must have training images of every class; {data.location} has none of {int(absent)}.")
    compared = files_with_checksums(data, known)
    for path, checksum in compared.items():
        compare(data.name, path, checksum)
    files = "file" if len(compared) == 1 else "files"
    return f"counts, and the sha256 of {len(compared)} {files}" if compared else "counts; no checksum is known for its files"


def _obtain_or_say_why(name: str, folder: Path) -> None:
    if name == "imagenet":
        raise MissingData(f"imagenet must be in {folder}; it is not. Get it by hand, {instructions(name, folder)}.")
    try:
        pack_cifar10(folder) if name == "cifar10" else download_from_hub(name, folder)
    except OSError as error:
        raise MissingData(f"{name} could not be written to {folder}: {error}. Make room there, or set {VARIABLE}.") from error
