"""The image sets: genuine file formats, normalisation, subsets, and what is said when something is wrong.

The files are made here, small, in the formats of the originals; checksums and addresses are patched to theirs.
"""

import gzip
import hashlib
import html
import http.server
import json
import os
import pickle
import re
import struct
import tarfile
import threading
import urllib.error
import zipfile
import zlib
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image

from lib import figures
from lib.book import chapters, site
from lib.data import image_files, image_sets
from lib.data.image_files import fetch
from lib.data.image_sets import ImageSet, load, resolve
from lib.data.vision import torchvision
from lib.ledger import verdict

CIFAR10, SVHN = torchvision.datasets.CIFAR10, torchvision.datasets.SVHN


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    """The IDX format: 0, 0, the type (8: unsigned bytes), the number of dimensions, the sizes, the values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    """A folder with 30 training and 20 test images in MNIST's files, and the arrays in them."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    arrays = {
        "train-images-idx3-ubyte": random_images(30, 28, 28, seed=1),
        "train-labels-idx1-ubyte": np.arange(30)[::-1] % 10,
        "t10k-images-idx3-ubyte": random_images(20, 28, 28, seed=2),
        "t10k-labels-idx1-ubyte": np.arange(20) % 10,
    }
    for name, array in arrays.items():
        (raw / name).write_bytes(idx(array))
    monkeypatch.setitem(image_files.MD5, "mnist", {name: md5(raw / name) for name in arrays})
    return tmp_path, arrays


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    """A folder with 4 images in each of CIFAR-10's six pickles, and the array of the 20 training images."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data, labels = random_images(24, 3072), (np.arange(24) % 2).tolist()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        rows = slice(4 * i, 4 * i + 4)
        batch = {"batch_label": name, "data": data[rows], "labels": labels[rows], "filenames": [""] * 4}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {"label_names": ["airplane", "automobile"], "num_cases_per_batch": 4, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(folder / name)] for name in names[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(folder / "test_batch")]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(folder / "batches.meta")})
    return tmp_path, data.reshape(24, 3, 32, 32)[:20]


@pytest.fixture
def svhn(tmp_path, monkeypatch):
    """A folder with SVHN's two MATLAB files of 20 and 10 images, in which the digit 0 has the label 10."""
    (tmp_path / "svhn").mkdir()
    split_list = {}
    for split, n in (("train", 20), ("test", 10)):
        path = tmp_path / "svhn" / f"{split}_32x32.mat"
        scipy.io.savemat(
            path, {"X": random_images(32, 32, 3, n), "y": (np.arange(n) % 10 + 1)[:, None].astype(np.uint8)}
        )
        split_list[split] = [f"http://localhost/{path.name}", path.name, md5(path)]
    monkeypatch.setattr(SVHN, "split_list", split_list)
    return tmp_path


def write_folder(folder, per_class, shape=(6, 7, 3), suffix=".png", **options):
    """`<class>/<number>.png` with random pixels; per_class maps the class to the number of images."""
    for seed, (name, n) in enumerate(per_class.items()):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = random_images(*shape, seed=1000 * seed + i)
            Image.fromarray(pixels).save(folder / name / f"{i:04d}{suffix}", **options)
    return folder


def pixels(images):
    """What the files hold, 0 ... 255, from the normalised training images."""
    return images.x * images.std[:, None, None] * 255 + images.mean[:, None, None] * 255


def numbered(y, K, x=None):
    """An image set of 1 x 1 images whose only pixel tells them apart."""
    y = torch.as_tensor(y)
    x = torch.arange(len(y), dtype=torch.float32).reshape(-1, 1, 1, 1)
    names = tuple("abcdefghij"[:K])
    return ImageSet("numbered", x, y, x.clone(), y.clone(), names, torch.zeros(1), torch.ones(1))


def drawn(images):
    """Which images of a `numbered` set are in a subset of it."""
    return (images.x * images.std + images.mean).flatten().round().to(torch.int64).tolist()


# The formats ------------------------------------------------------------------------------------------------------


def test_mnist_is_read_from_its_idx_files(mnist):
    folder, arrays = mnist
    found = load("mnist", folder)
    assert (found.x.shape, found.x.dtype, found.y.dtype) == ((30, 1, 28, 28), torch.float32, torch.int64)
    expected = torch.from_numpy(arrays["train-images-idx3-ubyte"].astype(np.float32))[:, None]
    torch.testing.assert_close(pixels(found), expected, atol=1e-3, rtol=0)
    assert found.y.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    assert found.y_test.tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()
    assert found.classes == tuple("0123456789")
    assert str(found) == "MNIST: 10 classes, 30 training and 20 test images of 28 × 28 grey pixels"


