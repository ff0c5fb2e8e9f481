r"""The files of the image sets: where they lie, whether they are whole, how they are fetched and read.

`python -m lib.data.image_files fetch` downloads sets (`make data` calls it), `list` says which are in the data folder,
the one that the environment variable COLLAPSE_DATA names, otherwise `~/.cache/collapse-book`.

A reader's own set takes one of these forms:

- a folder `train/<class>/*` and `test/<class>/*` of images of one size, in a format that Pillow reads,
- a folder `<class>/*` of such files, which is then split,
- an `.npz` file with `x`, `y` and optionally `x_test`, `y_test` (without them, it is split): x has the shape
  (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 and holds bytes or floating point, y holds the labels
  0 ... K-1. Where both the second and the last axis could hold the channels, the last one does.

The classes of a folder are ordered by name, and the images of a class by file name (by code point); the classes
contribute images in turn. A set that has to be split gives every fifth image of each class, beginning with the
second, to the test set.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import socket
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lib import checks
from lib.book.kernel.notes import data_folder, note
from lib.data.vision import torchvision

#: What each set, by name, is called in a sentence.
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

_CIFAR10, _SVHN = torchvision.datasets.CIFAR10, torchvision.datasets.SVHN
_META = _CIFAR10.meta["filename"], _CIFAR10.meta["md5"]
# Where in the data folder the files of each set lie (of `cifar10-jpeg75`, its folders), with their MD5 sums, empty
# for none. Those of MNIST are here because torchvision only checks the archives that it downloads, not what it reads.
FILES = {
    "mnist": {
        "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "FashionMNIST/raw/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "FashionMNIST/raw/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "FashionMNIST/raw/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "FashionMNIST/raw/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    "cifar10": {
        f"{_CIFAR10.base_folder}/{file}": md5 for file, md5 in (*_CIFAR10.train_list, *_CIFAR10.test_list, _META)
    },
    "svhn": {f"svhn/{file}": md5 for _, file, md5 in (_SVHN.split_list["train"], _SVHN.split_list["test"])},
    "cifar10-jpeg75": {"CIFAR10-jpeg75/train": "", "CIFAR10-jpeg75/test": ""},
    "digits": {f"{Path(find_spec('sklearn').origin).parent}/datasets/data/digits.csv.gz": ""},
}
#: Numbers of training and test images of `cifar10-jpeg75`, which has no checksums.
JPEG75_SIZES = (50_000, 10_000)

_TEN = tuple("0123456789")


class Raw(NamedTuple):
    """Images as they are stored, (N, C, H, W), or their files, (N,); labels (N,); names of the classes."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]


def plain(name: str) -> str:
    r"""The name of a set or a class for a figure, where dollar signs would otherwise make a formula of it.

    >>> plain("$x$") == r"\$x\$"
    True
    """
    return name.replace("$", r"\$")


# Presence and checksums -------------------------------------------------------------------------------------------


def _paths(name: str) -> list[Path]:
    return [data_folder() / file for file in FILES[name]]


def absent(name: str) -> Path | None:
    """The first file or folder that a set of the book lacks in the data folder, or None where it lacks none."""
    return next((path for path in _paths(name) if not path.exists()), None)


def _verify(name: str) -> None:
    """FileNotFoundError for an absent set, ValueError for a damaged file."""
    if lacking := absent(name):
        remedy = f"`make data DATA={name}` downloads it" if name in DOWNLOADABLE else "it has no download"
        where = f"no {lacking.name} in {lacking.parent}"
        raise FileNotFoundError(f"{name} is not there: {where}. COLLAPSE_DATA names another folder; {remedy}")
    for path, md5 in zip(_paths(name), FILES[name].values(), strict=True):
        if md5 and (found := torchvision.datasets.utils.calculate_md5(path)) != md5:
            remedy = f"delete {path.parent}, and `make data DATA={name}` downloads it anew"
            raise ValueError(f"{path} is damaged: its MD5 checksum is {found} and should be {md5}; {remedy}")


