"""The image sets: genuine file formats, normalisation, subsets, and what is said when something is wrong.

The files are made here, small, in the formats of the originals; checksums and addresses are patched to theirs.
"""

import gzip
import hashlib
import http.server
import json
import os
import pickle
import struct
import tarfile
import threading
import urllib.error
from functools import partial

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lib.book import inputs
from lib.data import image_files, image_sets
from lib.data.image_files import fetch
from lib.data.image_sets import load, resolve
from lib.data.vision import torchvision

CIFAR10, SVHN = torchvision.datasets.CIFAR10, torchvision.datasets.SVHN


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    """The IDX format: 0, 0, the type (8: unsigned bytes), the number of dimensions, the sizes, the values."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The data folder, empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("COLLAPSE_DATA", str(folder))
    return folder


@pytest.fixture
def mnist(data, monkeypatch):
    """The arrays in MNIST's files, which hold 30 training and 20 test images; the files lie in the data folder."""
    raw = data / "MNIST" / "raw"
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
    return arrays


@pytest.fixture
def cifar10(data, monkeypatch):
    """The array of the 20 training images in CIFAR-10's pickles, six with 4 images each."""
    folder = data / "cifar-10-batches-py"
    folder.mkdir()
    pixels, labels = random_images(24, 3072), (np.arange(24) % 2).tolist()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for i, name in enumerate(names):
        rows = slice(4 * i, 4 * i + 4)
        (folder / name).write_bytes(pickle.dumps({"data": pixels[rows], "labels": labels[rows]}, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane", "automobile"]}, protocol=2))
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(folder / name)] for name in names[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(folder / "test_batch")]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(folder / "batches.meta")})
    return pixels.reshape(24, 3, 32, 32)[:20]


@pytest.fixture
def svhn(data, monkeypatch):
    """SVHN's two MATLAB files of 20 and 10 images, in which the digit 0 has the label 10."""
    (data / "svhn").mkdir()
    split_list = {}
    for split, n in (("train", 20), ("test", 10)):
        path = data / "svhn" / f"{split}_32x32.mat"
        labels = (np.arange(n) % 10 + 1)[:, None].astype(np.uint8)
        scipy.io.savemat(path, {"X": random_images(32, 32, 3, n), "y": labels})
        split_list[split] = [f"http://localhost/{path.name}", path.name, md5(path)]
    monkeypatch.setattr(SVHN, "split_list", split_list)


def write_folder(folder, per_class, shape=(6, 7, 3), suffix=".png", **options):
    """`<class>/<number>.png` with random pixels; per_class maps the class to the number of images."""
    for seed, (name, n) in enumerate(per_class.items()):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = random_images(*shape, seed=1000 * seed + i)
            Image.fromarray(pixels).save(folder / name / f"{i:04d}{suffix}", **options)
    return folder


def npz(folder, **arrays):
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


def pixels(images, half="x"):
    """What the files hold, 0 ... 255, from the normalised images."""
    return (getattr(images, half) * images.std[:, None, None] + images.mean[:, None, None]) * 255


