"""From files to a split set, with small sets and, where they are, with the real ones."""

import dataclasses
import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
from loopback import Answer, serving
from scipy.io import savemat
from small_sets import TEST_NAME, TRAIN_NAME, SmallSet, other_gzip, random_images

from doublecv.lab.data import load
from doublecv.lab.data.catalogue import SETS, BrokenFile, Form, PublishedFile, shuffled
from doublecv.lab.data.fetch import Found, load_set, read


@pytest.fixture
def no_variable(monkeypatch):
    monkeypatch.delenv("DOUBLECV_DATA", raising=False)


@pytest.mark.usefixtures("no_variable")
class TestSmallSet:
    @pytest.mark.parametrize("packed", [True, False])
    def test_is_read_and_split_in_the_published_order(self, tmp_path, packed):
        small = SmallSet()
        small.write(tmp_path, packed)
        dataset = load_set(small.set, tmp_path, tmp_path / "cache")
        assert (dataset.name, dataset.height, dataset.width) == ("small", 3, 2)
        assert small.is_loaded_in(dataset)

    def test_shuffles_training_images_only_and_always_alike(self, tmp_path):
        small = SmallSet(shuffle=True)
        small.write(tmp_path)
        first, second = (load_set(small.set, tmp_path, tmp_path / "cache") for _ in range(2))
        rows = np.concatenate([first.train, first.validation])
        np.testing.assert_array_equal(rows, np.concatenate([second.train, second.validation]))
        published = small.train.reshape(7, -1)
        assert not np.array_equal(rows, published)
        assert sorted(map(tuple, rows)) == sorted(map(tuple, published))
        np.testing.assert_array_equal(first.test, small.test.reshape(3, -1))

    def test_counts_are_checked(self, tmp_path):
        small = SmallSet()
        folder = small.write(tmp_path)
        form = dataclasses.replace(small.form, test_images=4)
        paths = (folder / f"{TRAIN_NAME}.gz", folder / f"{TEST_NAME}.gz")
        with pytest.raises(BrokenFile) as raised:
            read(small.set, Found(form, paths))
        assert str(raised.value) == (
            f"{paths[0]} and {paths[1]}: expected uint8 of shape (4, 3, 2), found uint8 of shape (3, 3, 2)"
        )

    def test_format_errors_name_the_files(self, tmp_path):
        small = SmallSet()
        folder = small.write(tmp_path, packed=False)
        labels = bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])
        (folder / TEST_NAME).write_bytes(labels)
        train, test = small.form.files
        test = dataclasses.replace(test, checksum=test.checksum_of(labels))
        paths = (folder / TRAIN_NAME, folder / TEST_NAME)
        with pytest.raises(BrokenFile, match=f"{paths[0]} and {paths[1]}: not images in the format idx"):
            read(small.set, Found(dataclasses.replace(small.form, files=(train, test)), paths))

    @pytest.mark.parametrize("place", ["named", "cache"])
    def test_broken_file_is_named_and_in_the_cache_the_remedy_too(self, tmp_path, place):
        small = SmallSet(homes=["http://127.0.0.1:9"])
        (tmp_path / "named").mkdir()
        path = small.write(tmp_path / place) / f"{TEST_NAME}.gz"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(BrokenFile) as raised:
            load_set(small.set, tmp_path / "named", tmp_path / "cache")
        assert str(raised.value).startswith(f"{path}: expected at most 34 bytes with sha256:")
        assert str(raised.value).endswith("it will be downloaded again") == (place == "cache")


@pytest.mark.usefixtures("no_variable")
def test_chardata_is_read_as_omniglot(tmp_path):
    train, test = random_images(30, 28, 28, seed=5), random_images(7, 28, 28, seed=6)
    file = io.BytesIO()
    savemat(
        file,
        {
            "data": np.stack([image.T.ravel() for image in train], axis=1) / 255,
            "testdata": np.stack([image.T.ravel() for image in test], axis=1) / 255,
        },
    )
    content = file.getvalue()
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot" / "chardata.mat").write_bytes(content)
    file = PublishedFile("chardata.mat", PublishedFile("", "git:").checksum_of(content))
    form = Form("chardata", (file,), train_images=30, test_images=7)
    omniglot = SETS["omniglot"]
    image_set = dataclasses.replace(omniglot, train=25, forms=(omniglot.forms[0], form))
    dataset = load_set(image_set, tmp_path, tmp_path / "cache")
    assert (dataset.train.shape, dataset.validation.shape) == ((25, 784), (5, 784))
    np.testing.assert_array_equal(np.concatenate([dataset.train, dataset.validation]), shuffled(train.reshape(30, 784)))
    np.testing.assert_array_equal(dataset.test, test.reshape(7, 784))


