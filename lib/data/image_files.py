r"""The files of the image sets: where they lie, whether they are whole, how they are fetched and read.

`python -m lib.data.image_files fetch` downloads sets (`make data` calls it), `list` says which are in the data folder,
the one that the environment variable COLLAPSE_DATA names, otherwise `~/.cache/collapse-book`.

A reader's own set takes one of these forms:

- a folder `train/<class>/*` and `test/<class>/*` of PNG or JPEG files, all of one size,
- a folder `<class>/*` of such files, which is then split,
- an `.npz` file with `x`, `y` and optionally `x_test`, `y_test` (without them, it is split): x is uint8 or
  floating point of shape (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3, y holds the labels 0 ... K-1. Where
  both the second and the last axis could hold the channels, the last one does.

The classes of a folder are ordered by name, and the images of a class by file name (by code point); the classes
contribute images in turn. A set that has to be split gives every fifth image of each class, beginning with the
second, to the test set.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import math
import os
import socket
import sys
import tempfile
import urllib.error
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.book.kernel.notes import note
from lib.checks import one_of
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

#: Numbers of training and test images of `cifar10-jpeg75`, which has no checksums.
JPEG75_SIZES = (50_000, 10_000)

_TEN = tuple("0123456789")
_SUFFIXES = (".png", ".jpg", ".jpeg")
_PATIENCE = 60  # seconds: a server that is silent for longer counts as no network


class Raw(NamedTuple):
    """Images as they are stored, (N, C, H, W), or their files, (N,); labels (N,); names of the classes."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]


def data_folder() -> Path:
    """The folder that the environment variable COLLAPSE_DATA names, else `~/.cache/collapse-book`."""
    return Path(os.path.expanduser(os.environ.get("COLLAPSE_DATA") or "~/.cache/collapse-book"))


def plain(name: str) -> str:
    r"""The name of a set or a class for a figure, where dollar signs would otherwise make a formula of it.

    >>> plain("$x$") == r"\$x\$"
    True
    """
    return name.replace("$", r"\$")


# Presence and checksums -------------------------------------------------------------------------------------------


def _files(name: str, folder: Path) -> dict[Path, str]:
    """The files of a set (for `cifar10-jpeg75`, its folders) and their MD5 sums, empty where there is none."""
    sets, place, entries = torchvision.datasets, ".", []
    if name == "cifar10":
        meta = (sets.CIFAR10.meta["filename"], sets.CIFAR10.meta["md5"])
        place, entries = sets.CIFAR10.base_folder, [*sets.CIFAR10.train_list, *sets.CIFAR10.test_list, meta]
    elif name == "svhn":
        place, entries = name, [sets.SVHN.split_list[split][1:] for split in ("train", "test")]
    elif name == "cifar10-jpeg75":
        place, entries = "CIFAR10-jpeg75", [("train", ""), ("test", "")]
    elif name == "digits":
        place, entries = Path(find_spec("sklearn").origin).parent / "datasets" / "data", [("digits.csv.gz", "")]
    elif name in MD5:
        place, entries = {"mnist": "MNIST/raw", "fashion_mnist": "FashionMNIST/raw"}[name], MD5[name].items()
    return {folder / place / file: md5 for file, md5 in entries}


def absent(name: str, folder: Path) -> Path | None:
    """The first file or folder of the set that is missing, or None where none is."""
    return next((path for path in _files(name, folder) if not path.exists()), None)


def _verify(name: str, folder: Path) -> None:
    """FileNotFoundError for an absent set, ValueError for a damaged file."""
    lacking = absent(name, folder)
    if lacking:
        where = f"{name} is not there: no {lacking.name} in {lacking.parent}. Another folder is named by COLLAPSE_DATA"
        remedy = "downloads the set" if name in DOWNLOADABLE else "fetches the original, this set has no download"
        raise FileNotFoundError(f"{where}; `make data DATA={name.partition('-')[0]}` {remedy}")
    for path, md5 in _files(name, folder).items():
        if md5 and (found := _md5(path)) != md5:
            remedy = f"`make data DATA={name}` replaces it"
            raise ValueError(f"{path} is damaged: its MD5 checksum is {found} and should be {md5}; {remedy}")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def note_files(name: str, source: Path, raw: Raw) -> None:
    r"""Tell the build which set is loaded: the number of its files and their checksum, taken once per process.

    The checksum is the SHA-256 of names and contents: for each file, in the order of the names, its name, \0, and the
    SHA-256 of its contents.
    """
    if "COLLAPSE_NOTES" not in os.environ:
        return
    if raw.x.ndim == 1:
        named = {Path(file).relative_to(source).as_posix(): file for file in (*raw.x, *raw.x_test)}
    else:
        named = {path.name: path for path in (_files(name, source) or [source])}
    note("data", name=name, files=len(named), sha256=_checksum(tuple(sorted(named.items()))))


@cache
def _checksum(named: tuple[tuple[str, str | Path], ...]) -> str:
    digest = hashlib.sha256()
    for name, path in named:
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(Path(path).read_bytes()).digest())
    return digest.hexdigest()


