"""Downloads: checked before they are kept, limited in size, and never spoiled by a second process."""

import hashlib
import http.server
import os
import subprocess
import sys
import threading
import time

import pytest

from bilevax.datasets import DatasetCorrupt, DatasetUnavailable, download
from bilevax.datasets.fingerprint import fingerprint
from bilevax.datasets.libsvm import read_dense
from bilevax.datasets.registry import DataFile, Entry

TEXT = b"".join(b"%d 1:%d 2:%d\n" % (i % 2, i, i * i) for i in range(20_000))
CHILD = """
import sys
from functools import partial
from bilevax.datasets.download import download
from bilevax.datasets.libsvm import read_dense
from bilevax.datasets.registry import DataFile, Entry

url, sha256, content = sys.argv[1:]
file = DataFile("table", "fake/table", sha256, content, partial(read_dense, features=2), url)
print("ready", flush=True)
sys.stdin.readline()
try:
    print(download(Entry("fake", (file,), "", "", "", ""), file))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        bodies = [TEXT]
        asked = []

        def do_GET(self):
            self.asked.append(time.monotonic())
            body = self.bodies[(len(self.asked) - 1) % len(self.bodies)]
            self.send_response(200)
            self.end_headers()
            for piece in (body[i : i + 50_000] for i in range(0, len(body), 50_000)):
                self.wfile.write(piece)
                time.sleep(0.01)  # so that two downloads overlap

        def log_message(self, *_):
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.handler, found.url = Handler, f"http://127.0.0.1:{found.server_port}/table"
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def content(tmp_path):
    path = tmp_path / "truth"
    path.write_bytes(TEXT)
    return fingerprint(read_dense(path, 2))


def two_processes(server, cache, sums):
    environment = {**os.environ, "BILEVAX_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("BILEVAX_DATA", None)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, server.url, *sums],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    assert [process.stdout.readline() for process in started] == ["ready\n"] * 2
    for process in started:  # both at once
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[0].strip() for process in started]


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("wrong", [None, TEXT[:-100], b"<html>busy</html>"])
def test_two_processes_that_fetch_one_data_set(server, tmp_path, wrong):
    """Each has its own copy, verifies it, and gives it its name in one step; a wrong one is nobody's harm."""
    cache, sums = tmp_path / "cache", (hashlib.sha256(TEXT).hexdigest(), content(tmp_path))
    if wrong is not None:
        server.handler.bodies = [wrong, TEXT]
    told = two_processes(server, cache, sums)
    good = [words for words in told if words.endswith("fake/table")]
    assert len(good) == (2 if wrong is None else 1), told
    assert all(words.startswith("DatasetCorrupt") for words in told if words not in good)
    assert files_below(cache) == [cache / "fake" / "table"]
    assert (cache / "fake" / "table").read_bytes() == TEXT


def test_a_download_without_end_is_given_up(server, tmp_path, monkeypatch):
    from functools import partial

    monkeypatch.setenv("BILEVAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BILEVAX_DATA", raising=False)
    monkeypatch.setattr(download, "_MOST_DOWNLOAD", 100_000)
    file = DataFile("table", "fake/table", "", "", partial(read_dense, features=2), server.url)
    with pytest.raises(DatasetUnavailable, match="more than 100000 bytes came"):
        download.download(Entry("fake", (file,), "", "", "", ""), file)
    assert not files_below(tmp_path)


def test_an_archive_that_is_a_bomb_is_not_kept(server, tmp_path, monkeypatch):
    from functools import partial

    from bombs import zip_bomb

    monkeypatch.setenv("BILEVAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BILEVAX_DATA", raising=False)
    monkeypatch.setattr("bilevax.limits.SMALL", 10**6)
    server.handler.bodies = [zip_bomb("inner/table", 1 << 30)]
    file = DataFile("table", "fake/table", "", "", partial(read_dense, features=2), server.url, "inner/table")
    with pytest.raises(DatasetCorrupt, match="is not a zip archive with inner/table: .*is the limit"):
        download.download(Entry("fake", (file,), "", "", "", ""), file)
    assert not files_below(tmp_path)