def test_cifar10_is_read_from_its_pickles(cifar10):
    folder, data = cifar10
    found = load("cifar10", folder)
    torch.testing.assert_close(pixels(found), torch.from_numpy(data.astype(np.float32)), atol=1e-3, rtol=0)
    assert (found.y.tolist(), found.y_test.tolist()) == ([0, 1] * 10, [0, 1, 0, 1])
    assert found.classes == ("airplane", "automobile")


def test_svhn_is_read_from_its_matlab_files_and_its_label_ten_is_the_digit_zero(svhn):
    found = load("svhn", svhn)
    expected = torch.from_numpy(random_images(32, 32, 3, 20).transpose(3, 2, 0, 1).astype(np.float32))
    torch.testing.assert_close(pixels(found), expected, atol=1e-3, rtol=0)
    assert found.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2
    assert found.x_test.shape == (10, 3, 32, 32)


def test_cifar10_jpeg75_is_read_from_its_folders_and_says_that_it_is_a_stand_in(tmp_path, monkeypatch):
    for half, n in (("train", 3), ("test", 2)):
        write_folder(tmp_path / "CIFAR10-jpeg75" / half, {"cat": n, "airplane": n}, (32, 32, 3), ".jpg", quality=75)
    with pytest.raises(ValueError, match=r"CIFAR10-jpeg75 is incomplete: it holds \(6, 4\) of \(50000, 10000\)"):
        load("cifar10-jpeg75", tmp_path)
    monkeypatch.setattr(image_files, "JPEG75_SIZES", (6, 4))
    found = load("cifar10-jpeg75", tmp_path)
    assert (found.name, found.classes) == ("cifar10-jpeg75", ("airplane", "cat"))
    assert (found.x.shape, found.x_test.shape) == ((6, 3, 32, 32), (4, 3, 32, 32))
    with Image.open(tmp_path / "CIFAR10-jpeg75" / "train" / "cat" / "0001.jpg") as image:
        expected = torch.from_numpy(np.array(image).astype(np.float32)).permute(2, 0, 1)
    torch.testing.assert_close(pixels(found)[3], expected, atol=1e-3, rtol=0)
    assert "lossy stand-in" in str(found)


def test_digits_need_no_file(tmp_path):
    found = load("digits", tmp_path)
    assert (found.K, found.x.shape[1:], len(found.x) + len(found.x_test)) == (10, (1, 8, 8), 1797)
    share = torch.bincount(found.y_test) / (torch.bincount(found.y) + torch.bincount(found.y_test))
    torch.testing.assert_close(share, torch.full((10,), 0.2), atol=0.01, rtol=0)


# The reader's own images ------------------------------------------------------------------------------------------


def test_a_folder_without_halves_gives_every_fifth_image_of_each_class_to_the_test_set(tmp_path):
    folder = write_folder(tmp_path / "pictures", {"b": 12, "a": 7})
    found = load(str(folder))
    assert (found.name, found.classes) == ("pictures", ("a", "b"))
    assert torch.bincount(found.y).tolist() == [5, 9]
    assert torch.bincount(found.y_test).tolist() == [2, 3]
    second = torch.from_numpy(random_images(6, 7, 3, seed=1001).astype(np.float32)).permute(2, 0, 1)
    test_pixels = (found.x_test * found.std[:, None, None] + found.mean[:, None, None]) * 255
    torch.testing.assert_close(test_pixels[found.y_test == 0][0], second, atol=1e-3, rtol=0)


def test_a_folder_of_the_reader_never_passes_for_a_set_of_the_book(tmp_path):
    found = load(write_folder(tmp_path / "mnist", {"a": 2, "b": 2}))
    assert found.name == "folder mnist" and str(found).startswith("the images of folder mnist: 2 classes")


def test_the_classes_of_a_folder_take_turns(tmp_path):
    for half in ("train", "test"):
        write_folder(tmp_path / half, {"a": 3, "b": 2})
    assert load(tmp_path).y.tolist() == [0, 1, 0, 1, 0]


def test_grey_files_give_one_channel_and_a_mixture_three(tmp_path):
    write_folder(tmp_path / "grey", {"a": 2, "b": 2}, shape=(6, 7))
    assert load(tmp_path / "grey").x.shape[1] == 1
    write_folder(tmp_path / "mixed", {"a": 2}, shape=(6, 7))
    write_folder(tmp_path / "mixed", {"b": 2}, shape=(6, 7, 3))
    assert load(tmp_path / "mixed").x.shape[1] == 3


