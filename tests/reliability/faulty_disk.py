"""A disk that fails: at one of its calls, in one of the ways in which disks fail."""

import errno
import os
from pathlib import Path

from bilevax import files


class Killed(BaseException):
    """What SIGKILL does, without the process: nothing that follows is executed but `finally` and `with`."""


class FaultyDisk(files.Disk):
    """Fails at call number `at`; `kind` is "full", "error", "killed", "no rename" or "lost"."""

    def __init__(self, kind, at):
        self.kind, self.at, self.calls, self.unflushed, self.failed = kind, at, 0, [], False

    def _now(self):
        self.calls += 1
        return self.calls == self.at or (self.failed and self.kind == "full")

    def _fail(self):
        self.failed = True
        if self.kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.kind == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.kind == "lost":  # the power fails: what was not really flushed is half there
            for path in self.unflushed:
                if Path(path).exists():
                    os.truncate(path, Path(path).stat().st_size // 2)
        raise Killed

    def _opened(self, stream):
        write, disk = stream.write, self

        class Stream:
            name = stream.name

            def write(self, data):
                if disk._now():
                    write(bytes(data)[: len(data) // 2] if not isinstance(data, str) else data[: len(data) // 2])
                    stream.flush()
                    disk._fail()
                return write(data)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                stream.close()

            def __getattr__(self, name):
                return getattr(stream, name)

        return Stream()

    def create(self, folder, name, mode):
        if self._now():
            self._fail()
        stream, path = super().create(folder, name, mode)
        return self._opened(stream), path

    def append(self, path):
        return self._opened(super().append(path))

    def flush(self, stream):
        if self.kind == "lost":
            stream.flush()
            self.unflushed = [stream.name]
            self._now()
            return
        if self._now():
            self._fail()
        super().flush(stream)

    def rename(self, old, new):
        if self.kind == "lost":
            self.unflushed = [new]
        if self._now():
            if self.kind == "no rename":
                raise Killed
            if self.kind == "lost":
                super().rename(old, new)
            self._fail()
        super().rename(old, new)

    def flush_folder(self, folder):
        if self._now():
            self._fail()
        super().flush_folder(folder)
