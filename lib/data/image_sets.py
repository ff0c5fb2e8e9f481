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
Reading changes nothing in it, and nothing is downloaded unasked: `make data` downloads, and so does the book in its
`paper` profile. A build is told which files a chapter has read, with a checksum.

In place of a name, :func:`load` and :func:`resolve` take the path of the reader's own images, absolute or relative
to the working directory: a folder or an `.npz` file as :mod:`lib.data.image_files` describes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lib import checks
from lib.book.kernel.notes import data_folder
from lib.data import image_files
from lib.data.image_files import DOWNLOADABLE, NAMES, TITLES

#: What "auto" prefers to the digits, see :func:`resolve`.
STAND_INS = {"cifar10": "cifar10-jpeg75"}
#: Sets of which a reduced profile takes a part; it takes the digits, and the reader's own, whole.
LARGE = tuple(name for name in NAMES if name != "digits")

_TRAIN, _TEST = 0, 1  # one seed, independent streams for both halves and every class


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    r"""Training and test images as two tensors on one device, normalised per channel.

    .. math:: x = (\text{pixel} - \mathtt{mean}_c) / \mathtt{std}_c

    with mean and standard deviation of channel c over the training images of *this* set, which then have mean 0 and
    standard deviation 1 in every channel, also in a subset. A constant channel has its standard deviation set to 1.
    Pixels are measured in units of the largest value that the format can hold, so that they lie in [0, 1]; those of
    the reader's floating-point arrays are taken as they are.

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

    def __post_init__(self):
        # a grey image is in both memory orders at once, and PyTorch may take a whole network for channels-last; then
        # oneDNN's backward pass of narrow convolutions writes where it should not (torch 2.13, processors with AVX2)
        for half in ("x", "x_test"):
            images = getattr(self, half)
            object.__setattr__(self, half, images.reshape(-1).view(images.shape))

    @property
    def K(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set with all tensors on `device`, as :meth:`torch.Tensor.to`."""
        fields = ("x", "y", "x_test", "y_test", "mean", "std")
        return replace(self, **{name: getattr(self, name).to(device) for name in fields})

    def subset(self, per_class: int, seed: int = 0) -> ImageSet:
        """The same set with `per_class` training images of each class, drawn without replacement, and all test images.

        Where the smallest class has fewer, each class gives that many. The images keep their order. Which ones are
        drawn from a class depends on the seed and that class alone, and a larger draw contains a smaller one. Raises
        ValueError for a number that is not positive.
        """
        rows, y = _drawn(self.y.cpu().numpy(), range(self.K), per_class, seed, _TRAIN)
        device = self.x.device
        x, x_test, mean, std = _normalised(self.x[rows.to(device)], self.x_test.clone())
        mean, std = self.mean + self.std * mean, self.std * std
        return replace(self, x=x, y=y.to(device), x_test=x_test, mean=mean, std=std)

    def pooled(self, side: int) -> ImageSet:
        """The same set with images averaged over `side` x `side` pixels; those under 28 pixels wide stay as they are.

        Mean and standard deviation of the channels remain those of the original pixels.
        """
        checks.positive_integers(side=side)
        if side == 1 or self.x.shape[-1] < 28:
            return self
        return replace(self, x=F.avg_pool2d(self.x, side), x_test=F.avg_pool2d(self.x_test, side))

    def __repr__(self) -> str:
        height, width = self.x.shape[2:]
        colour = "grey" if self.x.shape[1] == 1 else "colour"
        return (
            f"{TITLES.get(self.name, f'the images of {self.name}')}: {self.K} classes, {len(self.x):,} training and "
            f"{len(self.x_test):,} test images of {height} × {width} {colour} pixels"
        )


def load(
    dataset: str | os.PathLike,
    *,
    classes: Sequence[str | int] | None = None,
    at_most: tuple[int | None, int | None] = (None, None),
    whole: bool = False,
    pooled: int = 1,
    seed: int = 0,
) -> ImageSet:
    """The image set of that name, or the reader's own from a path, on the CPU.

    `classes`: names or labels of at least two classes, all by default; they become 0 ... K-1 in this order. `at_most`:
    how many training and test images of each class at most, drawn as by :meth:`ImageSet.subset`; None takes all. With
    `whole=True` only the sets of `LARGE` are cut; small ones and the reader's own are taken whole. Images that are not
    chosen are not decoded. `pooled` is the side for :meth:`ImageSet.pooled`. A folder of the reader's that has the name
    of a set of the book, say `mnist`, is called `folder mnist`.

    Raises ValueError for an unknown name, a damaged file (with both checksums), an unknown class or fewer than two, an
    empty class or images of several sizes; FileNotFoundError for an absent set.

    >>> load("digits", at_most=(20, 5), pooled=4)
    the handwritten digits that come with scikit-learn: 10 classes, 200 training and 50 test images of 8 × 8 grey pixels
    """
    _must_exist(dataset)
    if dataset in NAMES:
        name, source = dataset, data_folder()
        raw = image_files.read(name)
    else:
        source = Path(dataset).expanduser()
        name, raw = source.resolve().name, image_files.read_own(source)
        if name in NAMES:  # a name of the book is a promise of what lies behind it
            name = f"folder {name}"
    image_files.note_files(name, source, raw)
    labels = _labels(classes, raw.classes)
    if whole and name not in LARGE:
        at_most = (None, None)
    train, y = _drawn(raw.y, labels, at_most[0], seed, _TRAIN)
    test, y_test = _drawn(raw.y_test, labels, at_most[1], seed, _TEST)
    x, x_test = raw.x[train.numpy()], raw.x_test[test.numpy()]
    if x.ndim == 1:  # files, decoded in one go: all have to be of one size
        x, x_test = np.split(image_files.decoded([*x, *x_test]), [len(x)])
    x, x_test, mean, std = _normalised(_unit(x), _unit(x_test))
    found = ImageSet(name, x, y, x_test, y_test, tuple(raw.classes[label] for label in labels), mean, std)
    return found.pooled(pooled)