@pytest.mark.parametrize(("shape", "order"), [((6, 7), None), ((6, 7, 3), (0, 3, 1, 2)), ((3, 6, 7), None)])
@pytest.mark.parametrize("scale", ["uint8", "float"])
def test_an_npz_file_holds_images_in_any_usual_order(tmp_path, shape, order, scale):
    x = random_images(8, *shape)
    x = x if scale == "uint8" else (x / 255).astype(np.float64)
    y = np.arange(8) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
    found = load(tmp_path / "own.npz")
    expected = x.transpose(order) if order else x.reshape(8, -1, 6, 7)
    expected = torch.from_numpy(expected.astype(np.float32)) * (1 if scale == "uint8" else 255)
    torch.testing.assert_close(pixels(found), expected, atol=1e-3, rtol=0)
    assert (found.y.tolist(), found.y_test.tolist(), found.classes) == (y.tolist(), y[:4].tolist(), ("0", "1"))


@pytest.mark.parametrize("name", ["$x$", r"$\frac$", "$", "$a$b$", "a_b^c"])
def test_a_name_is_drawn_letter_by_letter(name):
    fig = plt.figure()
    shown, letters = fig.text(0, 0, image_files.plain(name)), fig.text(0, 0, name, parse_math=False)
    assert shown.get_window_extent().bounds == letters.get_window_extent().bounds
    plt.close(fig)


def cell_of(page, begin, **names):
    """The names after the one cell of a chapter that has this text, executed where these names are known."""
    (code,) = (cell.source for cell in chapters.Page(f"chapters/{page}").code if begin in cell.source)
    names |= {"figures": figures, "image_files": image_files, "image_sets": image_sets, "np": np}
    exec(code, names)
    return names


@pytest.fixture
def own(tmp_path):
    """A set of the reader's with three classes, whose names are no formulas."""
    return write_folder(tmp_path / "own", {"$x$": 2, r"$\frac$": 2, "$": 2})


def test_the_names_of_the_readers_classes_are_no_formulas_in_a_figure(own):
    points = np.ones((1, 1, 2, 2))
    runs = {"shape": np.array([["axes"]]), "test": points, "train": points, "changed": points[..., 0] > 0}
    first = load(own, classes=range(2))
    cell = cell_of(
        "memorization-dilation/experiments", "def draw_configuration",
        first=first, figure1={first.name: {"CE": runs}}, WORDS=("axes",),
    )  # fmt: skip
    cell["fig"].canvas.draw()  # which sets the formulas
    plt.close(cell["fig"])


def test_panels_of_more_classes_than_the_reader_has_are_left_out(own, capsys):
    made = cell_of(
        "memorization-dilation/experiments", "def made(",
        load=lambda wanted, N: load(own, classes=range(N)), runs_of=lambda *_, **__: "runs", dataset=str(own),
        settings={"levels_others": 1, "repetitions_others": 1}, first=load(own),
    )["made"]  # fmt: skip
    assert made("N = {N}", (3, 3), (5, 5)) == {"N = 3": "runs"}
    assert "N = 5: left out, for own has 3 classes" in capsys.readouterr().out


# Normalisation ----------------------------------------------------------------------------------------------------


def test_training_images_have_mean_zero_and_deviation_one_in_every_channel_also_in_a_subset(cifar10):
    full = load("cifar10", cifar10[0])
    for found in (full, full.subset(per_class=3, seed=5)):
        channels = found.x.double().transpose(0, 1).flatten(1)
        torch.testing.assert_close(channels.mean(dim=1), torch.zeros(3).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(channels.std(dim=1, correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)


def test_test_images_are_normalised_like_training_images(tmp_path):
    x = random_images(8, 5, 5)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(8) % 2, x_test=x, y_test=np.arange(8) % 2)
    found = load(tmp_path / "own.npz", classes=[1, 0], per_class=2)
    of_class = load(tmp_path / "own.npz").subset(classes=[1, 0]).y_test
    assert found.y_test.tolist() == of_class.tolist()
    test_pixels = (found.x_test[:, 0] * found.std + found.mean) * 255
    torch.testing.assert_close(test_pixels, torch.from_numpy(x.astype(np.float32)), atol=1e-3, rtol=0)


def test_a_constant_channel_becomes_zero(tmp_path):
    x = random_images(20, 5, 5, 3)
    x[..., 1] = 77
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(20) % 2)
    found = load(tmp_path / "own.npz")
    assert (found.x[:, 1] == 0).all() and found.std[1] == 1
    assert (torch.bincount(found.y).tolist(), torch.bincount(found.y_test).tolist()) == ([8, 8], [2, 2]), "it is split"


