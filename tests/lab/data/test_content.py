"""Contents are known by their checksum, whatever is wrapped around them."""

import gzip
import tracemalloc
import zlib

import pytest
from small_sets import other_gzip, sha256_file

from doublecv.lab.data.catalogue import BrokenFile, PublishedFile
from doublecv.lab.data.fetch import verified

CONTENT = bytes(range(200)) * 2
FILE = sha256_file("numbers", CONTENT)


def test_git_blob_is_what_git_says():
    file = PublishedFile("any", "git:")
    assert file.checksum_of(b"") == "git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert file.checksum_of(b"hello\n") == "git:ce013625030ba8dba906f756967f9e9ca394464a"


def test_sha256_is_the_standard_one():
    assert PublishedFile("any", "sha256:").checksum_of(b"abc") == (
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


@pytest.mark.parametrize("wrap", [bytes, gzip.compress, other_gzip])
@pytest.mark.parametrize("name", ["numbers", "numbers.gz"])
def test_any_wrapper_under_any_name_will_do(tmp_path, wrap, name):
    path = tmp_path / name
    path.write_bytes(wrap(CONTENT))
    assert verified(path, FILE) == CONTENT


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_cut_at_any_byte_names_file_expected_and_found(tmp_path, wrap):
    path, stored = tmp_path / "numbers.gz", wrap(CONTENT)
    for length in range(len(stored)):
        path.write_bytes(stored[:length])
        with pytest.raises(BrokenFile) as raised:
            verified(path, FILE)
        message = str(raised.value)
        assert message.startswith(f"{path}: expected at most 400 bytes with {FILE.checksum}, found {length} bytes "), (
            message
        )


def test_any_flipped_bit_is_noticed_or_harmless(tmp_path):
    path, stored, noticed = tmp_path / "numbers.gz", gzip.compress(CONTENT), 0
    for position in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert verified(path, FILE) == CONTENT
        except BrokenFile:
            noticed += 1
    harmless_header_bits = 8 * 10
    assert noticed >= 8 * len(stored) - harmless_header_bits


def test_other_content_of_the_same_length_is_named_by_both_checksums(tmp_path):
    path, other = tmp_path / "numbers", CONTENT[::-1]
    path.write_bytes(other)
    with pytest.raises(BrokenFile) as raised:
        verified(path, FILE)
    assert str(raised.value) == (
        f"{path}: expected at most 400 bytes with {FILE.checksum}, found 400 bytes with {FILE.checksum_of(other)}"
    )


def test_git_blob_of_unknown_length(tmp_path):
    path, file = tmp_path / "hello", PublishedFile("hello", "git:ce0136")
    path.write_bytes(b"hello\n")
    with pytest.raises(
        BrokenFile, match="expected at most 268435456 bytes with git:ce0136, found 6 bytes with git:ce013625"
    ):
        verified(path, file)


def test_a_decompression_bomb_is_refused_without_its_memory(tmp_path):
    """0.1 MB that unpack to 0.1 GB: what is allocated stays near the published length."""
    path, packer = tmp_path / "numbers.gz", zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    path.write_bytes(b"".join(packer.compress(zeros) for _ in range(100)) + packer.flush())
    tracemalloc.start()
    with pytest.raises(BrokenFile, match="bytes of gzip that unpack to more than 400"):
        verified(path, FILE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


def test_bombs_in_many_members_are_refused(tmp_path):
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(bytes(100)) * 5)
    with pytest.raises(BrokenFile, match="unpack to more than 400"):
        verified(path, FILE)


def test_an_oversized_file_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "numbers"
    with path.open("wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(BrokenFile, match="found 8589934592 bytes"):
        verified(path, FILE)