# Fetching ---------------------------------------------------------------------------------------------------------


def fetch(name: str) -> bool:
    """Download a set into the data folder unless it is there undamaged; damaged files stay until good ones arrive.

    Returns whether anything was downloaded; progress goes to the standard error stream. Raises ValueError for a set
    that has no download, ConnectionError without a network.
    """
    one_of(DOWNLOADABLE, name=name)
    folder = data_folder()
    lacking = [path for path, md5 in _files(name, folder).items() if not (path.is_file() and _md5(path) == md5)]
    if not lacking:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as fresh:
        _download(name, Path(fresh), folder)
        _verify(name, Path(fresh))
        for path in lacking:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh / path.relative_to(folder), path)
    return True


def _download(name: str, fresh: Path, folder: Path) -> None:
    """Download a set into the empty folder `fresh`, on its way to `folder`."""
    sets = torchvision.datasets
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        if name == "cifar10":
            kind = sets.CIFAR10
            sets.utils.download_and_extract_archive(
                kind.url, fresh, filename=kind.filename, md5=kind.tgz_md5, remove_finished=True
            )
        elif name == "svhn":
            for split in ("train", "test"):
                url, filename, md5 = sets.SVHN.split_list[split]
                sets.utils.download_url(url, fresh / "svhn", filename, md5)
        else:
            {"mnist": sets.MNIST, "fashion_mnist": sets.FashionMNIST}[name](fresh, download=True)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, RuntimeError) as error:
        reason = f"no network, or a server that does not answer ({' '.join(str(error).split())})"
        raise ConnectionError(f"{name} could not be downloaded into {folder}: {reason}") from error
    finally:
        socket.setdefaulttimeout(before)


# Reading ----------------------------------------------------------------------------------------------------------


def read(name: str, folder: Path) -> Raw:
    """A set of the book, its files verified before anything in them is interpreted.

    FileNotFoundError says what is absent and how to get it; ValueError names a file that is damaged or incomplete.
    """
    _verify(name, folder)
    sets = torchvision.datasets
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return _split((digits.images[:, None] / 16).astype(np.float32), digits.target, _TEN)
    if name == "cifar10-jpeg75":
        raw = _read_folder(folder / "CIFAR10-jpeg75")
        sizes = (len(raw.x), len(raw.x_test))
        if sizes != JPEG75_SIZES:
            raise ValueError(f"{folder / 'CIFAR10-jpeg75'} is incomplete: it holds {sizes} of {JPEG75_SIZES} images")
        return raw
    if name == "cifar10":
        train, test = sets.CIFAR10(folder, train=True), sets.CIFAR10(folder, train=False)
        x, x_test = (half.data.transpose(0, 3, 1, 2) for half in (train, test))
        return Raw(x, np.array(train.targets), x_test, np.array(test.targets), tuple(train.classes))
    if name == "svhn":
        train, test = (sets.SVHN(folder / "svhn", split=split) for split in ("train", "test"))
        return Raw(train.data, train.labels, test.data, test.labels, _TEN)
    # The files are read one by one: torchvision's classes prefer an old `processed` folder, which has no checksums.
    paths = {path.name.partition("-idx")[0]: path for path in _files(name, folder)}
    x, x_test = (sets.mnist.read_image_file(paths[f"{half}-images"]).numpy()[:, None] for half in ("train", "t10k"))
    y, y_test = (sets.mnist.read_label_file(paths[f"{half}-labels"]).numpy() for half in ("train", "t10k"))
    return Raw(x, y, x_test, y_test, _TEN if name == "mnist" else tuple(sets.FashionMNIST.classes))


def read_own(path: Path) -> Raw:
    """The reader's own images, in the forms described at the top of this module. Raises ValueError for other forms."""
    return _read_folder(path) if path.is_dir() else _read_npz(path)


def _read_folder(folder: Path) -> Raw:
    """`train/<class>/*` and `test/<class>/*`, or `<class>/*`, which is split."""
    halves = [folder / half for half in ("train", "test") if (folder / half).is_dir()]
    if len(halves) == 1:
        raise ValueError(f"{folder} has a folder {halves[0].name!r} and needs both 'train' and 'test', or neither")
    if not halves:
        return _split(*_listed(folder))
    (x, y, classes), (x_test, y_test, test_classes) = map(_listed, halves)
    if classes != test_classes:
        odd = ", ".join(sorted({*classes} ^ {*test_classes}))
        raise ValueError(f"{folder}: 'train' and 'test' need the same classes; only one of them has {odd}")
    return Raw(x, y, x_test, y_test, classes)