# Subsets ----------------------------------------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_a_subset_has_the_chosen_classes_in_the_given_order_and_as_many_images_of_each(data):
    K = data.draw(st.integers(2, 6))
    per_class = data.draw(st.integers(1, 4))
    y = data.draw(st.permutations(list(range(K)) * data.draw(st.integers(per_class, 6))))
    chosen = data.draw(st.lists(st.integers(0, K - 1), min_size=2, max_size=K, unique=True))
    seed = data.draw(st.integers(0, 2**32))
    found = numbered(y, K).subset(classes=chosen, per_class=per_class, seed=seed)
    assert found.classes == tuple("abcdefghij"[label] for label in chosen)
    assert torch.bincount(found.y).tolist() == [per_class] * len(chosen)
    rows = drawn(found)
    assert rows == sorted(set(rows))  # none twice, in their order
    assert [chosen[new] for new in found.y.tolist()] == [y[row] for row in rows]


@given(st.integers(0, 2**32), st.integers(1, 19))
@settings(deadline=None, max_examples=30)
def test_a_larger_draw_contains_a_smaller_one(seed, per_class):
    full = numbered([0, 1, 2] * 20, 3)
    smaller, larger = (full.subset(per_class=n, seed=seed) for n in (per_class, per_class + 1))
    assert set(drawn(smaller)) < set(drawn(larger))


def test_which_images_are_drawn_from_a_class_does_not_depend_on_the_other_classes():
    full = numbered([0, 1, 2] * 20, 3)
    three, two = full.subset(per_class=4, seed=1), full.subset(classes=["c", "a"], per_class=4, seed=1)
    assert [row for row in drawn(three) if row % 3 != 1] == drawn(two)


def test_a_seed_draws_the_same_images_on_every_machine():
    assert drawn(numbered([0, 1] * 50, 2).subset(per_class=3, seed=0)) == [18, 21, 49, 58, 64, 95]


def test_the_halves_are_drawn_independently():
    found = numbered([0, 1] * 50, 2).subset(per_class=5, test_per_class=5)
    assert len(found.x_test) == 10
    assert (found.x_test * found.std + found.mean).flatten().round().tolist() != drawn(found)


def test_load_chooses_what_subset_chooses_and_decodes_nothing_else(tmp_path):
    write_folder(tmp_path, {"a": 20, "b": 20, "c": 20})
    options = {"classes": ["c", "a"], "per_class": 3, "test_per_class": 2, "seed": 7}
    expected, found = load(tmp_path).subset(**options), load(tmp_path, **options)
    for name in ("x", "y", "x_test", "y_test", "mean", "std"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-5, rtol=1e-5)
    assert found.classes == expected.classes == ("c", "a")
    for path in (tmp_path / "b").iterdir():
        path.write_bytes(b"no image")
    assert load(tmp_path, **options).classes == ("c", "a")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("per_class", 4), ("per_class", 0), ("per_class", 2.5), ("test_per_class", 4), ("seed", -1),
        ("classes", ["a", "z"]), ("classes", [0, 3]), ("classes", ["a", 0]), ("classes", ["a"]),
    ],
)  # fmt: skip
def test_an_impossible_subset_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        numbered([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2], 3).subset(**{name: value})


def test_at_most_so_many_are_as_many_as_the_smallest_class_has_and_small_sets_may_stay_whole(tmp_path, mnist):
    for half in ("train", "test"):
        write_folder(tmp_path / "own" / half, {"a": 3, "b": 5})
    own = tmp_path / "own"
    for at_most, sizes in (((2, 1), (4, 2)), ((9, 4), (6, 6)), ((None, 1), (8, 2))):
        found = load(own, at_most=at_most)
        assert (len(found.x), len(found.x_test)) == sizes
    assert len(load(own, at_most=(2, 2), whole=True).x) == 8
    assert len(load("mnist", mnist[0], at_most=(2, 1), whole=True).x) == 20, "which is no small set"
    exactly = load(own, per_class=2, test_per_class=1, seed=3)
    assert torch.equal(load(own, at_most=(2, 1), seed=3).x, exactly.x)


def test_large_images_are_averaged_over_squares_and_small_ones_stay_as_they_are(mnist):
    found, full = load("mnist", mnist[0], pooled=2), load("mnist", mnist[0])
    assert found.x.shape == (30, 1, 14, 14) and found.x_test.shape == (20, 1, 14, 14)
    torch.testing.assert_close(found.x[0, 0, 3, 5], full.x[0, 0, 6:8, 10:12].mean())
    assert load("digits", pooled=4).x.shape[2:] == (8, 8)


def test_a_set_moves_to_a_device_as_a_whole():
    moved = numbered([0, 1], 2).to("meta")
    assert {getattr(moved, name).device.type for name in ("x", "y", "x_test", "y_test", "mean", "std")} == {"meta"}


# Names ------------------------------------------------------------------------------------------------------------


