"""Omniglot's two forms."""

import io
import zipfile

import numpy as np
import pytest
from scipy.io import savemat
from small_sets import random_images

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.readers import read_chardata, read_npz


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
    with pytest.raises(InputError, match="train: expected uint8 images of 3 axes in C order, found object"):
        read_npz(npz(train=objects, test=random_images(1)))


def npz_of(**members):
    """An archive of members with these bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(shape, pixels=b"", descr="|u1", order=False):
    header = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pixels


GOOD = npy((1, 2, 3), bytes(6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a NumPy archive"),
        (b"PK", "not a NumPy archive"),
        (npz_of(train=GOOD), "There is no item named 'test.npy'"),
        (npz_of(train=GOOD, test=npy((10**9, 10**9, 10**9))), r"promises \(1000000000, 1000000000, 1000000000\)"),
        (npz_of(train=GOOD, test=npy((1, 2, 3), bytes(5))), "expected 6 bytes, found 5"),
        (npz_of(train=GOOD, test=npy((-1, 2, 3), bytes(6))), "expected uint8 images"),
        (npz_of(train=GOOD, test=npy((1, 2, 3), bytes(48), "<f8")), "found float64"),
        (npz_of(train=GOOD, test=npy((1, 2, 3), bytes(6), order=True)), "in C order"),
        (npz_of(train=GOOD, test=b"nothing"), "test: not a NumPy array"),
        (npz_of(train=GOOD, test=bytes(1 << 28)), "expected at most 134217728 bytes, found 268435456"),
        (npz(train=random_images(2), test=random_images(2))[:-40], "not a NumPy archive"),
    ],
)
def test_npz_that_lies_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        read_npz(content)


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0", bytes(200)])
def test_what_is_no_matlab_file_is_refused(content):
    with pytest.raises(InputError, match="not a MATLAB file with data and testdata"):
        read_chardata(content, 28, 28)