def note_files(name: str, source: Path, raw: Raw) -> None:
    r"""Tell the build which set is loaded: the number of its files and their checksum, taken once per process.

    The checksum is the SHA-256 of names and contents: for each file, in the order of the names, its name, \0, and the
    SHA-256 of its contents. Names of images are relative to the folder `source`.
    """
    if "COLLAPSE_NOTES" not in os.environ:
        return
    if raw.x.ndim == 1:
        named = {Path(file).relative_to(source).as_posix(): file for file in (*raw.x, *raw.x_test)}
    else:
        named = {path.name: path for path in (_paths(name) if name in NAMES else [source])}
    note("data", name=name, files=len(named), sha256=_checksum(tuple(sorted(named.items()))))


@cache
def _checksum(named: tuple[tuple[str, str | Path], ...]) -> str:
    digest = hashlib.sha256()
    for name, path in named:
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()


# Fetching ---------------------------------------------------------------------------------------------------------


def fetch(name: str) -> None:
    """Download a set into the data folder, with torchvision, if a file of it is absent, and verify its files.

    Progress goes to the standard error stream. Raises OSError without a network or the right to write, and ValueError
    for a set that has no download and for a damaged file.
    """
    checks.one_of(DOWNLOADABLE, name=name)
    if absent(name):
        try:
            _download(name)
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            what = f"{name} could not be downloaded into {data_folder()}"
            reason = " ".join(str(error).split())  # torchvision's has many lines
            raise OSError(f"{what} (is there a network?): {reason}") from error
    _verify(name)


def _download(name: str) -> None:
    if name == "svhn":
        for split in ("train", "test"):
            _SVHN(data_folder() / "svhn", split, download=True)
    else:
        sets = torchvision.datasets
        kind = {"mnist": sets.MNIST, "fashion_mnist": sets.FashionMNIST, "cifar10": sets.CIFAR10}[name]
        kind(data_folder(), download=True)


# Reading ----------------------------------------------------------------------------------------------------------


def read(name: str) -> Raw:
    """A set of the book, its files verified before anything in them is interpreted.

    A process reads files again only when they have changed, or after other sets: leave the arrays as they are.
    FileNotFoundError says what is absent and how to get it; ValueError names a file that is damaged or incomplete.
    """
    paths = [] if absent(name) else _paths(name)
    return _read(name, tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=2)  # a set of colour images takes hundreds of megabytes
def _read(name: str, files: tuple[tuple[Path, int], ...]) -> Raw:
    """The set from these files, last changed at these times."""
    _verify(name)
    folder = data_folder()
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return _split((digits.images[:, None] / 16).astype(np.float32), digits.target, _TEN)
    if name == "cifar10-jpeg75":
        raw = read_own(folder / "CIFAR10-jpeg75")
        sizes = (len(raw.x), len(raw.x_test))
        if sizes != JPEG75_SIZES:
            raise ValueError(f"{folder / 'CIFAR10-jpeg75'} is incomplete: it holds {sizes} of {JPEG75_SIZES} images")
        return raw
    if name == "cifar10":
        train, test = _CIFAR10(folder, train=True), _CIFAR10(folder, train=False)
        x, x_test = train.data.transpose(0, 3, 1, 2), test.data.transpose(0, 3, 1, 2)
        return Raw(x, np.array(train.targets), x_test, np.array(test.targets), tuple(train.classes))
    if name == "svhn":
        train, test = _SVHN(folder / "svhn", "train"), _SVHN(folder / "svhn", "test")
        return Raw(train.data, train.labels, test.data, test.labels, _TEN)
    # The files are read one by one: torchvision's classes prefer an old `processed` folder, which has no checksums.
    mnist = torchvision.datasets.mnist
    x, y, x_test, y_test = [mnist.read_sn3_pascalvincent_tensor(path).numpy() for path in _paths(name)]
    return Raw(x[:, None], y, x_test[:, None], y_test, _TEN if name == "mnist" else tuple(mnist.FashionMNIST.classes))