def test_auto_is_the_real_set_where_it_lies_else_its_stand_in_else_the_digits(tmp_path, mnist, cifar10):
    empty = tmp_path / "empty"
    for half in ("train", "test"):
        (tmp_path / "lossy" / "CIFAR10-jpeg75" / half).mkdir(parents=True)
    assert resolve("auto", "mnist", mnist[0]) == "mnist"
    assert resolve("auto", "mnist", empty) == "digits"
    assert resolve("auto", "cifar10", cifar10[0]) == "cifar10"
    assert resolve("auto", "cifar10", tmp_path / "lossy") == "cifar10-jpeg75"
    assert resolve("auto", "cifar10", empty) == "digits"
    (cifar10[0] / "cifar-10-batches-py" / "data_batch_3").unlink()
    assert resolve("auto", "cifar10", cifar10[0]) == "digits"


def test_an_explicit_name_or_path_is_kept(tmp_path):
    assert resolve("svhn", "mnist", tmp_path) == "svhn"
    assert resolve(str(tmp_path), "mnist") == str(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere.npz"):
        resolve(str(tmp_path / "nowhere.npz"), "mnist")


def test_an_unknown_name_gives_the_known_ones():
    for call in (load, fetch, partial(resolve, wanted="mnist"), partial(resolve, "auto")):
        with pytest.raises(ValueError, match="'fashion-mnist': one of 'mnist'.*did you mean 'fashion_mnist'"):
            call("fashion-mnist")


def test_the_original_sets_of_the_ledger_are_those_that_stand_in_for_none():
    assert set(verdict.ORIGINALS) == set(image_files.DOWNLOADABLE)


def test_the_data_folder_is_the_one_that_the_build_looks_at_and_reading_leaves_it_alone(mnist, monkeypatch):
    monkeypatch.setenv("COLLAPSE_DATA", str(mnist[0]))
    for half in ("train", "test"):
        write_folder(mnist[0] / "CIFAR10-jpeg75" / half, {"a": 2, "b": 2}, (32, 32, 3), ".jpg")
    monkeypatch.setattr(image_files, "JPEG75_SIZES", (4, 4))
    before = chapters.data_fingerprint()
    assert image_files.data_folder() == mnist[0]
    load("mnist")
    load("cifar10-jpeg75")
    assert chapters.data_fingerprint() == before
    monkeypatch.setenv("HOME", str(mnist[0].parent))
    monkeypatch.setenv("COLLAPSE_DATA", f"~/{mnist[0].name}")
    assert image_files.data_folder() == mnist[0] and chapters.data_fingerprint() == before
    monkeypatch.delenv("COLLAPSE_DATA")
    assert image_files.data_folder() == mnist[0].parent / ".cache" / "collapse-book"


# What a build is told ---------------------------------------------------------------------------------------------


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """The facts that this process has noted so far, which has loaded nothing yet."""
    monkeypatch.setattr(image_files, "_noted", {})
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    return lambda: [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]


def checksum(folder, *names):
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def test_a_set_of_the_book_is_noted_with_a_checksum_of_its_files(mnist, noted):
    load("mnist", mnist[0], per_class=1)
    expected = checksum(mnist[0] / "MNIST" / "raw", *sorted(mnist[1]))
    assert noted() == [{"kind": "data", "name": "mnist", "files": 4, "sha256": expected}]


def test_images_of_the_readers_are_noted_by_name_and_content_not_by_place(tmp_path, noted, monkeypatch):
    for place in ("here", "there"):
        write_folder(tmp_path / place / "own", {"a": 2, "b": 2})
        np.savez(tmp_path / place / "own.npz", x=random_images(4, 5, 5), y=[0, 1, 0, 1])
        for own in ("own", "own.npz"):
            load(tmp_path / place / own)
    monkeypatch.chdir(tmp_path / "here")
    load("./own")
    load("own.npz")
    first, second, *others = noted()
    assert others == [first, second] * 2
    names = ["a/0000.png", "a/0001.png", "b/0000.png", "b/0001.png"]
    expected = checksum(tmp_path / "here" / "own", *names)
    assert first == {"kind": "data", "name": "own", "files": 4, "sha256": expected}
    assert (second["name"], second["files"]) == ("own.npz", 1)
    (tmp_path / "there" / "own" / "a" / "0001.png").rename(tmp_path / "there" / "own" / "a" / "0002.png")
    image_files._noted.clear()
    load(tmp_path / "there" / "own")
    assert noted()[-1]["sha256"] != expected, "another name, or another content, is another set"


def test_a_file_whose_name_is_not_utf_8_is_read_and_noted(tmp_path, noted):
    folder = write_folder(tmp_path / "own", {"a": 2, "b": 2})
    (folder / "a" / "0000.png").rename(folder / "a" / os.fsdecode(b"\xff.png"))
    assert len(load(folder).x) == 2 and noted()[0]["files"] == 4


def test_the_files_of_a_set_are_read_for_their_checksum_once(noted, monkeypatch):
    load("digits")
    monkeypatch.setattr(image_files.Path, "read_bytes", None)
    load("digits", per_class=3)
    first, second = noted()
    assert first == second and (first["name"], first["files"]) == ("digits", 1)


@pytest.mark.parametrize("path", ["a`<img src=x>`b", "`", "``<b>", "two\n\n<b>lines</b>", "auto"])
def test_a_page_shows_the_path_of_its_images_as_it_is(monkeypatch, path):
    about = {"key": {"parameters": {"profile": "smoke", "dataset": path}}, "seconds": 1}
    monkeypatch.setattr(site, "noted", lambda page: about)
    page = MarkdownIt().render(site._run_note(chapters.Page("chapters/made"), []))
    assert f"dataset <code>{html.escape(' '.join(path.split()))}</code> in 1 s" in page


# Absent and damaged files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "train-images-idx3-ubyte in .*MNIST/raw"),
        ("cifar10", "data_batch_1 in .*cifar-10-batches-py"),
        ("svhn", "train_32x32.mat in .*svhn"),
        ("cifar10-jpeg75", "train in .*CIFAR10-jpeg75"),
    ],
)
def test_an_absent_set_is_reported_with_file_place_and_remedy(tmp_path, name, file):
    with pytest.raises(FileNotFoundError, match=f"no {file}.*COLLAPSE_DATA.*make data DATA="):
        load(name, tmp_path)