def test_shuffle_is_the_same_for_good():
    assert shuffled(np.arange(10, dtype=np.uint8)[:, None]).ravel().tolist() == [1, 6, 7, 2, 8, 4, 5, 9, 0, 3]


def test_published_files_are_described_as_published():
    sizes = {name: (each.train, each.shuffle, each.height, each.width) for name, each in SETS.items()}
    assert sizes == {
        "mnist": (50_000, False, 28, 28),
        "fashion-mnist": (50_000, False, 28, 28),
        "omniglot": (23_000, True, 28, 28),
    }
    counts = [(form.train_images, form.test_images) for each in SETS.values() for form in each.forms]
    assert counts == [(60_000, 10_000), (60_000, 10_000), (24_345, 8_115), (24_345, 8_070)]
    for each in SETS.values():
        for file in each.forms[-1].files:
            assert all(address.startswith("http") and file.name in address for address in file.mirrors)


def real_data(name):
    root = os.environ.get("DOUBLECV_DATA")
    if not root:
        pytest.skip("DOUBLECV_DATA is not set: the real data sets are not tested")
    if not (Path(root) / name).is_dir():
        pytest.skip(f"no {name} in {root}: the real set is not tested")
    return Path(root) / name


def raw_idx(folder, name, count):
    content = gzip.decompress((folder / f"{name}.gz").read_bytes())
    return np.frombuffer(content, np.uint8)[16:].reshape(count, 784)


@pytest.mark.parametrize(("name", "ink"), [("mnist", 33.3184), ("fashion-mnist", 72.9404)])
def test_real_mnist_and_fashion_mnist(name, ink):
    folder = real_data(name)
    train, test = raw_idx(folder, TRAIN_NAME, 60_000), raw_idx(folder, TEST_NAME, 10_000)
    dataset = load(name)
    np.testing.assert_array_equal(dataset.train, train[:50_000])
    np.testing.assert_array_equal(dataset.validation, train[50_000:])
    np.testing.assert_array_equal(dataset.test, test)
    assert train.mean() == pytest.approx(ink, abs=1e-4)


def test_real_omniglot():
    folder = real_data("omniglot")
    dataset = load("omniglot")
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [23_000, 1_345, 8_115]
    with np.load(folder / "omniglot28.npz") as archive:
        train, test = archive["train"].reshape(-1, 784), archive["test"].reshape(-1, 784)
    np.testing.assert_array_equal(dataset.test, test)
    rows = np.concatenate([dataset.train, dataset.validation])
    assert sorted(map(bytes, rows)) == sorted(map(bytes, train))
    assert not np.array_equal(rows, train)


def test_real_mnist_from_a_mirror_with_another_wrapper(monkeypatch, tmp_path):
    folder = real_data("mnist")
    monkeypatch.delenv("DOUBLECV_DATA")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        files = []
        for file in SETS["mnist"].forms[0].files:
            content = gzip.decompress((folder / f"{file.name}.gz").read_bytes())
            server.answers[file.name] = Answer(other_gzip(content))
            files.append(dataclasses.replace(file, mirrors=(server.url("gone"), server.url(file.name))))
        form = dataclasses.replace(SETS["mnist"].forms[0], files=tuple(files))
        dataset = load_set(dataclasses.replace(SETS["mnist"], forms=(form,)), None, tmp_path)
    np.testing.assert_array_equal(dataset.test, raw_idx(folder, TEST_NAME, 10_000))
    assert sorted(path.name for path in (tmp_path / "mnist").iterdir()) == [TEST_NAME, TRAIN_NAME]
