r"""Images with labels: the data sets of the papers, their stand-ins, and the reader's own.

================  ============================================  ===========================================
name              images                                        where, in the data folder
================  ============================================  ===========================================
`mnist`           70,000 of 28 x 28, grey                       `MNIST/raw/*-ubyte`
`fashion_mnist`   70,000 of 28 x 28, grey                       `FashionMNIST/raw/*-ubyte`
`cifar10`         60,000 of 32 x 32, colour                     `cifar-10-batches-py/*`
`svhn`            99,289 of 32 x 32, colour                     `svhn/train_32x32.mat`, `test_32x32.mat`
`cifar10-jpeg75`  CIFAR-10 after lossy compression, a stand-in  `CIFAR10-jpeg75/{train,test}/<class>/*.jpg`
`digits`          1,797 of 8 x 8, grey                          inside scikit-learn
================  ============================================  ===========================================

The data folder is the one that the environment variable COLLAPSE_DATA names, otherwise `~/.cache/collapse-book`.
Reading changes nothing in it, and nothing is downloaded unasked: `make data` (`python -m lib.data.image_sets fetch`) does,
and so does the book in its `paper` profile. A build is told which files a chapter has read, with a checksum.

In place of a name, :func:`load` and :func:`resolve` take the path of the reader's own images, absolute or seen from
the working directory:

- a folder `train/<class>/*` and `test/<class>/*` of PNG or JPEG files, all of one size,
- a folder `<class>/*` of such files, which is then split,
- an `.npz` file with `x`, `y` and optionally `x_test`, `y_test` (it is split without them): x is uint8 or floating
  point of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3, y holds the labels 0 ... K-1. Where both the
  second and the last axis could be channels, the last one is.

The classes of a folder are in the order of their names, the images of a class in that of the file names (by code
point); the classes take turns. A set that has to be split gives every fifth image of each class, beginning with the
second, to the test set.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import http.client
import os
import socket
import sys
import urllib.error
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.data.vision import torchvision
from lib.ledger.notes import note

#: What the sets are called in a sentence, by name.
TITLES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "cifar10-jpeg75": "CIFAR-10 recompressed as JPEG of quality 75, a lossy stand-in for CIFAR-10",
    "digits": "the handwritten digits that come with scikit-learn",
}
#: The names of the sets.
NAMES = tuple(TITLES)
#: The sets that :func:`fetch` downloads.
DOWNLOADABLE = ("mnist", "fashion_mnist", "cifar10", "svhn")
#: What "auto" prefers to the digits, see :func:`resolve`.
STAND_INS = {"cifar10": ("cifar10-jpeg75",)}
#: Of these a reduced profile takes a part; the digits, and what a reader brings, it takes whole.
LARGE = (*DOWNLOADABLE, *(name for names in STAND_INS.values() for name in names))

#: Checksums, since torchvision checks the archives that it downloads, not the files that it reads.
MD5 = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}

#: Training and test images of `cifar10-jpeg75`, which has no checksums.
JPEG75_SIZES = (50_000, 10_000)

_TRAIN, _TEST = 0, 1  # one seed, independent streams for both halves and every class
_SUFFIXES = (".png", ".jpg", ".jpeg")
_PATIENCE = 60  # seconds: a server that is silent for longer is no network either
_noted: dict[tuple[str, Path], dict] = {}  # what was read, by name and folder
_refused: set[tuple[str, Path]] = set()  # sets and folders of the downloads that failed


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    r"""Training and test images as two tensors on one device, normalised per channel.

    .. math:: x = (\text{pixel} - \mathtt{mean}_c) / \mathtt{std}_c

    with mean and standard deviation of channel c over the training images of *this* set: those have mean 0 and
    standard deviation 1 in every channel, in a subset too. A constant channel keeps the standard deviation 1. Pixels
    are measured in units of the largest value that the format can hold, so that they lie in [0, 1]; those of the
    reader's floating-point arrays are taken as they are.

    Fields: `name`; `x` (N, C, H, W) float32 and `y` (N,) int64 with labels 0 ... K-1; `x_test`, `y_test` likewise;
    `classes`, the K names in the order of the labels; `mean` and `std`, (C,) float32.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    mean: Tensor
    std: Tensor

    @property
    def K(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set with all tensors on `device`, as :meth:`torch.Tensor.to`."""
        fields = ("x", "y", "x_test", "y_test", "mean", "std")
        return replace(self, **{name: getattr(self, name).to(device) for name in fields})

    def subset(
        self,
        classes: Sequence[str | int] | None = None,
        per_class: int | None = None,
        seed: int = 0,
        test_per_class: int | None = None,
    ) -> ImageSet:
        """Some classes, and as many images of each, drawn without replacement.

        `classes`: names or labels of at least two classes; they become 0 ... K-1 in this order. `per_class` and
        `test_per_class`: training and test images of each class; None takes all. The images keep their order. Which
        ones are drawn from a class depends on the seed and that class alone, and a larger draw contains a smaller one.

        Raises ValueError for an unknown or repeated class, and for a number that is not positive or exceeds what a
        class has.
        """
        labels = _labels(classes, self.classes)
        train, y = _drawn(self.y.cpu().numpy(), labels, self.classes, per_class, "per_class", seed, _TRAIN)
        test, y_test = _drawn(
            self.y_test.cpu().numpy(), labels, self.classes, test_per_class, "test_per_class", seed, _TEST
        )
        device = self.x.device
        x, x_test = self.x[train.to(device)], self.x_test[test.to(device)]
        x, x_test, mean, std = _normalised(x, x_test)
        return ImageSet(
            self.name, x, y.to(device), x_test, y_test.to(device), tuple(self.classes[label] for label in labels),
            self.mean + self.std * mean, self.std * std,
        )  # fmt: skip

    def __repr__(self) -> str:
        height, width = self.x.shape[2:]
        colour = {1: "grey", 3: "colour"}[self.x.shape[1]]
        return (
            f"{TITLES.get(self.name, f'the images of {self.name}')}: {self.K} classes, {len(self.x):,} training and "
            f"{len(self.x_test):,} test images of {height} × {width} {colour} pixels"
        )


def load(
    name: str | os.PathLike,
    folder: str | os.PathLike | None = None,
    download: bool = False,
    *,
    classes: Sequence[str | int] | None = None,
    per_class: int | None = None,
    test_per_class: int | None = None,
    seed: int = 0,
) -> ImageSet:
    """The image set of that name, or the reader's own from a path, on the CPU.

    `folder` replaces the data folder; `download=True` fetches an absent set first. `classes`, `per_class`,
    `test_per_class` and `seed` choose what :meth:`ImageSet.subset` would choose, and images that are not chosen are not
    decoded. A folder of the reader's that is called like a set of the book, `mnist`, goes by the name `folder mnist`.

    Raises ValueError for an unknown name, a damaged file (with both checksums), fewer than two classes, an empty class
    or images of several sizes; FileNotFoundError for an absent set; ConnectionError when a download fails.
    """
    if _is_path(name):
        source = Path(name).expanduser()
        raw, name = _read_own(source), source.resolve().name
        if name in NAMES:  # a name of the book is a promise of what lies behind it
            name = f"folder {name}"
    else:
        _known(name)
        source = data_folder(folder)
        if download and name in DOWNLOADABLE:
            fetch(name, source)
        raw = _read(name, source)
    _note(name, source, raw)
    labels = _labels(classes, raw.classes)
    train, y = _drawn(raw.y, labels, raw.classes, per_class, "per_class", seed, _TRAIN)
    test, y_test = _drawn(raw.y_test, labels, raw.classes, test_per_class, "test_per_class", seed, _TEST)
    if isinstance(raw.x, list):  # of files, decoded in one go: all have to be of one size
        images = _decoded([raw.x[i] for i in train.tolist()] + [raw.x_test[i] for i in test.tolist()])
        x, x_test = images[: len(train)], images[len(train) :]
    else:
        x, x_test = raw.x[train.numpy()], raw.x_test[test.numpy()]
    x, x_test, mean, std = _normalised(_unit(x), _unit(x_test))
    return ImageSet(name, x, y, x_test, y_test, tuple(raw.classes[label] for label in labels), mean, std)


def resolve(
    dataset: str | os.PathLike, wanted: str, folder: str | os.PathLike | None = None, download: bool = False
) -> str:
    """The name of the set to load: what "auto" stands for, or `dataset` itself.

    "auto" is the set `wanted` by the chapter where all its files lie in the data folder, else its stand-in (for
    `cifar10` that is `cifar10-jpeg75`) where that lies there, else `digits`. Only the presence of files is looked at.
    With `download=True` an absent set that "auto" would be is fetched first; where that fails, one line says so, and
    the process does not try it again.

    Raises ValueError for an unknown name, FileNotFoundError for a path at which there is nothing.
    """
    _known(wanted)
    if dataset == "auto":
        place = data_folder(folder)
        if download and wanted in DOWNLOADABLE and (wanted, place) not in _refused and _absent(wanted, place):
            try:
                fetch(wanted, place)
            except (OSError, ValueError) as error:  # a read-only folder, a server that sends other files
                _refused.add((wanted, place))
                print(f"the stand-in for {TITLES[wanted]} is used: {error}")
        candidates = (wanted, *STAND_INS.get(wanted, ()), "digits")
        return next(name for name in candidates if _absent(name, data_folder(folder)) is None)
    if _is_path(dataset):
        if not Path(dataset).expanduser().exists():
            raise FileNotFoundError(f"dataset = {str(dataset)!r}: there is no such folder or file")
        return str(dataset)
    return _known(dataset)


def fetch(name: str, folder: str | os.PathLike | None = None) -> bool:
    """Download a set into the data folder unless it lies there undamaged; damaged files are replaced.

    Returns whether anything was downloaded; progress goes to the standard error stream. Raises ValueError for a set
    that has no download, ConnectionError without a network.
    """
    if _known(name) not in DOWNLOADABLE:
        raise ValueError(f"{name} cannot be downloaded; {', '.join(DOWNLOADABLE)} can")
    folder = data_folder(folder)
    complete = True
    for path, expected in _checksums(name, folder).items():
        if path.is_file() and _md5(path) != expected:
            path.unlink()
        complete &= path.is_file()
    if complete:
        return False
    sets = torchvision.datasets
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        if name == "cifar10":  # the class would not repair a lost batches.meta
            kind = sets.CIFAR10
            folder.mkdir(parents=True, exist_ok=True)
            sets.utils.download_and_extract_archive(
                kind.url, folder, filename=kind.filename, md5=kind.tgz_md5, remove_finished=True
            )
        elif name == "svhn":
            for split in ("train", "test"):
                url, filename, md5 = sets.SVHN.split_list[split]
                sets.utils.download_url(url, folder / "svhn", filename, md5)
        else:
            {"mnist": sets.MNIST, "fashion_mnist": sets.FashionMNIST}[name](folder, download=True)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ConnectionError(
            f"no network, or a server that does not answer: {name} could not be downloaded into {folder} ({reason})"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    _verify(name, folder)
    return True


def data_folder(folder: str | os.PathLike | None = None) -> Path:
    """The given folder, else the one that COLLAPSE_DATA names, else `~/.cache/collapse-book`."""
    if folder:
        return Path(folder).expanduser()
    return Path(os.environ.get("COLLAPSE_DATA") or Path.home() / ".cache" / "collapse-book")


# Names ------------------------------------------------------------------------------------------------------------


def _known(name: str) -> str:
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, n=2)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        known = ", ".join(NAMES)
        raise ValueError(f"unknown data set {name!r}{hint}; known are {known}, and paths of folders and .npz files")
    return name


def _is_path(name: str | os.PathLike) -> bool:
    """A name of the book is never taken for a path; anything that looks like one, or exists, is."""
    if isinstance(name, os.PathLike):
        return True
    if not isinstance(name, str) or name in NAMES or not name:
        return False
    return "/" in name or os.sep in name or name[0] in "~." or name.endswith(".npz") or Path(name).exists()


# Presence and checksums -------------------------------------------------------------------------------------------


def _checksums(name: str, folder: Path) -> dict[Path, str]:
    """The files of a set that can be downloaded, and their MD5 sums."""
    sets = torchvision.datasets
    if name == "cifar10":
        meta = (sets.CIFAR10.meta["filename"], sets.CIFAR10.meta["md5"])
        entries = (*sets.CIFAR10.train_list, *sets.CIFAR10.test_list, meta)
        return {folder / sets.CIFAR10.base_folder / filename: md5 for filename, md5 in entries}
    if name == "svhn":
        return {
            folder / "svhn" / sets.SVHN.split_list[split][1]: sets.SVHN.split_list[split][2]
            for split in ("train", "test")
        }
    parent = folder / {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}[name] / "raw"
    return {parent / filename: md5 for filename, md5 in MD5[name].items()}


def _absent(name: str, folder: Path) -> Path | None:
    """The first file or folder of the set that is not there."""
    if name == "digits":
        return None
    if name == "cifar10-jpeg75":
        parts = [folder / "CIFAR10-jpeg75" / split for split in ("train", "test")]
        return next((part for part in parts if not part.is_dir()), None)
    return next((path for path in _checksums(name, folder) if not path.is_file()), None)


def _verify(name: str, folder: Path) -> None:
    """FileNotFoundError for an absent set, ValueError for a damaged file."""
    absent = _absent(name, folder)
    if absent:
        where = f"{name} is not there: no {absent.name} in {absent.parent}. Another folder is named by COLLAPSE_DATA"
        if name in DOWNLOADABLE:
            raise FileNotFoundError(f"{where}; `make data DATA={name}` downloads the set")
        raise FileNotFoundError(f"{where}; the set has no download, `make data DATA=cifar10` fetches the original")
    for path, expected in _checksums(name, folder).items() if name in DOWNLOADABLE else ():
        found = _md5(path)
        if found != expected:
            raise ValueError(
                f"{path} is damaged{_truncation(path)}: its MD5 checksum is {found} and should be {expected}; "
                f"`make data DATA={name}` replaces it"
            )


def _truncation(path: Path) -> str:
    """What the header of an IDX file promises, where the file is shorter; its fourth byte counts the dimensions."""
    if not path.name.endswith("-ubyte"):
        return ""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(16)
    if size < 8 or size < 4 + 4 * header[3]:
        return f" (truncated: {size} bytes, less than its header)"
    shape = np.frombuffer(header[4 : 4 + 4 * min(header[3], 3)], ">u4")
    promised = 4 + 4 * len(shape) + int(np.prod(shape, dtype=np.uint64))
    return f" (truncated: {size:,} bytes, its header promises {promised:,})" if size < promised else ""


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _note(name: str, source: Path, raw: _Raw) -> None:
    """Tell the build which set is loaded: the number of its files and their checksum, taken once per process."""
    if "COLLAPSE_NOTES" not in os.environ:
        return
    key = (name, source.absolute())
    if key not in _noted:
        if isinstance(raw.x, list):
            named = {file[len(str(source)) + 1 :]: file for file in raw.x + raw.x_test}
        elif name == "digits":
            import sklearn.datasets

            named = {"digits.csv.gz": Path(sklearn.datasets.__file__).parent / "data" / "digits.csv.gz"}
        else:
            files = _checksums(name, source) if name in DOWNLOADABLE else [source]
            named = {path.name: path for path in files}
        _noted[key] = {"files": len(named), "sha256": _sha256(named)}
    note("data", name=name, **_noted[key])


def _sha256(named: dict[str, str | Path]) -> str:
    r"""Of names and contents: in the order of the names, each one, \0, and the SHA-256 of what the file holds."""
    digest = hashlib.sha256()
    for name, path in sorted(named.items()):
        with open(path, "rb", buffering=0) as file:
            content = hashlib.sha256(file.read()).digest()
        digest.update(name.replace(os.sep, "/").encode() + b"\0" + content)
    return digest.hexdigest()


# Reading ----------------------------------------------------------------------------------------------------------


class _Raw(NamedTuple):
    """Images as they are stored: an array (N, C, H, W), or a list of files; labels (N,); names of the classes."""

    x: np.ndarray | list[str]
    y: np.ndarray
    x_test: np.ndarray | list[str]
    y_test: np.ndarray
    classes: tuple[str, ...]


def _read(name: str, folder: Path) -> _Raw:
    """A set of the book, its files verified before anything in them is interpreted."""
    _verify(name, folder)
    sets = torchvision.datasets
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return _split((digits.images[:, None] / 16).astype(np.float32), digits.target, tuple("0123456789"))
    if name == "cifar10-jpeg75":
        raw = _read_folder(folder / "CIFAR10-jpeg75")
        sizes = (len(raw.x), len(raw.x_test))
        if sizes != JPEG75_SIZES:
            raise ValueError(f"{folder / 'CIFAR10-jpeg75'} is incomplete: it holds {sizes} of {JPEG75_SIZES} images")
        return raw
    if name == "cifar10":
        train, test = sets.CIFAR10(folder, train=True), sets.CIFAR10(folder, train=False)
        x, x_test = (part.data.transpose(0, 3, 1, 2) for part in (train, test))
        return _Raw(x, np.array(train.targets), x_test, np.array(test.targets), tuple(train.classes))
    if name == "svhn":
        train, test = sets.SVHN(folder / "svhn", split="train"), sets.SVHN(folder / "svhn", split="test")
        return _Raw(train.data, train.labels, test.data, test.labels, tuple("0123456789"))
    # The files are read one by one: the classes prefer a `processed` folder of old, which has no checksums.
    paths = {path.name.partition("-idx")[0]: path for path in _checksums(name, folder)}
    x, x_test = (sets.mnist.read_image_file(paths[f"{half}-images"]).numpy()[:, None] for half in ("train", "t10k"))
    y, y_test = (sets.mnist.read_label_file(paths[f"{half}-labels"]).numpy() for half in ("train", "t10k"))
    return _Raw(x, y, x_test, y_test, tuple("0123456789") if name == "mnist" else tuple(sets.FashionMNIST.classes))


def _read_own(path: Path) -> _Raw:
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such folder or file of images")
    if path.suffix != ".npz":
        raise ValueError(f"{path} is neither a folder of images nor an .npz file")
    return _read_npz(path)


def _read_folder(folder: Path) -> _Raw:
    """`train/<class>/*` and `test/<class>/*`, or `<class>/*`, which is split."""
    halves = [folder / half for half in ("train", "test") if (folder / half).is_dir()]
    if len(halves) == 1:
        raise ValueError(f"{folder} has a folder {halves[0].name!r} and needs both 'train' and 'test', or neither")
    if not halves:
        return _split(*_listed(folder))
    (x, y, classes), (x_test, y_test, test_classes) = map(_listed, halves)
    if classes != test_classes:
        odd = ", ".join(sorted(set(classes) ^ set(test_classes)))
        raise ValueError(f"{folder}: 'train' and 'test' need the same classes; only one of them has {odd}")
    return _Raw(x, y, x_test, y_test, classes)


def _listed(folder: Path) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    """The image files below the folders of the classes, which take turns; their labels; the classes."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        raise ValueError(f"{folder} has {len(classes)} folders; at least 2 are needed, one for each class")
    files = []
    for label, name in enumerate(classes):
        names = sorted(entry.name for entry in os.scandir(folder / name) if not entry.name.startswith("."))
        names = [file for file in names if file.lower().endswith(_SUFFIXES)]
        if not names:
            raise ValueError(f"class {name!r} is empty: {folder / name} holds no file {', '.join(_SUFFIXES)}")
        files += [(turn, label, os.path.join(folder, name, file)) for turn, file in enumerate(names)]
    _, labels, paths = zip(*sorted(files), strict=True)
    return list(paths), np.array(labels), tuple(classes)


def _decoded(files: list[str]) -> np.ndarray:
    """(N, C, H, W) uint8, with C = 1 when all files are grey and 3 otherwise."""
    from PIL import Image

    images = []
    for file in files:
        try:
            with Image.open(file) as image:
                if image.mode not in ("L", "RGB"):
                    if image.mode.startswith(("I", "F")):
                        raise ValueError(f"{file} has pixels of type {image.mode}; 8 bits per channel are needed")
                    image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
                images.append(np.asarray(image))
        except (OSError, SyntaxError, EOFError) as error:  # SyntaxError is what PIL raises for a broken PNG
            raise ValueError(f"{file} cannot be read as an image: {error}") from error
        if images[-1].shape[:2] != images[0].shape[:2]:
            (height, width), (other_height, other_width) = images[-1].shape[:2], images[0].shape[:2]
            raise ValueError(
                f"{file} is {height} x {width} pixels and {files[0]} {other_height} x {other_width}: "
                "all images of a set need one size"
            )
    if all(image.ndim == 2 for image in images):
        return np.stack(images)[:, None]
    colour = np.empty((len(images), *images[0].shape[:2], 3), np.uint8)
    for row, image in zip(colour, images, strict=True):
        row[:] = image if image.ndim == 3 else image[:, :, None]
    return colour.transpose(0, 3, 1, 2)


def _read_npz(path: Path) -> _Raw:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("x", "y", "x_test", "y_test") if key in file}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as an .npz file of numbers: {error}") from error
    if set(arrays) not in ({"x", "y"}, {"x", "y", "x_test", "y_test"}):
        found = ", ".join(arrays) or "none of them"
        raise ValueError(f"{path} has {found}; x and y are needed, and x_test with y_test or neither")
    for key in set(arrays) & {"x", "x_test"}:
        arrays[key] = _channels_first(f"{key} of {path}", arrays[key])
        labels = arrays[key.replace("x", "y", 1)]
        if labels.ndim != 1 or len(labels) != len(arrays[key]) or labels.dtype.kind not in "iu":
            found = f"shape {labels.shape} and type {labels.dtype}"
            raise ValueError(f"the labels to {key} of {path} have {found}; one integer per image is needed")
    K = int(arrays["y"].max()) + 1
    for key in set(arrays) & {"y", "y_test"}:
        present = np.unique(arrays[key])
        if present[0] < 0 or present[-1] >= K or len(present) < K:
            raise ValueError(f"{key} of {path} holds {_short(present)}; every label 0 ... K-1 = {K - 1} has to occur")
    if K < 2:
        raise ValueError(f"y of {path} holds 1 class; at least 2 are needed")
    classes = tuple(map(str, range(K)))
    if "x_test" not in arrays:
        return _split(arrays["x"], arrays["y"].astype(np.int64), classes)
    x, x_test = arrays["x"], arrays["x_test"]
    if x.shape[1:] != x_test.shape[1:] or x.dtype != x_test.dtype:
        raise ValueError(
            f"x and x_test of {path} hold images of shapes {x.shape[1:]} and {x_test.shape[1:]} (C, H, W) and types "
            f"{x.dtype} and {x_test.dtype}; they have to agree"
        )
    return _Raw(x, arrays["y"].astype(np.int64), x_test, arrays["y_test"].astype(np.int64), classes)