def test_a_damaged_file_is_reported_with_both_checksums(mnist):
    path = mnist[0] / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    expected = md5(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(ValueError, match=f"t10k-labels-idx1-ubyte is damaged: .* {md5(path)} .* {expected}"):
        load("mnist", mnist[0])


def test_a_damaged_pickle_is_reported_before_it_is_opened(cifar10):
    path = cifar10[0] / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match="data_batch_2 is damaged"):
        load("cifar10", cifar10[0])


def test_an_empty_class_is_named(tmp_path):
    write_folder(tmp_path, {"a": 3, "b": 0, "c": 3})
    with pytest.raises(ValueError, match="class 'b' is empty"):
        load(tmp_path)
    np.savez(tmp_path / "own.npz", x=random_images(4, 5, 5), y=np.array([0, 0, 2, 2]))
    with pytest.raises(ValueError, match="y of .*own.npz"):
        load(tmp_path / "own.npz")


def test_a_folder_that_is_no_image_set_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has 0 folders"):
        load(tmp_path)
    write_folder(tmp_path / "train", {"a": 2, "b": 2})
    with pytest.raises(ValueError, match="needs both 'train' and 'test'"):
        load(tmp_path)
    write_folder(tmp_path / "test", {"a": 2, "c": 2})
    with pytest.raises(ValueError, match="only one of them has b, c"):
        load(tmp_path)
    write_folder(tmp_path / "single", {"a": 1, "b": 4})
    with pytest.raises(ValueError, match="class 'a' has 1 image; at least 2"):
        load(tmp_path / "single")


@pytest.mark.parametrize("name", [os.fsdecode(b"\xff"), "two\nlines"])
def test_a_class_whose_name_cannot_be_printed_is_refused(tmp_path, name):
    write_folder(tmp_path, {name: 2, "b": 2})
    with pytest.raises(ValueError, match="class '.*' in .* cannot be printed"):
        load(tmp_path)


def test_beside_the_classes_a_loop_of_links_is_left_out_and_a_link_to_nothing_among_images_is_named(tmp_path):
    write_folder(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "loop").symlink_to("loop")
    assert load(tmp_path).classes == ("a", "b")
    (tmp_path / "b" / "0002.png").symlink_to("nothing")
    with pytest.raises(ValueError, match="b/0002.png cannot be read as an image"):
        load(tmp_path)


def test_a_file_of_another_size_or_without_an_image_is_named(tmp_path):
    write_folder(tmp_path, {"a": 3, "b": 3})
    odd = tmp_path / "b" / "0002.png"
    Image.fromarray(random_images(5, 7, 3)).save(odd)
    with pytest.raises(ValueError, match=r"b/0002.png has \(5, 7\) pixels and .*a/0000.png \(6, 7\)"):
        load(tmp_path)
    odd.write_bytes((tmp_path / "b" / "0001.png").read_bytes()[:60])
    with pytest.raises(ValueError, match="b/0002.png cannot be read as an image"):
        load(tmp_path)
    Image.fromarray(np.zeros((6, 7), np.uint16)).save(odd)
    with pytest.raises(ValueError, match="b/0002.png .* type I;16"):
        load(tmp_path)


