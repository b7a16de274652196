"""The data sets that have a name here. This table loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class KnownData:
    """Facts about a data set.

    Attributes:
        channels: 1 or 3.
        image_size: height and width as loaded.
        num_classes: C.
        num_train: training images.
        num_test: test images; for ImageNet those of the validation part, whose labels are public.
        mean: of the training pixels, for each channel, with pixels from 0 to 1.
        std: their standard deviation.
        hub_name: the repository on the Hugging Face hub that holds it as parquet files, if there is one.
        test_part: the part on the hub that serves as the test split.
        class_names: None if the files state them.
        checksums: by file name, the sha256 (64 digits) or published md5 (32 digits) of archives and of decompressed IDX files.
        archives: the addresses of zip and tar archives that hold it, by file name; None for one that is not published. The first
            one found is read, and the first one with an address is downloaded.
        archive_reader: the key in `archives.READERS` of the function that reads them.
    """

    channels: int
    image_size: int
    num_classes: int
    num_train: int
    num_test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hub_name: str | None = None
    test_part: str = "test"
    class_names: tuple[str, ...] | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    archives: Mapping[str, str | None] = field(default_factory=dict)
    archive_reader: str = ""


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_TINY_IMAGENET = {"tiny-imagenet-200.zip": "http://cs231n.stanford.edu/tiny-imagenet-200.zip"}
_TINY_IMAGENET_MD5 = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
_TINY_IMAGENET_PIXELS = ((0.4864, 0.4503, 0.4043), (0.2843, 0.2777, 0.2924))  # measured on half of the classes


def _mnist(mean: float, std: float, hub_name: str, class_names: tuple[str, ...], *checksums: str) -> KnownData:
    facts = (1, 28, 10, 60_000, 10_000, (mean,), (std,))
    return KnownData(*facts, hub_name=hub_name, class_names=class_names, checksums=dict(zip(_IDX, checksums, strict=True)))


def _cifar(
    num_classes: int, mean: tuple[float, ...], std: tuple[float, ...], md5: str, class_names: tuple[str, ...] | None = None
) -> KnownData:
    file = f"cifar-{num_classes}-binary.tar.gz"
    return KnownData(
        *(3, 32, num_classes, 50_000, 10_000, mean, std),
        hub_name=f"uoft-cs/cifar{num_classes}",
        class_names=class_names,
        checksums={file: md5},
        archives={file: f"https://www.cs.toronto.edu/~kriz/{file}"},
        archive_reader="cifar",
    )


def _omniglot(num_classes: int, file: str, checksum: str | None = None) -> KnownData:
    """A set of characters with 20 drawings each; pixel statistics were measured on the first small set."""
    return KnownData(
        *(1, 105, num_classes, 16 * num_classes, 4 * num_classes, (0.9237,), (0.2654,)),
        checksums={file: checksum} if checksum else {},
        archives={file: f"https://github.com/brendenlake/omniglot/raw/master/python/{file}"},
        archive_reader="omniglot",
    )


KNOWN: dict[str, KnownData] = {
    "digits": KnownData(1, 8, 10, 1437, 360, (0.3051,), (0.3758,), class_names=DIGITS),
    "mnist": _mnist(
        *(0.1307, 0.3081, "ylecun/mnist", DIGITS),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": _mnist(
        *(0.2860, 0.3530, "zalando-datasets/fashion_mnist", CLOTHES),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "cifar10": _cifar(
        *(10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "c32a1d4ab5d03f1284b67883e8d87530", CIFAR10_CLASSES)
    ),
    "cifar100": _cifar(100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "03b5dce01913d631647c71ecec9e9cb8"),
    "stl10": KnownData(3, 96, 10, 5_000, 8_000, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), hub_name="tanganke/stl10"),
    "imagenet": KnownData(
        *(3, 256, 1000, 1_281_167, 50_000, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        hub_name="ILSVRC/imagenet-1k",
        test_part="validation",
    ),
    "tiny-imagenet": KnownData(
        *(3, 64, 200, 100_000, 10_000, *_TINY_IMAGENET_PIXELS),
        checksums=_TINY_IMAGENET_MD5,
        archives=_TINY_IMAGENET,
        archive_reader="tiny-imagenet",
    ),
    "tiny-imagenet-100": KnownData(
        *(3, 64, 100, 30_000, 5_000, *_TINY_IMAGENET_PIXELS),
        checksums=_TINY_IMAGENET_MD5,
        archives={"tiny-imagenet-100.tar.gz": None, **_TINY_IMAGENET},
        archive_reader="tiny-imagenet-100",
    ),
    "omniglot": _omniglot(964, "images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
    "omniglot-small1": _omniglot(
        136, "images_background_small1.zip", "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4"
    ),
    "omniglot-small2": _omniglot(156, "images_background_small2.zip"),
}
"""Every named data set. Add your own here."""


def known_data(name: str) -> KnownData:
    """The facts about the data set of this name; ValueError for an unknown one, with the nearest one and all of them."""
    if name in KNOWN:
        return KNOWN[name]
    near = get_close_matches(name, KNOWN, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"the data set must be one of {', '.join(KNOWN)}; got {name!r}.{guess}")


def check_source(data: str) -> None:
    """Raises ValueError for what is neither the name of a data set nor a folder."""
    if data not in KNOWN and not (data.strip() and Path(data).is_dir()):
        raise ValueError(
            f"data must be a folder of images or one of {', '.join(KNOWN)}, unconstrained; got {data!r}, which is neither."
        )