def _listed(folder: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The image files in the class folders, from each class in turn; their labels; the classes."""
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        raise ValueError(f"{folder} has {len(classes)} folders; at least 2 are needed, one for each class")
    files = []
    for label, name in enumerate(classes):
        if not name.isprintable():  # this includes a name that is not UTF-8
            raise ValueError(f"class {name!r} in {folder} has a name that cannot be printed; the folder needs another")
        names = sorted(entry.name for entry in os.scandir(folder / name) if not entry.name.startswith("."))
        names = [file for file in names if file.lower().endswith(_SUFFIXES)]
        if not names:
            raise ValueError(f"class {name!r} is empty: {folder / name} holds no file {', '.join(_SUFFIXES)}")
        files += [(turn, label, os.path.join(folder, name, file)) for turn, file in enumerate(names)]
    _, labels, paths = zip(*sorted(files), strict=True)
    return np.array(paths), np.array(labels), tuple(classes)


def decoded(files: Sequence[str]) -> np.ndarray:
    """The images, (N, C, H, W) uint8, with C = 1 when all files are grey and 3 otherwise.

    Raises ValueError for a file that is not a PNG or JPEG image, whatever its name, for images of more than one size,
    and for images too many or too large to fit into memory.
    """
    from PIL import Image

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    images, first = [], None
    for file in files:
        try:
            with Image.open(file, formats=("PNG", "JPEG")) as image:
                first = first or image.size
                if image.size != first:
                    raise ValueError(f"it has {image.size} pixels and {files[0]} {first}; all images need one size")
                if (needed := 4 * len(files) * math.prod(first)) > memory:
                    raise ValueError(f"all images take {needed >> 30:,} GiB, and this machine has {memory >> 30:,}")
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"its pixels are of type {image.mode}; 8 bits per channel are needed")
                images.append(np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")))
        except Exception as error:  # Pillow has many
            raise ValueError(f"{file} cannot be read as an image of the set (PNG or JPEG): {error}") from error
    if all(image.ndim == 2 for image in images):
        return np.stack(images)[:, None]
    return np.stack([image if image.ndim == 3 else np.dstack([image] * 3) for image in images]).transpose(0, 3, 1, 2)


def _read_npz(path: Path) -> Raw:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("x", "y", "x_test", "y_test") if name in file}
    except Exception as error:  # numpy, zipfile and zlib raise many kinds
        raise ValueError(f"{path} cannot be read as an .npz file of numbers: {error}") from error
    if set(arrays) not in ({"x", "y"}, {"x", "y", "x_test", "y_test"}):
        raise ValueError(f"{path} has {', '.join(arrays)}; x and y are needed, and x_test with y_test or neither")
    K = len(np.unique(arrays["y"]))
    for half in ("", "_test")[: len(arrays) // 2]:
        x, y = _channels_first(f"x{half} of {path}", arrays[f"x{half}"]), arrays[f"y{half}"]
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            found = f"shape {y.shape} and type {y.dtype}"
            raise ValueError(f"y{half} of {path} has {found}; one integer for each image is needed")
        if K < 2 or not np.array_equal(np.unique(y), np.arange(K)):
            raise ValueError(f"y{half} of {path} holds {np.unique(y)}; it has to hold 0 ... K-1, with K at least 2")
        arrays |= {f"x{half}": x, f"y{half}": y.astype(np.int64)}
    classes = tuple(map(str, range(K)))
    if len(arrays) == 2:
        return _split(arrays["x"], arrays["y"], classes)
    raw = Raw(**arrays, classes=classes)
    if raw.x.shape[1:] != raw.x_test.shape[1:] or raw.x.dtype != raw.x_test.dtype:
        raise ValueError(f"x and x_test of {path} differ in the shape or the type of their images")
    return raw


def _channels_first(what: str, x: np.ndarray) -> np.ndarray:
    found = f"shape {x.shape} and type {x.dtype}"
    if x.dtype.kind == "f":
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise ValueError(f"{what} holds numbers that are not finite in float32")
    elif x.dtype != np.uint8:
        raise ValueError(f"{what} has {found}; uint8 or floating point numbers are needed")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or x.size == 0:
        raise ValueError(f"{what} has {found}; (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 is needed")
    return x


def _split(images: np.ndarray, y: np.ndarray, classes: tuple[str, ...]) -> Raw:
    """Every fifth image of each class, beginning with the second, goes to the test set."""
    test = np.zeros(len(y), dtype=bool)
    for label, name in enumerate(classes):
        rows = np.flatnonzero(y == label)
        if len(rows) < 2:
            raise ValueError(f"class {name!r} has {len(rows)} image; at least 2 are needed to split off a test set")
        test[rows[1::5]] = True
    return Raw(images[~test], y[~test], images[test], y[test], classes)


# The command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `fetch`, for the named sets or all, or the command `list`; return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the image sets, or list which of them lie in the data folder.")
    parser.add_argument("command", choices=("fetch", "list"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DOWNLOADABLE)}; all by default")
    options = parser.parse_args(arguments)
    folder, status = data_folder(), 0
    if options.command == "list":
        for name in NAMES:
            lacking = absent(name, folder)
            print(f"{name:<15} {f'absent: no {lacking}' if lacking else f'in {folder}'}")
        return status
    for name in options.names or DOWNLOADABLE:
        try:
            print(f"{name}: {'downloaded into' if fetch(name) else 'already in'} {folder}", flush=True)
        except (OSError, ValueError) as error:  # another set may be there already, or on another server
            print(f"error: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
