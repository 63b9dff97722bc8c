"""Files of a run: what was written comes back, and what was changed is noticed and named."""

import json
import os
from dataclasses import dataclass

import pytest

from doublecv.lab.common.records import DamagedFile, LineReader, read_document, seal_document, seal_line

RECORDS = [
    {"kind": "train", "step": 2, "seed": 1, "elbo": -10.25, "variance": {"rloo": 0.5}},
    {"kind": "evaluation", "step": 4, "seed": 1, "train_elbo": -9.125},
    {"kind": "final", "step": 4, "seed": 1, "test_elbo": -9.5},
]


@dataclass
class Settings:
    samples: int
    names: tuple[str, ...] = ()


@dataclass
class Config:
    settings: Settings
    sealed: bool = True


def lines(records=RECORDS, sealed=True):
    written, checksum = [], 0
    for record in records:
        line, checksum = seal_line(record, checksum, sealed)
        written.append(line)
    return written


def read(path, content, **options):
    path.write_bytes(content)
    return list(LineReader(path, **options))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.mark.parametrize("sealed", [True, False])
def test_lines_come_back(path, sealed):
    assert read(path, b"".join(lines(sealed=sealed))) == RECORDS
    reader = LineReader(path)
    assert list(reader) == RECORDS
    assert reader.sealed == sealed


def test_every_changed_byte_is_noticed(path):
    whole = b"".join(lines())
    for place in range(len(whole)):
        for changed in (whole[place] ^ 1, whole[place] ^ 64):
            with pytest.raises(DamagedFile):
                read(path, whole[:place] + bytes([changed]) + whole[place + 1 :])


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (0, 2, 1), (0, 0, 1, 2)])
def test_missing_and_exchanged_lines_are_noticed(path, order):
    written = lines()
    with pytest.raises(DamagedFile, match="checksum"):
        read(path, b"".join(written[number] for number in order))


def test_a_checksum_that_was_taken_away_is_missed(path):
    written = lines()
    with pytest.raises(DamagedFile, match="line 2, field checksum: found another"):
        read(path, written[0] + b"".join(lines(sealed=False)[1:]))


def test_the_last_line_may_be_incomplete_only_while_a_run_goes_on(path):
    torn = b"".join(lines())[:-5]
    assert read(path, torn, unfinished=True) == RECORDS[:2]
    with pytest.raises(DamagedFile, match="line 3: found the end of the file"):
        read(path, torn)


def test_a_part_of_the_lines(path):
    written = lines()
    reader = LineReader(path, len(written[0]))
    path.write_bytes(b"".join(written))
    assert list(reader) == RECORDS[:1]
    assert seal_line(RECORDS[1], reader.checksum)[0] == written[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"kind": "train", "step": 2, "seed": 1, "elbo": NaN}', r"line 1: wanted a JSON object: .*\(byte 48\)"),
        ('{"kind": "train", "step": 2, "seed": 1, "elbo": 1e999}', "line 1: wanted a JSON object: Number out of range"),
        ('{"kind": "train", "step": 2, "seed": 1, "elbo": "low"}', 'field elbo: found "low", wanted a number'),
        ('{"kind": "train", "step": 2, "seed": 1, "elbo": [1]}', r"field elbo: found \[1\], wanted a number"),
        ('{"kind": "train", "step": 2, "seed": 1, "elbo": true}', "field elbo: found true, wanted a number"),
        ('{"kind": "train", "step": 2, "seed": 1, "v": {"a": {}}}', "field v: found .*, wanted a number"),
        ('{"kind": "train", "step": -2, "seed": 1}', "field step: Expected `int` >= 0"),
        ('{"kind": "train", "step": 2.5, "seed": 1}', "field step: Expected `int`, got `float`"),
        ('{"kind": "train", "step": 2}', "Object missing required field `seed`"),
        ("[1, 2]", "line 1: wanted a JSON object: Expected `object`, got `array`"),
        ("{", "line 1: wanted a JSON object: Input data was truncated"),
        ("\x00\x1b[31m", "wanted a JSON object"),
    ],
)
def test_faults_are_named(path, line, said):
    with pytest.raises(DamagedFile, match=said):
        read(path, f"{line}\n".encode())


def test_what_is_not_finite_is_written_as_null(path):
    record = {"kind": "train", "step": 2, "seed": 1, "elbo": float("nan"), "variance": float("inf")}
    assert read(path, seal_line(record, 0)[0]) == [record | {"elbo": None, "variance": None}]


def test_a_document_comes_back(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(seal_document({"settings": {"samples": 2, "names": ["a"]}}))
    assert read_document(path, Config) == Config(Settings(2, ("a",)))
    path.write_text('{"settings": {"samples": 3}}')
    assert read_document(path, Config) == Config(Settings(3), sealed=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"settings": {"samples": "two"}}', "field settings.samples: Expected `int`, got `str`"),
        (b'{"settings": {"samples": 2, "names": [1]}}', r"field settings.names\[0\]: Expected `str`, got `int`"),
        (b'{"settings": {}}', "field settings: Object missing required field `samples`"),
        (b"{}", "Object missing required field `settings`"),
        (b"[]", "wanted a JSON object: Expected `object`, got `array`"),
        (b"{,}", r"wanted a JSON object: JSON is malformed: .*\(byte 1\)"),
        (b'{\n"a": 1,\n,}', r"wanted a JSON object: JSON is malformed: .*\(byte 10\)"),
        (b'{"a": NaN}', r"JSON is malformed: .*\(byte 6\)"),
        (b'{"a": 1e999}', "JSON is malformed|out of range"),
        (b'{"a": "\xff"}', "wanted a JSON object"),
        (b"[" * 100_000, "wanted a JSON object"),
        (b"9" * 10_000, "wanted a JSON object"),
    ],
)
def test_faults_of_documents_are_named(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=said):
        read_document(path, Config)


def test_a_changed_number_of_a_document_is_noticed(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(seal_document({"settings": {"samples": 2}}).replace(b'"samples": 2', b'"samples": 3'))
    with pytest.raises(DamagedFile, match="field checksum: found a content with checksum"):
        read_document(path, Config)


def test_links_and_pipes_are_not_read(tmp_path):
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe.json"
    real.write_text(json.dumps({"settings": {"samples": 2}}))
    link.symlink_to(real)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="symbolic link"):
        read_document(link, Config)
    with pytest.raises(DamagedFile, match="wanted a regular file"):
        read_document(pipe, Config)