def same(found, expected):
    torch.testing.assert_close(found, torch.as_tensor(np.ascontiguousarray(expected)).float(), atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A function that writes a set of 1 x 1 images with these labels, whose only pixel tells them apart."""

    def write(y):
        x = np.arange(len(y), dtype=np.uint8).reshape(-1, 1, 1)
        return npz(tmp_path_factory.mktemp("numbered"), x=x, y=y, x_test=x, y_test=y)

    return write


def drawn(images, half="x"):
    """Which images of a numbered set these are."""
    return pixels(images, half).flatten().round().int().tolist()


# The formats ------------------------------------------------------------------------------------------------------


def test_mnist_is_read_from_its_idx_files(mnist):
    found = load("mnist")
    assert (found.x.shape, found.x.dtype, found.y.dtype) == ((30, 1, 28, 28), torch.float32, torch.int64)
    same(pixels(found), mnist["train-images-idx3-ubyte"][:, None])
    assert found.y.tolist() == mnist["train-labels-idx1-ubyte"].tolist()
    assert found.y_test.tolist() == mnist["t10k-labels-idx1-ubyte"].tolist()
    assert found.classes == tuple("0123456789")


def test_cifar10_is_read_from_its_pickles(cifar10):
    found = load("cifar10")
    same(pixels(found), cifar10)
    assert (found.y.tolist(), found.y_test.tolist()) == ([0, 1] * 10, [0, 1, 0, 1])
    assert found.classes == ("airplane", "automobile")


def test_svhn_is_read_from_its_matlab_files_and_its_label_ten_is_the_digit_zero(svhn):
    found = load("svhn")
    same(pixels(found), random_images(32, 32, 3, 20).transpose(3, 2, 0, 1))
    assert found.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2
    assert found.x_test.shape == (10, 3, 32, 32)


def test_cifar10_jpeg75_is_read_from_its_folders_and_says_that_it_is_a_stand_in(data, monkeypatch):
    folder = data / "CIFAR10-jpeg75"
    for half, n in (("train", 3), ("test", 2)):
        write_folder(folder / half, {"cat": n, "airplane": n}, (32, 32, 3), ".jpg", quality=75)
    with pytest.raises(ValueError, match=r"CIFAR10-jpeg75 is incomplete: it holds \(6, 4\) of \(50000, 10000\)"):
        load("cifar10-jpeg75")
    monkeypatch.setattr(image_files, "JPEG75_SIZES", (6, 4))
    found = load("cifar10-jpeg75")
    assert (found.name, found.classes) == ("cifar10-jpeg75", ("airplane", "cat"))
    assert (found.x.shape, found.x_test.shape) == ((6, 3, 32, 32), (4, 3, 32, 32))
    with Image.open(folder / "train" / "cat" / "0001.jpg") as image:
        same(pixels(found)[3], np.array(image).transpose(2, 0, 1))
    assert "lossy stand-in" in str(found)


def test_digits_need_no_file():
    found = load("digits")
    assert (found.K, found.x.shape[1:], len(found.x) + len(found.x_test)) == (10, (1, 8, 8), 1797)
    share = torch.bincount(found.y_test) / (torch.bincount(found.y) + torch.bincount(found.y_test))
    torch.testing.assert_close(share, torch.full((10,), 0.2), atol=0.01, rtol=0)


# The reader's own images ------------------------------------------------------------------------------------------


def test_a_folder_without_halves_gives_every_fifth_image_of_each_class_to_the_test_set(tmp_path):
    found = load(str(write_folder(tmp_path / "pictures", {"b": 12, "a": 7})))
    assert (found.name, found.classes) == ("pictures", ("a", "b"))
    assert torch.bincount(found.y).tolist() == [5, 9]
    assert torch.bincount(found.y_test).tolist() == [2, 3]
    same(pixels(found, "x_test")[found.y_test == 0][0], random_images(6, 7, 3, seed=1001).transpose(2, 0, 1))


def test_a_folder_of_the_reader_never_passes_for_a_set_of_the_book(tmp_path):
    found = load(write_folder(tmp_path / "mnist", {"a": 2, "b": 2}))
    assert found.name == "folder mnist" and str(found).startswith("the images of folder mnist: 2 classes")


def test_the_classes_of_a_folder_take_turns(tmp_path):
    own = write_folder(tmp_path / "own", {"train/a": 3, "train/b": 2, "test/a": 1, "test/b": 1})
    assert load(own).y.tolist() == [0, 1, 0, 1, 0]


def test_grey_files_give_one_channel_and_a_mixture_three(tmp_path):
    own = write_folder(tmp_path / "own", {"a": 2, "b": 2}, shape=(6, 7))
    assert load(own).x.shape[1] == 1
    write_folder(own, {"c": 2}, shape=(6, 7, 3))
    assert load(own).x.shape[1] == 3


@pytest.mark.parametrize(("shape", "order"), [((6, 7), None), ((6, 7, 3), (0, 3, 1, 2)), ((3, 6, 7), None)])
@pytest.mark.parametrize("kind", [np.uint8, np.float64, ">f4"])
def test_an_npz_file_holds_images_in_any_usual_order(tmp_path, shape, order, kind):
    x, y = random_images(8, *shape), np.arange(8) % 2
    stored = x if kind == np.uint8 else (x / 255).astype(kind)
    found = load(npz(tmp_path, x=stored, y=y, x_test=stored[:4], y_test=y[:4], about="of no use"))
    same(pixels(found), x.transpose(order) if order else x.reshape(8, -1, 6, 7))
    assert (found.y.tolist(), found.y_test.tolist(), found.classes) == (y.tolist(), y[:4].tolist(), ("0", "1"))


# Normalisation ----------------------------------------------------------------------------------------------------


def test_training_images_have_mean_zero_and_deviation_one_in_every_channel_also_in_a_subset(cifar10):
    full = load("cifar10")
    for found in (full, full.subset(3, seed=5)):
        channels = found.x.double().transpose(0, 1).flatten(1)
        torch.testing.assert_close(channels.mean(dim=1), torch.zeros(3).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(channels.std(dim=1, correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)


def test_test_images_are_normalised_like_training_images_and_classes_are_renumbered_in_both(tmp_path):
    x, y = random_images(8, 5, 5), np.arange(8) % 2
    found = load(npz(tmp_path, x=x, y=y, x_test=x, y_test=y), classes=[1, 0], at_most=(2, None))
    assert found.y_test.tolist() == (1 - y).tolist()
    same(pixels(found, "x_test"), x[:, None])


def test_a_constant_channel_becomes_zero(tmp_path):
    x = random_images(20, 5, 5, 3)
    x[..., 1] = 77
    found = load(npz(tmp_path, x=x, y=np.arange(20) % 2))
    assert (found.x[:, 1] == 0).all() and found.std[1] == 1
    assert (torch.bincount(found.y).tolist(), torch.bincount(found.y_test).tolist()) == ([8, 8], [2, 2]), "it is split"


# Subsets ----------------------------------------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_the_chosen_classes_come_in_the_given_order_with_as_many_images_of_each(numbered, data):
    K = data.draw(st.integers(2, 6))
    per_class = data.draw(st.integers(1, 4))
    y = data.draw(st.permutations(list(range(K)) * data.draw(st.integers(per_class, 6))))
    chosen = data.draw(st.lists(st.integers(0, K - 1), min_size=2, max_size=K, unique=True))
    seed = data.draw(st.integers(0, 2**32))
    found = load(numbered(y), classes=chosen, at_most=(per_class, None), seed=seed)
    assert found.classes == tuple(map(str, chosen))
    assert torch.bincount(found.y).tolist() == [per_class] * len(chosen)
    rows = drawn(found)
    assert rows == sorted(set(rows))  # none twice, in their order
    assert [chosen[new] for new in found.y.tolist()] == [y[row] for row in rows]


def test_what_is_drawn_depends_on_seed_and_class_and_half_alone_and_a_larger_draw_contains_a_smaller_one(numbered):
    path = numbered([0, 1, 2] * 20)
    few, more, other = (load(path, at_most=(n, n), seed=seed) for n, seed in ((4, 1), (5, 1), (4, 2)))
    assert set(drawn(few)) < set(drawn(more))
    assert drawn(few) != drawn(few, "x_test") and drawn(few) != drawn(other)
    two = load(path, classes=["2", "0"], at_most=(4, 4), seed=1)
    assert [row for row in drawn(few) if row % 3 != 1] == drawn(two)
    assert drawn(load(path).subset(4, seed=1)) == drawn(few)
    assert drawn(load(numbered([0, 1] * 50), at_most=(3, None))) == [18, 21, 49, 58, 64, 95], "on every machine"


def test_images_that_are_not_chosen_are_not_decoded(tmp_path):
    own = write_folder(tmp_path / "own", {"a": 4, "b": 4, "c": 4})
    for path in (own / "b").iterdir():
        path.write_bytes(b"no image")
    assert load(own, classes=["c", "a"]).classes == ("c", "a")


@pytest.mark.parametrize(
    ("name", "value"),
    [("at_most", (0, 1)), ("at_most", (1, 2.5)), ("seed", -1), ("classes", [0, 3]), ("classes", ["0", 0]),
     ("classes", ["0"])],
)  # fmt: skip
def test_an_impossible_subset_is_refused(numbered, name, value):
    with pytest.raises(ValueError, match="per_class" if name == "at_most" else name):
        load(numbered([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]), **{name: value})


def test_at_most_so_many_are_as_many_as_the_smallest_class_has_and_small_sets_may_stay_whole(tmp_path, mnist):
    own = write_folder(tmp_path / "own", {"train/a": 3, "train/b": 5, "test/a": 3, "test/b": 5})
    for at_most, sizes in (((2, 1), (4, 2)), ((9, 4), (6, 6)), ((None, 1), (8, 2))):
        found = load(own, at_most=at_most)
        assert (len(found.x), len(found.x_test)) == sizes
    assert len(load(own, at_most=(2, 2), whole=True).x) == 8
    assert len(load("mnist", at_most=(2, 1), whole=True).x) == 20, "which is no small set"


def test_large_images_are_averaged_over_squares_and_small_ones_stay_as_they_are(mnist):
    found, full = load("mnist", pooled=2), load("mnist")
    assert found.x.shape == (30, 1, 14, 14) and found.x_test.shape == (20, 1, 14, 14)
    torch.testing.assert_close(found.x[0, 0, 3, 5], full.x[0, 0, 6:8, 10:12].mean())
    assert load("digits", pooled=4).x.shape[2:] == (8, 8)


def test_a_set_moves_to_a_device_as_a_whole():
    moved = load("digits").to("meta")
    assert {getattr(moved, name).device.type for name in ("x", "y", "x_test", "y_test", "mean", "std")} == {"meta"}


# Names ------------------------------------------------------------------------------------------------------------


def test_auto_is_the_real_set_where_all_of_it_lies_else_its_stand_in_else_the_digits(data, mnist, cifar10):
    assert (resolve("auto", "mnist"), resolve("auto", "cifar10")) == ("mnist", "cifar10")
    assert resolve("auto", "svhn") == "digits"
    (data / "cifar-10-batches-py" / "data_batch_3").unlink()
    assert resolve("auto", "cifar10") == "digits"
    for half in ("train", "test"):
        (data / "CIFAR10-jpeg75" / half).mkdir(parents=True)
    assert resolve("auto", "cifar10") == "cifar10-jpeg75"


def test_an_explicit_name_or_path_is_kept(tmp_path):
    assert resolve("svhn", "mnist") == "svhn"
    assert resolve(str(tmp_path), "mnist") == str(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere.npz"):
        resolve(str(tmp_path / "nowhere.npz"), "mnist")


def test_an_unknown_name_gives_the_known_ones():
    for call in (load, fetch, partial(resolve, wanted="mnist"), partial(resolve, "auto")):
        with pytest.raises(ValueError, match="'fashion-mnist': one of 'mnist'.*did you mean 'fashion_mnist'"):
            call("fashion-mnist")


def test_the_data_folder_is_the_one_that_the_build_looks_at_and_reading_leaves_it_alone(data, mnist, monkeypatch):
    before = inputs.fingerprint(str(inputs.data_folder()))
    load("mnist")
    assert inputs.fingerprint(str(inputs.data_folder())) == before
    monkeypatch.setenv("HOME", str(data.parent))
    monkeypatch.setenv("COLLAPSE_DATA", f"~/{data.name}")
    assert image_files.data_folder() == data and inputs.fingerprint(str(inputs.data_folder())) == before
    monkeypatch.delenv("COLLAPSE_DATA")
    assert image_files.data_folder() == data.parent / ".cache" / "collapse-book"


# What a build is told ---------------------------------------------------------------------------------------------


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """The facts that this process has noted so far."""
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    return lambda: [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]


def checksum(folder, *names):
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def test_a_set_of_the_book_is_noted_with_a_checksum_of_its_files(data, mnist, noted):
    load("mnist", at_most=(1, 1))
    expected = checksum(data / "MNIST" / "raw", *sorted(mnist))
    assert noted() == [{"kind": "data", "name": "mnist", "files": 4, "sha256": expected}]


def test_images_of_the_readers_are_noted_by_name_and_content_not_by_place(tmp_path, noted, monkeypatch):
    for place in ("here", "there"):
        write_folder(tmp_path / place / "own", {"a": 2, "b": 2})
        npz(tmp_path / place, x=random_images(4, 5, 5), y=[0, 1, 0, 1])
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


# Absent and damaged files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn", "cifar10-jpeg75"])
def test_an_absent_set_is_reported_with_file_place_and_remedy(data, name):
    file = image_files.absent(name, data)
    with pytest.raises(FileNotFoundError, match=f"no {file.name} in {file.parent}.*COLLAPSE_DATA.*make data DATA="):
        load(name)


def test_a_damaged_file_is_reported_with_both_checksums_before_it_is_opened(data, cifar10):
    path = data / "cifar-10-batches-py" / "data_batch_2"
    expected = md5(path)
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=f"data_batch_2 is damaged: .* {md5(path)} .* {expected}"):
        load("cifar10")


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        ({}, "0 folders"),
        ({"a": 3, "b": 0, "c": 3}, "class 'b'"),
        ({"a": 1, "b": 4}, "class 'a'"),
        ({"two\nlines": 2, "b": 2}, "'two.nlines' in .* cannot be printed"),
        ({"no \udcff UTF-8": 2, "b": 2}, "cannot be printed"),
        ({"train/a": 2, "train/b": 2}, "'test'"),
        ({"train/a": 2, "train/b": 2, "test/a": 2, "test/c": 2}, "b, c"),
    ],
)
def test_a_folder_that_is_no_image_set_is_refused(tmp_path, folders, named):
    (tmp_path / "own").mkdir()
    with pytest.raises(ValueError, match=named):
        load(write_folder(tmp_path / "own", folders))


ODD = {
    "another size": lambda path: Image.fromarray(random_images(5, 7, 3)).save(path),
    "half a file": lambda path: path.write_bytes(path.with_stem("0001").read_bytes()[:60]),
    "16 bits": lambda path: Image.fromarray(np.zeros((6, 7), np.uint16)).save(path),
    "neither PNG nor JPEG": lambda path: Image.fromarray(random_images(6, 7, 3)).save(path, "EPS"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_file_that_is_no_image_of_the_set_is_named(tmp_path, make):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 2})
    make(own / "b" / "0002.png")
    with pytest.raises(ValueError, match="b/0002.png"):
        load(own)


def test_pictures_that_do_not_fit_into_memory_together_are_refused(tmp_path, monkeypatch):
    own = write_folder(tmp_path / "own", {"a": 3, "b": 3})
    monkeypatch.setattr(os, "sysconf", lambda name: 15)
    with pytest.raises(ValueError, match="a/0000.png .* GiB"):
        load(own)


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
        {"y": np.array([0, 0, 2, 2])},
        {"y": np.array([None] * 4)},  # would have to be unpickled
        {"x_test": np.zeros((2, 5, 6), np.uint8), "y_test": np.array([0, 1])},
    ],
)
def test_a_damaged_npz_file_is_refused(tmp_path, change):
    arrays = {"x": random_images(4, 5, 5), "y": np.array([0, 1, 0, 1]), **change}
    own = npz(tmp_path, **{key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match="own.npz") as refused:
        load(own)
    assert any(name in str(refused.value) for name in change) or "cannot be read" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and nothing", b"text"])
def test_a_file_that_is_no_npz_file_is_refused(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(ValueError, match="own.npz cannot be read"):
        load(tmp_path / "own.npz")


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


@pytest.mark.parametrize("name", image_files.DOWNLOADABLE)
def test_without_a_network_a_download_says_so_and_what_is_damaged_stays(data, monkeypatch, name):
    def refuse(*_, **__):
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    for path in image_files._files(name, data):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"damaged")
    before = sorted(data.rglob("*"))
    with pytest.raises(ConnectionError, match=f"{name} could not be downloaded.*no network.*name resolution"):
        fetch(name)
    assert sorted(data.rglob("*")) == before


def test_mnist_is_downloaded_once_and_a_damaged_file_is_replaced(data, mnist, server, monkeypatch):
    served, address = server
    resources = []
    for path in (data / "MNIST" / "raw").iterdir():
        (served / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        resources.append((f"{path.name}.gz", md5(served / f"{path.name}.gz")))
        path.unlink()
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [address])
    assert fetch("mnist")
    assert not fetch("mnist")
    (data / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(b"")
    assert fetch("mnist")
    assert load("mnist").y.tolist() == mnist["train-labels-idx1-ubyte"].tolist()


def test_cifar10_is_downloaded_and_its_archive_removed(data, cifar10, server, monkeypatch):
    served, address = server
    with tarfile.open(served / CIFAR10.filename, "w:gz") as archive:
        archive.add(data / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "url", address + CIFAR10.filename)
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(served / CIFAR10.filename))
    (data / "cifar-10-batches-py" / "batches.meta").unlink()
    assert fetch("cifar10")
    same(pixels(load("cifar10")), cifar10)
    assert [path.name for path in data.iterdir()] == ["cifar-10-batches-py"]


def test_svhn_is_downloaded_and_a_wrong_file_from_the_server_is_refused(data, svhn, server, monkeypatch, capsys):
    served, address = server
    split_list = {split: [address + name, name, checksum] for split, (_, name, checksum) in SVHN.split_list.items()}
    monkeypatch.setattr(SVHN, "split_list", split_list)
    for path in (data / "svhn").iterdir():
        path.rename(served / path.name)
    assert image_files.main(["fetch", "svhn"]) == 0
    assert "svhn: downloaded" in capsys.readouterr().out
    for path in (served / "test_32x32.mat", data / "svhn" / "test_32x32.mat"):
        path.write_bytes(b"something else")
    assert image_files.main(["fetch", "svhn"]) == 1
    assert "svhn could not be downloaded" in capsys.readouterr().err


def test_auto_downloads_a_set_that_is_absent_where_it_is_asked_to(data, mnist, monkeypatch):
    fetched = []

    def fake(name):
        fetched.append(name)
        (data / "elsewhere").rename(data / "MNIST")

    monkeypatch.setattr(image_files, "fetch", fake)
    monkeypatch.setattr(image_sets, "_refused", set())
    (data / "MNIST").rename(data / "elsewhere")
    assert resolve("digits", "mnist", download=True) == "digits"
    assert resolve("auto", "digits", download=True) == "digits"
    assert resolve("auto", "mnist") == "digits" and fetched == []
    assert resolve("auto", "mnist", download=True) == "mnist"
    assert resolve("auto", "mnist", download=True) == "mnist" and fetched == ["mnist"]


@pytest.mark.parametrize("error", [PermissionError("read-only"), ValueError("damaged")])
def test_where_a_download_fails_auto_says_so_once_and_is_the_stand_in(monkeypatch, capsys, error):
    def fail(name):
        raise error

    monkeypatch.setattr(image_files, "fetch", fail)
    monkeypatch.setattr(image_sets, "_refused", set())
    for _ in range(2):
        assert resolve("auto", "cifar10", download=True) == "digits"
    assert capsys.readouterr().out == f"the stand-in for CIFAR-10 is used: {error}\n"


def test_the_command_line_lists_what_lies_where_and_refuses_what_it_cannot_fetch(data, mnist, capsys):
    assert image_files.main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == set(image_files.NAMES)
    assert str(data) in lines["mnist"] and "absent" in lines["svhn"]
    assert image_files.main(["fetch", "mnist", "cifar10-jpeg75"]) == 1
    assert "cifar10-jpeg75" in capsys.readouterr().err