def _channels_first(what: str, x: np.ndarray) -> np.ndarray:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise ValueError(f"{what} has type {x.dtype}; it must be uint8 or floating point")
    if 0 in x.shape or x.ndim not in (3, 4):
        raise ValueError(f"{what} has shape {x.shape}; it must be (N, H, W), (N, H, W, C) or (N, C, H, W)")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"{what} has a value that is not finite, in image {int(np.argwhere(~np.isfinite(x))[0][0])}")
    if x.ndim == 3:
        return x[:, None]
    if x.shape[3] in (1, 3):
        return x.transpose(0, 3, 1, 2)
    if x.shape[1] not in (1, 3):
        raise ValueError(f"{what} has shape {x.shape}; neither its second nor its last axis is 1 or 3 channels")
    return x


def _split(images: np.ndarray | list[str], y: np.ndarray, classes: tuple[str, ...]) -> _Raw:
    """Every fifth image of each class, beginning with the second, is for the test."""
    test = np.zeros(len(y), dtype=bool)
    for label, name in enumerate(classes):
        rows = np.flatnonzero(y == label)
        if len(rows) < 2:
            raise ValueError(f"class {name!r} has {len(rows)} image; at least 2 are needed to split off a test set")
        test[rows[1::5]] = True
    train, test = np.flatnonzero(~test), np.flatnonzero(test)
    if isinstance(images, list):
        return _Raw([images[i] for i in train], y[train], [images[i] for i in test], y[test], classes)
    return _Raw(images[train], y[train], images[test], y[test], classes)


