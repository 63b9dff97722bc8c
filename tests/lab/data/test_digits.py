"""The digits of scikit-learn, scaled, shuffled and split."""

import dataclasses

import numpy as np
import pytest
from sklearn import datasets

from doublecv.lab.common.errors import InputError
from doublecv.lab.data import NAMES, load
from doublecv.lab.data.catalogue import DIGITS_SHA256


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_sizes_and_type(digits):
    assert (digits.name, digits.height, digits.width) == ("digits", 8, 8)
    assert [part.shape for part in (digits.train, digits.validation, digits.test)] == [(1400, 64), (197, 64), (200, 64)]
    assert {part.dtype for part in (digits.train, digits.validation, digits.test)} == {np.dtype(np.uint8)}


def test_every_image_is_there_once_scaled_to_the_full_range(digits):
    published = datasets.load_digits().data
    rows = np.concatenate([digits.train, digits.validation, digits.test])
    levels = np.rint(rows * (16 / 255))
    assert np.abs(rows - levels * (255 / 16)).max() <= 0.5
    assert rows.min() == 0
    assert rows.max() == 255
    assert sorted(map(tuple, levels)) == sorted(map(tuple, published))


def test_order_is_fixed_and_mixes_the_classes(digits):
    again = load("digits")
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(digits, part), getattr(again, part))
    in_published_order = np.rint(datasets.load_digits().data * (255 / 16))
    assert not np.array_equal(digits.train[:10], in_published_order[:10])


def test_dataset_is_frozen(digits):
    with pytest.raises(dataclasses.FrozenInstanceError):
        digits.name = "letters"


def test_other_digits_are_refused(monkeypatch):
    published = datasets.load_digits()
    published.data[3, 20] += 1
    monkeypatch.setattr(datasets, "load_digits", lambda: published)
    with pytest.raises(InputError, match=f"expected sha256 {DIGITS_SHA256}, found [0-9a-f]{{64}}"):
        load("digits")


def test_unknown_name_gets_the_nearest_or_the_list():
    with pytest.raises(InputError, match="unknown data set 'fashion_mnist'; did you mean 'fashion-mnist'"):
        load("fashion_mnist")
    with pytest.raises(InputError, match=f"unknown data set 'cifar'; choose from {', '.join(NAMES)}"):
        load("cifar")
