"""The image sets: genuine file formats, splits, normalisation, draws, downloads, and what is said of absent files.

The files are made here, small, in the formats of the originals; checksums and addresses are patched to theirs.
"""

import hashlib
import json
import os
import pickle
import struct
import urllib.error
from functools import partial

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lib.data import image_files
from lib.data.image_files import fetch
from lib.data.image_sets import load, load_wanted, resolve
from lib.data.vision import torchvision

CIFAR10, SVHN, MNIST = torchvision.datasets.CIFAR10, torchvision.datasets.SVHN, torchvision.datasets.MNIST


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The data folder, empty."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("COLLAPSE_DATA", str(folder))
    return folder


@pytest.fixture
def mnist(data, monkeypatch):
    """The arrays in MNIST's files, which hold 30 training and 20 test images; the files lie in the data folder.

    The IDX format is 0, 0, the type (8: unsigned bytes), the number of dimensions, the sizes, the values.
    """
    raw = data / "MNIST" / "raw"
    raw.mkdir(parents=True)
    arrays = {
        "train-images-idx3-ubyte": random_images(30, 28, 28, seed=1),
        "train-labels-idx1-ubyte": np.arange(30)[::-1] % 10,
        "t10k-images-idx3-ubyte": random_images(20, 28, 28, seed=2),
        "t10k-labels-idx1-ubyte": np.arange(20) % 10,
    }
    for name, array in arrays.items():
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (raw / name).write_bytes(head + array.astype(np.uint8).tobytes())
    monkeypatch.setitem(image_files.FILES, "mnist", {f"MNIST/raw/{name}": md5(raw / name) for name in arrays})
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
    sums = {file.name: md5(file) for file in folder.iterdir()}
    monkeypatch.setattr(CIFAR10, "train_list", [(name, sums[name]) for name in names[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [("test_batch", sums["test_batch"])])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    monkeypatch.setitem(image_files.FILES, "cifar10", {f"cifar-10-batches-py/{name}": sums[name] for name in sums})
    return pixels.reshape(24, 3, 32, 32)[:20]


def write_folder(folder, per_class, shape=(6, 7, 3), suffix=".png"):
    """`<class>/<number>.png` with random pixels; per_class maps the class to the number of images."""
    for seed, (name, n) in enumerate(per_class.items()):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = random_images(*shape, seed=1000 * seed + i)
            Image.fromarray(pixels).save(folder / name / f"{i:04d}{suffix}")
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


# The sets of the book ---------------------------------------------------------------------------------------------


def test_mnist_is_read_from_its_idx_files(mnist):
    found = load("mnist")
    assert (found.x.shape, found.x.dtype, found.y.dtype) == ((30, 1, 28, 28), torch.float32, torch.int64)
    same(pixels(found), mnist["train-images-idx3-ubyte"][:, None])
    same(pixels(found, "x_test"), mnist["t10k-images-idx3-ubyte"][:, None])
    assert found.y.tolist() == mnist["train-labels-idx1-ubyte"].tolist()
    assert found.y_test.tolist() == mnist["t10k-labels-idx1-ubyte"].tolist()


def test_cifar10_is_read_from_its_pickles(cifar10):
    found = load("cifar10")
    same(pixels(found), cifar10)
    assert (found.y.tolist(), found.y_test.tolist()) == ([0, 1] * 10, [0, 1, 0, 1])
    assert found.classes == ("airplane", "automobile")


def test_svhn_is_read_from_its_matlab_files_and_its_label_ten_is_the_digit_zero(data, monkeypatch):
    (data / "svhn").mkdir()
    for split, n in (("train", 20), ("test", 10)):
        file = f"svhn/{split}_32x32.mat"
        scipy.io.savemat(data / file, {"X": random_images(32, 32, 3, n), "y": (np.arange(n) % 10 + 1)[:, None]})
        monkeypatch.setitem(image_files.FILES["svhn"], file, md5(data / file))
        monkeypatch.setitem(SVHN.split_list, split, ["", f"{split}_32x32.mat", md5(data / file)])
    found = load("svhn")
    same(pixels(found), random_images(32, 32, 3, 20).transpose(3, 2, 0, 1))
    assert found.y.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0] * 2
    assert found.x_test.shape == (10, 3, 32, 32)


def test_cifar10_jpeg75_is_read_whole_or_refused_and_its_classes_take_turns(data, monkeypatch):
    folder = data / "CIFAR10-jpeg75"
    for half, n in (("train", 3), ("test", 2)):
        write_folder(folder / half, {"cat": n, "airplane": n}, (32, 32, 3), ".jpg")
    with pytest.raises(ValueError, match=r"CIFAR10-jpeg75 is incomplete: it holds \(6, 4\) of \(50000, 10000\)"):
        load("cifar10-jpeg75")
    monkeypatch.setattr(image_files, "JPEG75_SIZES", (6, 4))
    found = load("cifar10-jpeg75")
    assert (found.name, found.classes) == ("cifar10-jpeg75", ("airplane", "cat"))
    assert (found.y.tolist(), found.y_test.tolist()) == ([0, 1] * 3, [0, 1] * 2)
    with Image.open(folder / "train" / "cat" / "0001.jpg") as image:
        same(pixels(found)[3], np.array(image).transpose(2, 0, 1))


def test_a_fifth_of_the_digits_is_for_the_test():
    found = load("digits")
    assert (found.K, found.x.shape[1:], len(found.x) + len(found.x_test)) == (10, (1, 8, 8), 1797)
    share = torch.bincount(found.y_test) / (torch.bincount(found.y) + torch.bincount(found.y_test))
    torch.testing.assert_close(share, torch.full((10,), 0.2), atol=0.01, rtol=0)


# The reader's own images ------------------------------------------------------------------------------------------


def test_a_folder_without_halves_gives_every_fifth_image_of_each_class_to_the_test_set(tmp_path):
    found = load(str(write_folder(tmp_path / "pictures", {"b": 12, "a": 7})))
    assert (found.name, found.classes) == ("pictures", ("a", "b"))
    assert (torch.bincount(found.y).tolist(), torch.bincount(found.y_test).tolist()) == ([5, 9], [2, 3])
    same(pixels(found, "x_test")[found.y_test == 0][0], random_images(6, 7, 3, seed=1001).transpose(2, 0, 1))


def test_a_folder_with_halves_is_not_split_and_never_passes_for_a_set_of_the_book(tmp_path):
    own = write_folder(tmp_path / "mnist", {"train/a": 3, "train/b": 2, "test/a": 1, "test/b": 1})
    found = load(own)
    assert (found.y.tolist(), found.y_test.tolist(), found.name) == ([0, 1, 0, 1, 0], [0, 1], "folder mnist")
    write_folder(own, {"test/aa": 1})
    with pytest.raises(ValueError, match="mnist: .* the same classes"):
        load(own)


def test_grey_files_give_one_channel_and_a_mixture_three(tmp_path):
    own = write_folder(tmp_path / "own", {"a": 2, "b": 2}, shape=(6, 7))
    assert load(own).x.shape[1] == 1
    write_folder(own, {"c": 2}, shape=(6, 7, 3))
    assert load(own).x.shape[1] == 3


@pytest.mark.parametrize(("shape", "order"), [((6, 7), None), ((6, 7, 3), (0, 3, 1, 2)), ((3, 6, 7), None)])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_an_npz_file_holds_images_in_any_usual_order(tmp_path, shape, order, kind):
    x, y = random_images(8, *shape), np.arange(8) % 2
    stored = x if kind == np.uint8 else x / 255
    found = load(npz(tmp_path, x=stored, y=y, x_test=stored[:4], y_test=y[:4]))
    same(pixels(found), x.transpose(order) if order else x.reshape(8, -1, 6, 7))
    assert (found.y.tolist(), found.y_test.tolist(), found.classes) == (y.tolist(), y[:4].tolist(), ("0", "1"))


NO_IMAGES = [
    ("x", np.zeros((4, 25)), r"x has shape \(4, 25\)"),
    ("x", np.zeros((4, 5, 5, 4)), "with C = 1 or 3"),
    ("x", np.zeros((4, 5, 5), np.int16), "uint8 or finite"),
    ("x", np.full((4, 5, 5), np.nan), "uint8 or finite"),
    ("y", np.array([0, 1]), "y has shape"),
    ("y", np.array([1, 2, 1, 2]), "class 0"),
    ("y", np.array([0, 1, 1, 1]), "'0' has 1 image"),
    ("x_test", np.zeros((4, 5, 5)), "the same classes, type and shape"),
]


@pytest.mark.parametrize(("name", "array", "named"), NO_IMAGES)
def test_arrays_that_are_no_images_with_labels_are_refused(tmp_path, name, array, named):
    arrays = {"x": random_images(4, 5, 5), "y": np.array([0, 1, 0, 1]), "y_test": np.array([0, 1, 0, 1])}
    with pytest.raises(ValueError, match=named):
        load(npz(tmp_path, **arrays | {name: array}))


def test_a_file_that_is_no_image_of_8_bits_is_named_where_it_is_chosen_and_so_are_several_sizes(tmp_path):
    own = write_folder(tmp_path / "own", {"a": 2, "b": 2, "c": 2})
    odd = own / "b" / "0001.png"
    Image.fromarray(np.zeros((6, 7), np.uint16)).save(odd)
    with pytest.raises(ValueError, match="b/0001.png: .* 8 bits"):
        load(own)
    odd.write_bytes(odd.read_bytes()[:60])
    with pytest.raises(ValueError, match="b/0001.png: "):
        load(own)
    assert load(own, classes=["c", "a"]).classes == ("c", "a")
    Image.fromarray(random_images(5, 7, 3)).save(odd)
    with pytest.raises(ValueError, match=r"one size.* \[\(5, 7\), \(6, 7\)\]"):
        load(own)


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


@pytest.mark.parametrize(
    ("name", "value"), [("at_most", (0, 1)), ("seed", -1), ("classes", [0, 3]), ("classes", ["0", 0])]
)
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


# Names, absent and damaged files ----------------------------------------------------------------------------------


def test_auto_is_the_real_set_where_all_of_it_lies_else_its_stand_in_else_the_digits(data, mnist, cifar10):
    assert (resolve("auto", "mnist"), resolve("auto", "cifar10")) == ("mnist", "cifar10")
    assert resolve("auto", "svhn") == "digits"
    (data / "cifar-10-batches-py" / "data_batch_3").unlink()
    assert resolve("auto", "cifar10") == "digits"
    for half in ("train", "test"):
        (data / "CIFAR10-jpeg75" / half).mkdir(parents=True)
    assert resolve("auto", "cifar10") == "cifar10-jpeg75"


def test_an_explicit_name_or_path_is_kept_and_an_unknown_one_gives_the_known_ones(tmp_path):
    assert (resolve("svhn", "mnist"), resolve(str(tmp_path), "mnist")) == ("svhn", str(tmp_path))
    for call in (load, fetch, partial(resolve, wanted="mnist"), partial(resolve, "auto")):
        with pytest.raises(ValueError, match="'fashion-mnist': .*'mnist', .*did you mean 'fashion_mnist'"):
            call("fashion-mnist")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn", "cifar10-jpeg75"])
def test_an_absent_set_is_reported_with_file_place_and_remedy(name):
    file = image_files.absent(name)
    with pytest.raises(FileNotFoundError, match=f"no {file.name} in {file.parent}.*COLLAPSE_DATA.* download"):
        load(name)


def test_a_damaged_file_is_reported_with_both_checksums_before_it_is_opened(data, mnist, cifar10):
    for name, file in (("mnist", "MNIST/raw/t10k-labels-idx1-ubyte"), ("cifar10", "cifar-10-batches-py/data_batch_2")):
        path = data / file
        expected = md5(path)
        path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
        for call in (load, fetch):
            with pytest.raises(ValueError, match=f"{path} is damaged: .* {md5(path)} .* {expected}; delete"):
                call(name)


def test_files_are_read_again_only_once_they_have_changed(data, mnist, monkeypatch):
    first = load("mnist")
    with monkeypatch.context() as patch:
        patch.setattr(torchvision.datasets.utils, "calculate_md5", None)  # reading would fail
        assert load("mnist", at_most=(2, 1)).x.shape == (20, 1, 28, 28)
        torch.testing.assert_close(load("mnist").x, first.x, atol=0, rtol=0)
    path = data / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        load("mnist")


def test_the_build_is_told_which_files_are_used_by_name_and_content_not_by_place(tmp_path, mnist, data, monkeypatch):
    monkeypatch.setenv("COLLAPSE_NOTES", str(tmp_path / "notes"))
    own = write_folder(tmp_path / "own", {"a": 2, "b": 2})
    pictures = ["a/0000.png", "a/0001.png", "b/0000.png", "b/0001.png"]
    expected = []
    for dataset, folder, names in (("mnist", data / "MNIST" / "raw", sorted(mnist)), (own, own, pictures)):
        load(dataset, at_most=(1, 1))
        digest = hashlib.sha256()
        for name in names:
            digest.update(name.encode() + b"\0" + hashlib.sha256((folder / name).read_bytes()).digest())
        expected.append((getattr(dataset, "name", dataset), 4, digest.hexdigest()))
    noted = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    assert [(fact["name"], fact["files"], fact["sha256"]) for fact in noted] == expected


# Downloads --------------------------------------------------------------------------------------------------------


def test_without_a_network_a_sentence_says_so_and_a_chapter_goes_on_with_the_stand_in(data, monkeypatch, capsys):
    def refuse(*_, **__):
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert image_files.main(["fetch"]) == 1
    for name, sentence in zip(image_files.DOWNLOADABLE, capsys.readouterr().err.splitlines(), strict=True):
        assert sentence.startswith(f"error: {name} could not be downloaded into {data} (is there a network?): ")
        assert "name resolution" in sentence
    assert [resolve("auto", "svhn", download=True) for _ in range(2)] == ["digits"] * 2
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 and said[0].startswith("the stand-in for SVHN is used: svhn could not be downloaded")


def test_a_chapter_downloads_what_it_wants_in_the_paper_profile_only(data, mnist, monkeypatch):
    (data / "MNIST").rename(data / "elsewhere")
    monkeypatch.setattr(MNIST, "download", lambda self: (data / "elsewhere").rename(data / "MNIST"))
    assert load_wanted("auto", "mnist", "laptop").name == "digits"
    assert load_wanted("digits", "mnist", "paper").name == "digits" and image_files.absent("mnist")
    found = load_wanted("auto", "mnist", "paper", classes=[3, 4])
    assert (found.name, found.classes, len(found.y)) == ("mnist", ("3", "4"), 6)
