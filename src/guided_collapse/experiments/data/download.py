"""Implements `guided-collapse data NAME`, which downloads a data set or copies its archive, checks it, and describes it."""

import http.client
import shutil
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

from guided_collapse.experiments.data.archives import find_idx, load_archive
from guided_collapse.experiments.data.known import KnownData, known_data
from guided_collapse.experiments.data.sources import MissingData, data_folder, load_data
from guided_collapse.experiments.data.split import ImageData
from guided_collapse.experiments.files import atomic_write
from guided_collapse.lazy import optional

DOWNLOAD_TIMEOUT = 60  # seconds without data before a download times out


def download(name: str, *, root: Path | None = None, archive: Path | None = None) -> str:
    """Downloads a data set unless it is in its folder, checks counts and checksums, and returns a description of a few lines.

    ImageNet is never downloaded: it is large, and a person must accept its license.

    Args:
        name, root: as for `load_data`.
        archive: an archive to copy into place instead of downloading it; nothing is written if it fails the checks.

    Raises:
        MissingData: if the data set is missing and cannot be downloaded; the message says what to do.
        ValueError: for an unknown name, or files that are damaged or altered.
    """
    known, folder = known_data(name), data_folder(name, root)
    try:
        data = load_data(name, root=root) if archive is None else _take(name, known, archive, folder)
    except MissingData:
        _fetch(name, known, folder)
        data = load_data(name, root=root)
    check_counts(data, known)
    files = set() if data.location is None else {data.location.name, *find_idx(data.location)}
    checksums = " and checksums" if known.checksums.keys() & files else "; no checksum is known for its files"
    channels, height, width = data.image_shape
    return (
        f"{name}: {len(data.train):,} training and {len(data.test):,} test images of {channels} x {height} x {width} "
        f"in {data.num_classes} classes\n"
        f"checked: counts{checksums}\n"
        f"where: {data.location or 'it comes with scikit-learn'}"
    )


def check_counts(data: ImageData, known: KnownData) -> None:
    """Raises ValueError unless the data have the known numbers of images and classes, and the known shape."""
    expected = (known.num_train, known.num_test, known.num_classes, (known.channels, known.image_size, known.image_size))
    present = int((data.train.labels.bincount() > 0).sum())
    found = (len(data.train), len(data.test), present, data.image_shape)
    if found != expected:
        wanted, there = ("{} training and {} test images in {} classes, of shape {}".format(*each) for each in (expected, found))
        raise ValueError(f"{data.name} must have {wanted}; {data.location} has {there}. Download it again.")


def by_hand(name: str, known: KnownData, folder: Path) -> str:
    """Returns text that lists the ways to put the data set into this folder by hand."""
    addresses = [address for address in known.archives.values() if address]
    ways = [f"{address}: put it into '{folder}', or run guided-collapse data {name} --from FILE" for address in addresses]
    if name == "fashion-mnist":
        ways.append("on Debian or Ubuntu: sudo apt-get install dataset-fashion-mnist")
    if name in ("mnist", "fashion-mnist"):
        ways.append(f"the four IDX files (train-images-idx3-ubyte.gz and so on): put them into '{folder}'")
    if known.hub_name:
        terms = " (accept its license there and log in with `hf auth login` first)" if name == "imagenet" else ""
        ways.append(
            f"parquet files from the Hugging Face hub{terms}, on any machine, then copied here: "
            f"hf download {known.hub_name} --repo-type dataset --include '*.parquet' --local-dir '{folder}'"
        )
    ways.append(f"class folders of images: '{folder / 'train'}' and '{folder / 'test'}', each with a folder for each class")
    return f"Get it by hand: {'; or '.join(ways)}."


def _take(name: str, known: KnownData, file: Path, folder: Path) -> ImageData:
    """Checks an archive, copies it into the data folder under its published name, and returns its data."""
    zipped = zipfile.is_zipfile(file)
    archive = next((archive for archive in known.archives if archive.endswith(".zip") == zipped), None)
    if archive is None or not file.is_file():
        names = " or ".join(known.archives)
        needed = f"the archive of {name} must be {names}" if names else f"{name} has no archive"
        raise ValueError(f"{needed}; got {file}. {by_hand(name, known, folder)}")
    data = load_archive(file, name=name, known=known, archive=archive)
    check_counts(data, known)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / archive) as beside:
        shutil.copyfile(file, beside)
    return replace(data, location=folder / archive)


def _fetch(name: str, known: KnownData, folder: Path) -> None:
    """Downloads the data set from the hub or, if that fails or the hub does not have it, from the address of its archive."""
    published = {archive: address for archive, address in known.archives.items() if address}
    if name == "imagenet" or not (known.hub_name or published):
        raise MissingData(f"{name} must be in {folder}; it is not. {by_hand(name, known, folder)}")
    reasons = []
    folder.mkdir(parents=True, exist_ok=True)
    if known.hub_name:
        # Downloaded to this folder, not to the cache of `datasets`, so that files copied here from another machine work too.
        hub = optional("huggingface_hub", extra="experiments")
        try:
            hub.snapshot_download(known.hub_name, repo_type="dataset", local_dir=folder, allow_patterns=["*.parquet"])
            return
        except Exception as error:  # the network can fail in any layer of the client
            reasons.append(f"from the Hugging Face hub: {' '.join(str(error).split())[:300].rstrip('.')}")
    for archive, address in published.items():
        try:
            with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT) as response:
                content = response.read()
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"from {address}: {error}")
            continue
        with atomic_write(folder / archive) as beside:
            beside.write_bytes(content)
            check_counts(load_archive(beside, name=name, known=known, archive=archive), known)
        return
    raise MissingData(f"{name} could not be downloaded {'; or '.join(reasons)}. {by_hand(name, known, folder)}")