def load_wanted(dataset: str | os.PathLike, wanted: str, profile: str, **options) -> ImageSet:
    """The images of a chapter that wants the set `wanted` and has the parameters `dataset` and `profile`.

    That is :func:`load`, with these options, of the set that :func:`resolve` chooses; in the `paper` profile, "auto"
    downloads the wanted set if it is absent. The field `name` says which set it has become. Raises what both raise.

    >>> load_wanted("digits", "mnist", "laptop", at_most=(20, 5)).name
    'digits'
    """
    return load(resolve(dataset, wanted, download=profile == "paper"), **options)


def resolve(dataset: str | os.PathLike, wanted: str, download: bool = False) -> str | os.PathLike:
    """The name of the set to load: what "auto" stands for, or `dataset` itself.

    "auto" is the set `wanted` by the chapter if all its files are in the data folder, else its stand-in (for
    `cifar10` this is `cifar10-jpeg75`) if that is there, else `digits`. Only the presence of files is checked. With
    `download=True`, "auto" first fetches the wanted set if it is absent; if that fails, one line says so, and the
    process does not try it again for this data folder.

    Raises ValueError for an unknown name and a path at which there is nothing.
    """
    checks.one_of(NAMES, wanted=wanted)
    if dataset != "auto":
        _must_exist(dataset)
        return dataset
    if download and wanted in DOWNLOADABLE and image_files.absent(wanted):
        _fetch_once(wanted, image_files.data_folder())
    candidates = (wanted, STAND_INS.get(wanted, "digits"), "digits")
    return next(name for name in candidates if not image_files.absent(name))


@cache
def _fetch_once(name: str, folder: Path) -> None:
    """Fetch a set into the data folder, which is `folder`: for another one it is tried again."""
    try:
        image_files.fetch(name)
    except (OSError, ValueError) as error:  # a read-only folder, a server that sends other files
        print(f"the stand-in for {TITLES[name]} is used: {error}")


def _must_exist(dataset: str | os.PathLike) -> None:
    """ValueError unless this is the name of a set of the book or a path at which there is something."""
    if dataset not in NAMES and not os.path.exists(os.path.expanduser(dataset)):
        known = f"{', '.join(map(repr, NAMES))} or the path of your own images is needed"
        raise ValueError(f"dataset = {str(dataset)!r}: {known}{checks.nearest(dataset, NAMES)}")


def _labels(classes: Sequence[str | int] | None, names: tuple[str, ...]) -> list[int]:
    """Labels of the chosen classes, which are given by name or by label."""
    classes = range(len(names)) if classes is None else classes
    labels = []
    for given in classes:
        checks.one_of((*names, *range(len(names))), classes=given)
        labels.append(names.index(given) if isinstance(given, str) else int(given))
    if len(set(labels)) < max(len(labels), 2):
        raise ValueError(f"classes = {list(classes)!r}; at least 2 different classes are needed")
    return labels


def _drawn(y: np.ndarray, labels: Sequence[int], most: int | None, seed: int, half: int) -> tuple[Tensor, Tensor]:
    """Indices of the drawn images, ascending, and their new labels."""
    checks.integers(0, seed=seed)
    rows = [np.flatnonzero(y == label) for label in labels]
    if most is not None:
        checks.positive_integers(per_class=most)
        most = min(most, *map(len, rows))
        for new, label in enumerate(labels):
            stream = np.random.SeedSequence(int(seed), spawn_key=(half, label))
            order = np.random.Generator(np.random.PCG64(stream)).permutation(len(rows[new]))
            rows[new] = rows[new][order[:most]]
    renumbered = np.repeat(np.arange(len(rows)), [len(of_class) for of_class in rows])
    rows = np.concatenate(rows)
    order = np.argsort(rows)
    return torch.from_numpy(rows[order]), torch.from_numpy(renumbered[order])


def _unit(x: np.ndarray) -> Tensor:
    """Pixels as float32: 0 ... 255 become 0 ... 1, floating point stays."""
    pixels = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    return pixels.div_(255) if x.dtype == np.uint8 else pixels


def _normalised(x: Tensor, x_test: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both halves (overwritten), and the mean and standard deviation per channel of the first."""
    std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
    std = torch.where(std > 0, std, 1)
    for half in (x, x_test):
        half.sub_(mean[:, None, None]).div_(std[:, None, None])
    return x, x_test, mean, std
