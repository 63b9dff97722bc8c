"""The readers of idx files and of Omniglot's two forms, each through the one entrance `read_images`."""

import io
import struct
import zipfile

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.io import savemat
from small_sets import idx, random_images

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.catalogue import read_images


def read(reader, contents, *images):
    """Read contents that should hold arrays of the shapes of these images."""
    return read_images(reader, contents, [each.shape for each in images])


@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_idx_keeps_the_images_and_their_order(count, height, width):
    train, test = random_images(count, height, width, seed=1), random_images(count + 1, height, width, seed=2)
    for found, images in zip(read("idx", [idx(train), idx(test)], train, test), (train, test), strict=True):
        np.testing.assert_array_equal(found, images)


def test_idx_axes_are_images_rows_columns():
    content = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22])
    found, _ = read_images("idx", [content, content], [(2, 1, 3), (2, 1, 3)])
    assert found.tolist() == [[[10, 11, 12]], [[20, 21, 22]]]


FOUR = random_images(4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        idx(np.zeros(5, np.uint8)),
        bytes([0, 0, 0x0D, 3]) + idx(FOUR)[4:],
        idx(FOUR)[:10],
        idx(FOUR)[:-1],
        idx(FOUR) + b"\0",
        bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(24),
    ],
)
def test_idx_that_is_not_a_complete_file_of_images_is_refused(content):
    with pytest.raises(InputError, match=r"not images in the format idx \("):
        read("idx", [content, idx(FOUR)], FOUR, FOUR)


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
    content = chardata(data=columns([upright]), testdata=columns([upright.T]))
    train, test = read_images("chardata", [content], [(1, 28, 28)] * 2)
    np.testing.assert_array_equal(train, [upright])
    np.testing.assert_array_equal(test, [upright.T])


@pytest.mark.parametrize(("height", "width"), [(28, 28), (3, 5)])
def test_chardata_keeps_the_images_and_their_order(height, width):
    train, test = random_images(6, height, width, seed=3), random_images(4, height, width, seed=4)
    content = chardata(data=columns(train), testdata=columns(test), target=np.ones((2, 6)))
    for found, images in zip(read("chardata", [content], train, test), (train, test), strict=True):
        np.testing.assert_array_equal(found, images)


def test_chardata_rounds_to_the_nearest_level():
    values = np.full((784, 1), 100.4 / 255)
    values[0], values[1], values[2] = 0.0, 1.0, 99.6 / 255
    train, _ = read_images("chardata", [chardata(data=values, testdata=values)], [(1, 28, 28)] * 2)
    assert train[0, :4, 0].tolist() == [0, 255, 100, 100]


def test_chardata_of_another_size_is_refused():
    content = chardata(data=np.zeros((784, 2)), testdata=np.zeros((100, 2)))
    with pytest.raises(InputError, match=r"not images in the format chardata \(cannot reshape"):
        read_images("chardata", [content], [(2, 28, 28)] * 2)


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_npz_keeps_the_images_and_their_order():
    train, test = random_images(6, seed=3), random_images(4, seed=4)
    content = npz(train=train, test=test, alphabet=np.arange(6))
    for found, images in zip(read("npz", [content], train, test), (train, test), strict=True):
        np.testing.assert_array_equal(found, images)


def test_npz_with_pickled_objects_is_refused():
    objects = np.array([{"not": "an image"}], dtype=object)
    with pytest.raises(InputError, match="Object arrays cannot be loaded when allow_pickle=False"):
        read_images("npz", [npz(train=objects, test=random_images(1))], [(1, 3, 2)] * 2)


def npz_of(**members):
    """An archive of members with these bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(shape, pixels=b"", descr="|u1"):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pixels


GOOD = npy((1, 2, 3), bytes(6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not images in the format npz"),
        (b"PK", "not images in the format npz"),
        (npz_of(train=GOOD), "test is not a file in the archive"),
        (npz_of(train=GOOD, test=npy((10**9, 10**9, 10**9))), "not images in the format npz"),
        (npz_of(train=GOOD, test=npy((1, 2, 3), bytes(5))), "not images in the format npz"),
        (npz_of(train=GOOD, test=npy((-1, 2, 3), bytes(6))), "not images in the format npz|expected uint8 of shape"),
        (npz_of(train=GOOD, test=npy((1, 2, 3), bytes(48), "<f8")), "found float64"),
        (npz_of(train=GOOD, test=npy((1, 3, 2), bytes(6))), r"found uint8 of shape \(1, 3, 2\)"),
        (npz_of(train=GOOD, test=b"nothing"), "npz|expected uint8"),
        (npz(train=random_images(2), test=random_images(2))[:-40], "not images in the format npz"),
    ],
)
def test_npz_that_lies_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        read_images("npz", [content], [(1, 2, 3)] * 2)


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0", bytes(200)])
def test_what_is_no_matlab_file_is_refused(content):
    with pytest.raises(InputError, match="not images in the format chardata"):
        read_images("chardata", [content], [(1, 28, 28)] * 2)