# Choosing and normalising -----------------------------------------------------------------------------------------


def _labels(classes: Sequence[str | int] | None, names: tuple[str, ...]) -> list[int]:
    """Labels of the chosen classes, which are given by name or by label."""
    if classes is None:
        return list(range(len(names)))
    if isinstance(classes, (str, int)):
        raise ValueError(f"classes = {classes!r}; it must be a list of names or labels")
    labels = []
    for given in classes:
        if isinstance(given, str) and given in names:
            labels.append(names.index(given))
        elif isinstance(given, (int, np.integer)) and not isinstance(given, bool) and 0 <= given < len(names):
            labels.append(int(given))
        else:
            raise ValueError(f"classes has {given!r}; the classes are {_short(names)}, or their labels from 0 on")
    if len(set(labels)) < max(len(labels), 2):
        raise ValueError(f"classes = {list(classes)!r}; at least 2 different classes are needed")
    return labels


def _drawn(
    y: np.ndarray, labels: list[int], names: tuple[str, ...], count: int | None, what: str, seed: int, half: int
) -> tuple[Tensor, Tensor]:
    """Indices of the drawn images, ascending, and their new labels."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed = {seed!r}; it must be a non-negative integer")
    if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
        raise ValueError(f"{what} = {count!r}; it must be an integer of at least 1, or None for all")
    rows, renumbered = [], []
    for new, label in enumerate(labels):
        of_class = np.flatnonzero(y == label)
        if len(of_class) == 0:
            raise ValueError(f"class {names[label]!r} is empty: it has no {('training', 'test')[half]} image")
        if count is not None and len(of_class) < count:
            raise ValueError(
                f"{what} = {count}; class {names[label]!r} has {len(of_class)} {('training', 'test')[half]} images"
            )
        if count is not None:
            stream = np.random.SeedSequence(int(seed), spawn_key=(half, label))
            of_class = of_class[np.random.Generator(np.random.PCG64(stream)).permutation(len(of_class))[:count]]
        rows.append(of_class)
        renumbered.append(np.full(len(of_class), new))
    rows, renumbered = np.concatenate(rows), np.concatenate(renumbered)
    order = np.argsort(rows)
    return torch.from_numpy(rows[order]), torch.from_numpy(renumbered[order].astype(np.int64))


def _unit(x: np.ndarray) -> Tensor:
    """Pixels as float32: 0 ... 255 become 0 ... 1, floating point stays."""
    pixels = torch.from_numpy(np.ascontiguousarray(x)).to(torch.float32)
    return pixels.div_(255) if x.dtype == np.uint8 else pixels


def _normalised(x: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both halves (overwritten), and the mean and standard deviation per channel of the first."""
    std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
    std = torch.where(std > 0, std, 1)
    for half in (x, x_test):
        half.sub_(mean[:, None, None]).div_(std[:, None, None])
    return x, x_test, mean, std