@pytest.mark.parametrize(("kind", "suffix"), [("EPS", ".png"), ("GIF", ".jpg"), ("BMP", ".png"), ("TIFF", ".jpeg")])
def test_what_is_called_png_or_jpeg_and_is_neither_is_refused(tmp_path, kind, suffix):
    write_folder(tmp_path, {"a": 3, "b": 3})
    odd = tmp_path / "b" / f"0003{suffix}"
    Image.fromarray(random_images(6, 7, 3)).save(odd, kind)
    with pytest.raises(ValueError, match=rf"b/0003{suffix} cannot be read as an image \(PNG or JPEG\)"):
        load(tmp_path)


@pytest.mark.parametrize(("side", "reason"), [(9_000, r"has \(9000, 9000\) pixels"), (60_000, "cannot be read")])
def test_a_small_file_that_claims_to_be_a_huge_picture_is_refused_undecoded(tmp_path, side, reason):
    write_folder(tmp_path, {"a": 2, "b": 2})
    png = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IDAT"):
        png += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "b" / "0000.png").write_bytes(png)
    with pytest.raises(ValueError, match=f"b/0000.png {reason}"):
        load(tmp_path)


def test_pictures_that_do_not_fit_into_memory_together_are_refused(tmp_path, monkeypatch):
    write_folder(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setattr(os, "sysconf", lambda name: 15)
    with pytest.raises(ValueError, match="a/0000.png .* the set takes"):
        load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"x": None},
        {"x_test": np.zeros((1, 5, 5), np.uint8)},
        {"x": np.zeros((4, 5, 5), np.int64)},
        {"x": np.zeros((4, 5))},
        {"x": np.zeros((4, 5, 5, 2))},
        {"x": np.full((4, 5, 5), np.nan)},
        {"y": np.array([0, 1])},
        {"y": np.array([0.0, 1, 0, 1])},
        {"y": np.array([-1, 0, 1, 1])},
        {"y": np.array([0, 0, 0, 0])},
        {"y": np.array([0, 1, 0, 2**60])},
        {"y": np.array([None] * 4)},  # would have to be unpickled
        {"x_test": np.zeros((2, 5, 6), np.uint8), "y_test": np.array([0, 1])},
    ],
)
def test_a_damaged_npz_file_is_refused(tmp_path, change):
    arrays = {"x": random_images(4, 5, 5), "y": np.array([0, 1, 0, 1]), **change}
    np.savez(tmp_path / "own.npz", **{key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match="own.npz") as refused:
        load(tmp_path / "own.npz")
    assert any(name in str(refused.value) for name in change) or "cannot be read" in str(refused.value)


@pytest.mark.parametrize("bad", [1e300, -1e39, np.nan, np.inf])
def test_the_first_number_that_float32_cannot_hold_is_named_with_its_place(tmp_path, bad):
    x = np.zeros((4, 5, 6, 3))
    x[2, 3, 4, 1] = x[3, 0, 0, 0] = bad
    np.savez(tmp_path / "own.npz", x=x, y=np.array([0, 1, 0, 1]))
    with pytest.raises(ValueError, match=rf"x of .*own.npz holds {re.escape(str(bad))} at \(2, 3, 4, 1\)"):
        load(tmp_path / "own.npz")


@pytest.mark.parametrize("kind", [">f8", np.longdouble])
def test_floating_point_of_any_kind_is_read(tmp_path, kind):
    x = np.arange(100.0).reshape(4, 5, 5)
    for name, array in (("own", x.astype(kind)), ("usual", x)):
        np.savez(tmp_path / f"{name}.npz", x=array, y=np.array([0, 1, 0, 1]))
    assert torch.equal(load(tmp_path / "own.npz").x, load(tmp_path / "usual.npz").x)


def test_an_array_that_claims_more_than_the_memory_is_refused_before_memory_is_taken(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as file, file.open("x.npy", "w") as member:
        header = {"descr": "|u1", "fortran_order": False, "shape": (2**50,)}
        np.lib.format.write_array_header_1_0(member, header)
    with pytest.raises(ValueError, match="own.npz cannot be read .* takes [0-9,]+ GiB of memory"):
        load(tmp_path / "own.npz")


def test_a_file_that_is_no_npz_file_is_refused(tmp_path):
    for content in (b"", b"PK\x03\x04 and nothing", b"text"):
        (tmp_path / "own.npz").write_bytes(content)
        with pytest.raises(ValueError, match="own.npz cannot be read"):
            load(tmp_path / "own.npz")
    with pytest.raises(ValueError, match="cannot be read"):
        load(__file__)


# Downloads --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder whose files are served on this machine, and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.parametrize("name", image_files.DOWNLOADABLE)
def test_without_a_network_a_download_says_so(tmp_path, no_network, name):
    with pytest.raises(ConnectionError, match=f"{name} could not be downloaded.*no network.*name resolution"):
        fetch(name, tmp_path)


def test_mnist_is_downloaded_once_and_a_damaged_file_is_replaced(mnist, server, tmp_path, monkeypatch):
    served, address = server
    resources = []
    for path in (mnist[0] / "MNIST" / "raw").iterdir():
        (served / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        resources.append((f"{path.name}.gz", md5(served / f"{path.name}.gz")))
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [address])
    fresh = tmp_path / "fresh"
    assert fetch("mnist", fresh)
    assert not fetch("mnist", fresh)
    (fresh / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(b"")
    assert fetch("mnist", fresh)
    assert torch.equal(load("mnist", fresh).y, load("mnist", mnist[0]).y)


@pytest.mark.parametrize("name", image_files.DOWNLOADABLE)
def test_a_damaged_file_stays_until_a_good_one_is_there(tmp_path, no_network, name):
    for path in image_files._files(name, tmp_path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"damaged")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConnectionError):
        fetch(name, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_cifar10_is_downloaded_and_its_archive_removed(cifar10, server, tmp_path, monkeypatch):
    served, address = server
    with tarfile.open(served / CIFAR10.filename, "w:gz") as archive:
        archive.add(cifar10[0] / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "url", address + CIFAR10.filename)
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(served / CIFAR10.filename))
    fresh = tmp_path / "fresh"
    assert fetch("cifar10", fresh)
    (fresh / "cifar-10-batches-py" / "batches.meta").unlink()
    assert fetch("cifar10", fresh)
    assert torch.equal(load("cifar10", fresh).x, load("cifar10", cifar10[0]).x)
    assert [path.name for path in fresh.iterdir()] == ["cifar-10-batches-py"]


def test_svhn_is_downloaded_and_a_wrong_file_from_the_server_is_refused(svhn, server, tmp_path, monkeypatch, capsys):
    served, address = server
    split_list = {split: [address + name, name, checksum] for split, (_, name, checksum) in SVHN.split_list.items()}
    monkeypatch.setattr(SVHN, "split_list", split_list)
    for path in (svhn / "svhn").iterdir():
        (served / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "fresh"))
    assert image_files.main(["fetch", "svhn"]) == 0
    assert "svhn: downloaded" in capsys.readouterr().out
    (served / "test_32x32.mat").write_bytes(b"something else")
    monkeypatch.setenv("COLLAPSE_DATA", str(tmp_path / "other"))
    assert image_files.main(["fetch", "svhn"]) == 1
    assert "svhn could not be downloaded" in capsys.readouterr().err


def test_auto_downloads_a_set_that_is_absent_where_it_is_asked_to(mnist, monkeypatch, tmp_path):
    fetched = []

    def fake(name, folder):
        fetched.append(name)
        (folder / "MNIST" / "raw").mkdir(parents=True)
        for path in (mnist[0] / "MNIST" / "raw").iterdir():
            (folder / "MNIST" / "raw" / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(image_files, "fetch", fake)
    fresh = tmp_path / "fresh"
    assert resolve("digits", "mnist", fresh, download=True) == "digits"
    assert resolve("auto", "digits", fresh, download=True) == "digits"
    assert resolve("auto", "mnist", fresh) == "digits" and fetched == []
    assert resolve("auto", "mnist", fresh, download=True) == "mnist"
    assert resolve("auto", "mnist", fresh, download=True) == "mnist" and fetched == ["mnist"]


@pytest.mark.parametrize("error", [ConnectionError("no network"), PermissionError("read-only"), ValueError("damaged")])
def test_where_a_download_fails_auto_says_so_once_and_is_the_stand_in(tmp_path, monkeypatch, capsys, error):
    asked = []

    def fail(name, folder):
        asked.append(name)
        raise error

    monkeypatch.setattr(image_files, "fetch", fail)
    monkeypatch.setattr(image_sets, "_refused", set())
    for half in ("train", "test"):
        (tmp_path / "CIFAR10-jpeg75" / half).mkdir(parents=True)
    for _ in range(2):
        assert resolve("auto", "cifar10", tmp_path, download=True) == "cifar10-jpeg75"
    assert asked == ["cifar10"]
    assert capsys.readouterr().out == f"the stand-in for CIFAR-10 is used: {error}\n"


def test_the_command_line_lists_what_lies_where_and_refuses_what_it_cannot_fetch(mnist, capsys, monkeypatch):
    monkeypatch.setenv("COLLAPSE_DATA", str(mnist[0]))
    assert image_files.main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == set(image_files.NAMES)
    assert str(mnist[0]) in lines["mnist"] and "absent" in lines["svhn"]
    assert image_files.main(["fetch", "mnist", "cifar10-jpeg75"]) == 1
    assert "cifar10-jpeg75" in capsys.readouterr().err
