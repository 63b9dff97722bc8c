"""Random command lines and random data files end in one line of error or in a result, never in a traceback."""

import gzip
import hashlib
import io
import tempfile
import zipfile
import zlib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from doublecv.lab import cli
from doublecv.lab.common.errors import InputError
from doublecv.lab.common.options import flag, parse
from doublecv.lab.data.catalogue import READERS, BrokenFile, PublishedFile, read_images
from doublecv.lab.data.fetch import verified
from fuzzing import fuzz

FLAGS = sorted({flag(field.name) for name in cli.COMMANDS for field in fields(cli.settings_class(name))})
NUMBERS = ["0", "-1", "1", "2", "3", "1e9", "nan", "inf", "9" * 30, str(2**31), "-0", "1_0", "0x10", "٣", ""]
NAMES = ["rloo", "double-cv", "mnist", "digits", "gaussian", "linear", "table-k2-bernoulli", "all", "dataset=mnist"]
WORDS = st.one_of(
    st.sampled_from([*FLAGS, *NUMBERS, *NAMES, "--", "-h", "--help", "-1", "a[/b]", "[red]", "../..", "~", "\n"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
)


def outcome(words):
    """The exit status, standard output and standard error of a command line whose program is replaced."""
    output, errors, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(cli, "run", lambda name, rest: parse(cli.settings_class(name), f"doublecv {name}", rest)),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            cli.main(words)
        except SystemExit as stop:
            status = stop.code
    return status, output.getvalue(), errors.getvalue()


@fuzz(150)
@given(st.lists(WORDS, max_size=6), st.sampled_from([*cli.COMMANDS, *cli.COMMANDS, "tran", "--version"]))
@example(["--seed", str(2**31)], "train")
@example(["--steps", "9" * 23], "train")
@example(["--samples", "1000000"], "train")
@example(["--devices", "100000"], "train")
def test_a_command_line_is_taken_or_answered_in_one_line(words, command):
    status, output, errors = outcome([command, *words])
    if status == 0:
        assert errors == ""
    else:
        assert (status, output) == (2, "")
        assert errors.startswith("doublecv")
        assert errors.count("\n") == 1
        assert errors.endswith("\n")
        assert len(errors) < 1500


CONTENT = bytes(range(256)) * 4
FILE = PublishedFile("numbers", f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", len(CONTENT))
DAMAGE = st.lists(
    st.one_of(
        st.tuples(st.just("truncate"), st.integers(0, 2000), st.just(b"")),
        st.tuples(st.just("overwrite"), st.integers(0, 2000), st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("insert"), st.integers(0, 2000), st.binary(min_size=1, max_size=8)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(content, damage):
    for kind, place, new in damage:
        place = min(place, len(content))
        after = {"truncate": b"", "overwrite": content[place + len(new) :], "insert": content[place:]}[kind]
        content = content[:place] + new + after
    return content


@fuzz(100)
@given(st.sampled_from([bytes, gzip.compress, lambda content: zlib.compress(content, wbits=31)]), DAMAGE)
def test_a_damaged_file_is_noticed_or_means_the_same(wrap, damage):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers"
        path.write_bytes(damaged(wrap(CONTENT), damage))
        try:
            assert verified(path, FILE) == CONTENT
        except BrokenFile as error:
            told = str(error)
        else:
            return
    assert told.startswith(f"{path}: expected at most 1024 bytes")


def idx(images):
    return bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes() + images.tobytes()


def npz(images, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name in ("train", "test"):
            member = io.BytesIO()
            np.save(member, images)
            archive.writestr(f"{name}.npy", member.getvalue())
    return file.getvalue()


IMAGES = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
FILES = {
    "idx": [idx(IMAGES), idx(IMAGES)],
    "npz": [npz(IMAGES)],
    "stored npz": [npz(IMAGES, zipfile.ZIP_STORED)],
}


@pytest.mark.parametrize("kind", FILES)
@fuzz(100)
@given(damage=DAMAGE)
def test_a_reader_takes_images_or_refuses(kind, damage):
    """Without a checksum before it, a reader may find other pixels, but only in arrays of the published shape."""
    first, *others = FILES[kind]
    try:
        for images in read_images(kind.split()[-1], [damaged(first, damage), *others], [IMAGES.shape] * 2):
            assert (images.dtype, images.shape) == (np.uint8, IMAGES.shape)
    except InputError as error:
        told = str(error)
    else:
        return
    assert "\n" not in told


@fuzz(100)
@given(st.binary(max_size=200), st.sampled_from([b"", b"\0\0\x08\x03", b"PK\x03\x04", b"MATLAB 5.0 MAT-file"]))
def test_random_bytes_are_refused(content, start):
    for reader in READERS:
        with pytest.raises(InputError):
            read_images(reader, [start + content] * 2, [(1, 28, 28)] * 2)


@fuzz(30)
@given(st.tuples(*[st.integers(-(2**63), 2**63)] * 3), st.sampled_from(["|u1", "|O", "<f8", "|V9", "|S4", "x"]))
def test_a_header_that_lies_is_refused(shape, descr):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(10)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("train.npy", "test.npy"):
            archive.writestr(name, member)
    with pytest.raises(InputError):
        read_images("npz", [file.getvalue()], [IMAGES.shape] * 2)
