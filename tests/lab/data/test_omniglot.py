"""Omniglot's two forms."""

import io

import numpy as np
import pytest
from scipy.io import savemat
from small_sets import random_images

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.omniglot import read_chardata, read_npz


def chardata(**variables):
    file = io.BytesIO()
    savemat(file, variables)
    return file.getvalue()


def columns(images):
    """Images as MATLAB flattens them: column by column, each image one column, values in [0, 1]."""
    return np.stack([image.ravel(order="F") for image in images], axis=1) / 255


def test_chardata_images_stand_upright():
    upright = np.zeros((28, 28), np.uint8)
    upright[2, 5:20] = 255
    upright[20, 3] = 51
    train, test = read_chardata(chardata(data=columns([upright]), testdata=columns([upright.T])), 28, 28)
    np.testing.assert_array_equal(train, [upright])
    np.testing.assert_array_equal(test, [upright.T])


@pytest.mark.parametrize(("height", "width"), [(28, 28), (3, 5)])
def test_chardata_keeps_the_images_and_their_order(height, width):
    train, test = random_images(6, height, width, seed=3), random_images(4, height, width, seed=4)
    content = chardata(data=columns(train), testdata=columns(test), target=np.ones((2, 6)))
    for read, images in zip(read_chardata(content, height, width), (train, test), strict=True):
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, images)


def test_chardata_rounds_to_the_nearest_level():
    values = np.full((784, 1), 100.4 / 255)
    values[0], values[1], values[2] = 0.0, 1.0, 99.6 / 255
    train, _ = read_chardata(chardata(data=values, testdata=values), 28, 28)
    assert train[0, :4, 0].tolist() == [0, 255, 100, 100]


def test_chardata_of_another_size_is_refused():
    good, bad = np.zeros((784, 2)), np.zeros((100, 2))
    with pytest.raises(InputError, match="testdata: expected 784 rows, one for each pixel, found 100"):
        read_chardata(chardata(data=good, testdata=bad), 28, 28)


@pytest.mark.parametrize(("value", "found"), [(1.5, "0.0 to 1.5"), (-0.5, "-0.5 to 0.0"), (np.nan, "nan to nan")])
def test_chardata_beyond_its_range_is_refused(value, found):
    values = np.zeros((784, 2))
    values[7, 1] = value
    with pytest.raises(InputError, match=rf"data: expected values in \[0, 1\], found {found}"):
        read_chardata(chardata(data=values, testdata=np.zeros((784, 1))), 28, 28)


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_npz_keeps_the_images_and_their_order():
    train, test = random_images(6, seed=3), random_images(4, seed=4)
    for read, images in zip(read_npz(npz(train=train, test=test, alphabet=np.arange(6))), (train, test), strict=True):
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, images)


def test_npz_with_pickled_objects_is_refused():
    objects = np.array([{"not": "an image"}], dtype=object)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_npz(npz(train=objects, test=random_images(1)))