def read_own(path: Path) -> Raw:
    """The reader's own images, in the forms described at the top of this module.

    Raises ValueError for arrays that are no images and labels, and for halves that do not match; what is missing in a
    folder or a file is the error of ``torchvision.datasets.ImageFolder`` or of ``numpy.load``.
    """
    if path.is_dir():
        names = ("train", "test") if (path / "train").is_dir() else ("",)
        halves = [_listed(path / name) for name in names]
    else:
        with np.load(path) as file:
            names = ("", "_test") if "x_test" in file else ("",)
            halves = [_stored(file[f"x{name}"], file[f"y{name}"]) for name in names]
    x, y, classes = halves[0]
    if len(halves) == 1:
        return _split(x, y, classes)
    x_test, y_test, test_classes = halves[1]
    if (classes, x.dtype, x.shape[1:]) != (test_classes, x_test.dtype, x_test.shape[1:]):
        raise ValueError(f"{path}: training and test images need the same classes, type and shape")
    return Raw(x, y, x_test, y_test, classes)


def _listed(folder: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The image files in the class folders, from each class in turn; their labels; the classes."""
    found = torchvision.datasets.ImageFolder(folder)
    files, y = np.array([file for file, _ in found.samples], dtype=object), np.array(found.targets)
    turn = np.concatenate([np.arange(count) for count in np.bincount(y)])  # place in its class
    order = np.lexsort((y, turn))
    return files[order], y[order], tuple(found.classes)


def _stored(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Stored images as (N, C, H, W), their labels, and these as names of the classes."""
    found = f"x has shape {x.shape} and type {x.dtype}"
    if not (x.dtype == np.uint8 or x.dtype.kind == "f" and np.isfinite(x).all()):
        raise ValueError(f"{found}; uint8 or finite floating point numbers are needed")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise ValueError(f"{found}; (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 is needed")
    checks.labels(torch.from_numpy(y), len(x))
    return x, y, tuple(str(label) for label in range(y.max() + 1))


def _split(x: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Raw:
    """Every fifth image of each class, beginning with the second, is for the test."""
    test = np.zeros(len(y), dtype=bool)
    for label, name in enumerate(classes):
        rows = np.flatnonzero(y == label)
        if len(rows) < 2:
            raise ValueError(f"class {name!r} has {len(rows)} image; at least 2 are needed to split off a test set")
        test[rows[1::5]] = True
    return Raw(x[~test], y[~test], x[test], y[test], classes)


def decoded(files: Sequence[str]) -> np.ndarray:
    """The images, (N, C, H, W) uint8, with C = 1 when all of them are grey and 3 otherwise.

    Raises ValueError for a file that Pillow cannot read, pixels of more than 8 bits, and images of several sizes.
    """
    from PIL import Image

    images = []
    for file in files:
        try:
            with Image.open(file) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"its pixels are of type {image.mode}; 8 bits per channel are needed")
                images.append(np.asarray(image.convert("RGB")))
        except Exception as error:  # Pillow has many
            raise ValueError(f"{file}: {error}") from error
    if len(sizes := {image.shape[:2] for image in images}) > 1:
        raise ValueError(f"images of one size are needed, not of {sorted(sizes)} pixels as in {Path(files[0]).parent}")
    x = np.stack(images).transpose(0, 3, 1, 2)
    return x[:, :1] if (x == x[:, :1]).all() else x


# The command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `fetch`, for the named sets or all, or the command `list`; return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the image sets, or list which of them lie in the data folder.")
    parser.add_argument("command", choices=("fetch", "list"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DOWNLOADABLE)}; all by default")
    options = parser.parse_args(arguments)
    if options.command == "list":
        for name in NAMES:
            lacking = absent(name)
            print(f"{name:<15} {f'absent: no {lacking}' if lacking else f'in {data_folder()}'}")
        return 0
    socket.setdefaulttimeout(60)  # a server that is silent for longer counts as no network
    status = 0
    for name in options.names or DOWNLOADABLE:
        try:
            fetch(name)
            print(f"{name}: in {data_folder()}", flush=True)
        except (OSError, ValueError) as error:  # another set may be there already, or on another server
            print(f"error: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
