"""The reader of idx files."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from small_sets import idx, random_images

from doublecv.lab.common.errors import InputError
from doublecv.lab.data.readers import read_idx


@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 5))
def test_reads_what_was_written(count, height, width):
    images = random_images(count, height, width)
    read = read_idx(idx(images))
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, images)


def test_axes_are_images_rows_columns():
    read = read_idx(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 10, 11, 12, 20, 21, 22]))
    assert read.tolist() == [[[10, 11, 12]], [[20, 21, 22]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"start with b'\\x00\\x00\\x08\\x03', found b''"),
        (b"<html>", "found b'<htm'"),
        (idx(np.zeros(5, np.uint8)), r"found b'\\x00\\x00\\x08\\x01'"),
        (bytes([0, 0, 0x0D, 3]) + bytes(12), r"found b'\\x00\\x00\\r\\x03'"),
        (idx(random_images(4))[:10], "truncated: expected 16 bytes, found 10"),
        (idx(random_images(4))[:-1], r"promises \(4, 3, 2\): expected 40 bytes, found 39"),
        (idx(random_images(4)) + b"\0", "expected 40 bytes, found 41"),
    ],
)
def test_refuses_what_is_not_a_whole_file_of_images(content, message):
    with pytest.raises(InputError, match=message):
        read_idx(content)
