"""Downloads from a server on loopback that is honest, absent, wrong, or gone in the middle."""

import gzip
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
from loopback import Answer, serving
from small_sets import TEST_NAME, TRAIN_NAME, SmallSet, other_gzip, sha256_file

from doublecv.lab.data.fetch import DownloadError, download, load_set, verified

CONTENT = os.urandom(300_000)


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("DOUBLECV_DATA", raising=False)


@pytest.fixture
def server():
    with serving() as server:
        yield server


def published(server, *paths):
    return sha256_file("numbers", CONTENT, [server.url(path) for path in paths])


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    "answer",
    [
        Answer(gzip.compress(CONTENT)),
        Answer(other_gzip(CONTENT)),
        Answer(CONTENT),
        Answer(gzip.compress(CONTENT), encoding="gzip"),
        Answer(gzip.compress(gzip.compress(CONTENT)), encoding="gzip"),
        Answer(gzip.compress(CONTENT), length_given=False),
    ],
    ids=["gzip", "other gzip", "plain", "unwrapped on the way", "wrapped on the way", "length not given"],
)
def test_any_wrapper_arrives_unpacked(server, tmp_path, answer):
    server.answers["numbers.gz"] = answer
    path = download(published(server, "numbers.gz"), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert files_below(tmp_path) == ["new/folder/numbers"]


@pytest.mark.parametrize("length_given", [True, False])
def test_a_download_that_does_not_end_is_given_up(server, tmp_path, length_given):
    server.answers["numbers"] = Answer(bytes(len(CONTENT) + (1 << 20) + 1), length_given=length_given)
    with pytest.raises(
        DownloadError, match=r"numbers: expected at most 300000 bytes with .*, found more than 1348576 bytes"
    ):
        download(published(server, "numbers"), tmp_path)
    assert files_below(tmp_path) == []


def test_redirect_is_followed(server, tmp_path):
    server.answers["old"] = Answer(b"", status=302, redirect=server.url("new"))
    server.answers["new"] = Answer(CONTENT)
    download(published(server, "old"), tmp_path)
    assert server.asked == ["old", "new"]


BROKEN = {
    "not there": (Answer(b"", status=404), "{url}: 404 Client Error: Not Found for url: {url}"),
    "server in trouble": (Answer(b"", status=503), "{url}: 503 Server Error: Service Unavailable for url: {url}"),
    "cut": (Answer(CONTENT, cut_after=100_000), "{url}: "),
    "cut before the first byte": (
        Answer(CONTENT, cut_after=0),
        "{url}: ",
    ),
    "cut, length not given": (
        Answer(CONTENT, cut_after=100_000, length_given=False),
        "{url}: expected at most 300000 bytes with {checksum}, found 100000 bytes with sha256:",
    ),
    "cut gzip, length not given": (
        Answer(gzip.compress(CONTENT), cut_after=100_000, length_given=False),
        "{url}: expected at most 300000 bytes with {checksum}, found 100000 bytes of broken gzip (",
    ),
    "cut within gzip encoding": (
        Answer(gzip.compress(CONTENT), cut_after=100_000, encoding="gzip"),
        "{url}: ",
    ),
    "wrong file": (
        Answer(b"<html>Welcome to the hotel</html>"),
        "{url}: expected at most 300000 bytes with {checksum}, found 33 bytes with sha256:",
    ),
    "wrong file in gzip": (
        Answer(gzip.compress(CONTENT[::-1])),
        "{url}: expected at most 300000 bytes with {checksum}, found 300000 bytes with sha256:",
    ),
    "empty": (Answer(b""), "{url}: expected at most 300000 bytes with {checksum}, found 0 bytes with sha256:"),
}


@pytest.mark.parametrize("trouble", BROKEN)
def test_broken_download_says_what_happened_and_leaves_nothing(server, tmp_path, trouble):
    answer, message = BROKEN[trouble]
    server.answers["numbers"] = answer
    file = published(server, "numbers")
    with pytest.raises(DownloadError) as raised:
        download(file, tmp_path)
    assert str(raised.value).startswith(message.format(url=server.url("numbers"), checksum=file.checksum))
    assert "\n" not in str(raised.value)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("trouble", BROKEN)
def test_next_mirror_is_tried_from_the_start(server, tmp_path, trouble):
    server.answers["first"] = BROKEN[trouble][0]
    server.answers["second"] = Answer(gzip.compress(CONTENT))
    file = published(server, "first", "second")
    path = download(file, tmp_path)
    assert verified(path, file) == CONTENT
    assert server.asked == ["first", "second"]
    assert files_below(tmp_path) == ["numbers"]


def test_every_failure_is_told(server, tmp_path):
    with serving() as gone:
        pass
    server.answers["wrong"] = Answer(b"wrong")
    file = sha256_file("numbers", CONTENT, [gone.url("a"), server.url("missing"), server.url("wrong")])
    with pytest.raises(DownloadError) as raised:
        download(file, tmp_path)
    first, second, third = str(raised.value).split("; ")
    assert first.startswith(gone.url("a"))
    assert "refused" in first
    assert second == f"{server.url('missing')}: 404 Client Error: Not Found for url: {server.url('missing')}"
    assert third.startswith(f"{server.url('wrong')}: expected at most 300000 bytes")
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("length_given", [True, False])
def test_server_that_falls_silent_is_given_up(server, tmp_path, monkeypatch, length_given):
    monkeypatch.setattr("doublecv.lab.data.fetch.SECONDS_WITHOUT_A_BYTE", 0.3)
    rest = threading.Event()
    server.answers["silent"] = Answer(CONTENT, wait=rest, length_given=length_given)
    server.answers["second"] = Answer(CONTENT)
    with pytest.raises(DownloadError, match=r"timed out|bytes read"):
        download(published(server, "silent"), tmp_path)
    assert files_below(tmp_path) == []
    path = download(published(server, "silent", "second"), tmp_path)
    rest.set()
    assert path.read_bytes() == CONTENT


def test_older_file_is_kept_until_the_new_one_is_whole(server, tmp_path):
    (tmp_path / "numbers").write_bytes(b"older")
    server.answers["numbers"] = BROKEN["cut"][0]
    with pytest.raises(DownloadError):
        download(published(server, "numbers"), tmp_path)
    assert (tmp_path / "numbers").read_bytes() == b"older"
    server.answers["numbers"] = Answer(CONTENT)
    download(published(server, "numbers"), tmp_path)
    assert (tmp_path / "numbers").read_bytes() == CONTENT


def test_full_disk_is_an_error_with_the_file_named_and_nothing_left(server, tmp_path):
    server.answers["numbers"] = Answer(CONTENT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            download(published(server, "numbers", "numbers"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(raised.value)
    assert server.asked == ["numbers"]
    assert files_below(tmp_path) == []


def process_that_downloads(file, folder):
    code = (
        "import sys; from pathlib import Path\n"
        "from doublecv.lab.data.fetch import download\n"
        "from doublecv.lab.data.catalogue import PublishedFile\n"
        f"file = PublishedFile({file.name!r}, {file.checksum!r}, {file.length}, {file.mirrors!r})\n"
        f"download(file, Path({str(folder)!r}))\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_stopped_process_leaves_no_file_of_that_name(server, tmp_path, stop):
    rest = threading.Event()
    server.answers["numbers"] = Answer(CONTENT, wait=rest)
    process = process_that_downloads(published(server, "numbers"), tmp_path)
    deadline = time.monotonic() + 60
    while not server.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    partial = files_below(tmp_path)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=60)
    rest.set()
    assert [name.startswith("tmp") for name in partial] == [True]
    assert process.returncode != 0
    assert files_below(tmp_path) == (partial if stop == signal.SIGKILL else []), errors


def test_two_processes_at_once_do_not_disturb_each_other(server, tmp_path):
    rest = threading.Event()
    server.answers["numbers"] = Answer(CONTENT, wait=rest)
    file = published(server, "numbers")
    processes = [process_that_downloads(file, tmp_path) for _ in range(2)]
    deadline = time.monotonic() + 60
    while len(server.asked) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    rest.set()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert files_below(tmp_path) == ["numbers"]
    assert verified(tmp_path / "numbers", file) == CONTENT


def test_set_is_downloaded_once(server, tmp_path):
    small = SmallSet(homes=[server.url("home")])
    for name, content in small.contents.items():
        server.answers[f"home/{name}.gz"] = Answer(other_gzip(content))
    for _ in range(2):
        assert small.is_loaded_in(load_set(small.set, None, tmp_path))
    assert server.asked == [f"home/{TRAIN_NAME}.gz", f"home/{TEST_NAME}.gz"]
    assert files_below(tmp_path) == [f"small/{TEST_NAME}", f"small/{TRAIN_NAME}"]


def test_set_half_downloaded_goes_on_with_the_other_half(server, tmp_path):
    small = SmallSet(homes=[server.url("home")])
    server.answers[f"home/{TRAIN_NAME}.gz"] = Answer(gzip.compress(small.contents[TRAIN_NAME]))
    with pytest.raises(DownloadError) as raised:
        load_set(small.set, None, tmp_path)
    assert str(raised.value) == (
        f"the data set small is not in {tmp_path}/small and could not be downloaded: "
        f"{server.url('home')}/{TEST_NAME}.gz: "
        f"404 Client Error: Not Found for url: {server.url('home')}/{TEST_NAME}.gz; "
        f"put {TRAIN_NAME} and {TEST_NAME} into DIR/small and name DIR with --data-dir or $DOUBLECV_DATA"
    )
    server.answers[f"home/{TEST_NAME}.gz"] = Answer(gzip.compress(small.contents[TEST_NAME]))
    assert small.is_loaded_in(load_set(small.set, None, tmp_path))
    assert server.asked.count(f"home/{TRAIN_NAME}.gz") == 1


def test_set_that_is_found_is_not_asked_for(server, tmp_path):
    small = SmallSet(homes=[server.url("home")])
    small.write(tmp_path / "named")
    assert small.is_loaded_in(load_set(small.set, tmp_path / "named", tmp_path / "cache"))
    assert server.asked == []
    assert not (tmp_path / "cache").exists()
