"""Text whose lines are checked before they are parsed."""

from __future__ import annotations

import re
from pathlib import Path

from bilevax.limits import check_lines


def match_lines(path: Path, data: bytes, line: bytes, expected: str, *, skip: int = 0) -> bytes:
    """The data after `skip` lines, without trailing blanks; the first line that does not match is named.

    Once every line matches, a parser may run over the whole file at the speed of C.
    """
    check_lines(path, data)
    for _ in range(skip):
        data = data.partition(b"\n")[2]
    data = data.rstrip() + b"\n"
    # One search for a line start that is not followed by a good line; the end of the last line is no line start.
    bad = re.compile(rb"^(?!" + line + rb"\r?$)", re.MULTILINE).search(data, 0, len(data) - 1)
    if bad:
        number = skip + 1 + data.count(b"\n", 0, bad.start())
        received = data[bad.start() :].split(b"\n", 1)[0][:60]
        raise ValueError(f"{path}, line {number}: expected {expected}, got {received!r}")
    return data