def _short(items: Sequence) -> str:
    shown = ", ".join(map(str, items[:12]))
    return shown if len(items) <= 12 else f"{shown}, ... ({len(items)} in all)"


# The command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The commands `fetch` and `list`; returns the exit status, 2 where :func:`fetch` raises ValueError."""
    parser = argparse.ArgumentParser(prog="python -m lib.data.image_sets", description="Fetch and list the image sets.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download sets that are not in the data folder yet")
    fetching.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DOWNLOADABLE)}; all by default")
    for command in (fetching, commands.add_parser("list", help="say which sets lie in the data folder")):
        command.add_argument("--folder", help="in place of COLLAPSE_DATA or ~/.cache/collapse-book")
    options = parser.parse_args(arguments)
    folder = data_folder(options.folder)
    if options.command == "list":
        for name in NAMES:
            absent = _absent(name, folder)
            place = f"absent: no {absent}" if absent else "inside scikit-learn" if name == "digits" else f"in {folder}"
            print(f"{name:<15} {place}")
        return 0
    status = 0
    try:
        for name in options.names:
            if _known(name) not in DOWNLOADABLE:
                raise ValueError(f"{name} cannot be downloaded; {', '.join(DOWNLOADABLE)} can")
        for name in options.names or DOWNLOADABLE:
            try:
                print(f"{name}: {'downloaded into' if fetch(name, folder) else 'already in'} {folder}", flush=True)
            except OSError as error:  # another set may lie there already, or on another server
                print(f"error: {error}", file=sys.stderr)
                status = 1
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    raise SystemExit(main())
