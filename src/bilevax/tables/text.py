"""Text files of unknown encoding and separator, made ready for the csv module."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bilevax.limits import check_lines

WHITESPACE = "spaces"
SEPARATORS = ("::", "\t", ";", ",", "|", WHITESPACE)
SAMPLE_LINES = 100  # from which separator and columns are guessed
STAND_IN = "\x1f"  # replaces separators of several characters


class TextFile(NamedTuple):
    """A text file ready for the csv module; `separator` is in the words of messages, `delimiter` that of the module."""

    path: Path
    data: bytes
    encoding: str
    delimiter: str
    quoting: Any
    separator: str
    escaped: bool
    """Whether quotation marks inside of fields may be written with a backslash before them."""

    def reader(self) -> Any:
        r"""A new csv reader of the whole file; quotes inside quotes may be doubled or written `\"`."""
        lines = io.TextIOWrapper(io.BytesIO(self.data), encoding=self.encoding, newline="")
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=self.quoting,
            escapechar="\\" if self.escaped else None,
            skipinitialspace=self.delimiter != " ",
        )

    def sample(self) -> list[list[str]]:
        """The first lines that are not blank; none if they cannot be parsed."""
        try:
            return list(islice(filter(None, self.reader()), SAMPLE_LINES))
        except csv.Error:
            return []


def open_text(path: Path, data: bytes, separator: str | None, needed: int, formats: str) -> TextFile:
    """Find the encoding and, if it is not given, the separator.

    `needed` is the least number of columns. `formats` are those that the caller reads, for messages.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", errors="replace").encode()
    if b"\0" in data[:4096]:
        raise ValueError(f"{path}: this is no text; expected {formats}.")
    data = check_lines(path, data.removeprefix(codecs.BOM_UTF8))
    encoding = "utf-8" if _is_utf8(data) else "latin-1"
    if separator == "":
        raise ValueError(f"{path}: the separator is empty; give a character, or None to have it guessed.")
    separator = WHITESPACE if separator == " " else separator or _guess_separator(path, data, encoding, needed)
    return _with_separator(path, data, encoding, separator)


def shortened(words: str) -> str:
    """The words in quotes, cut if they are too long for a message."""
    return repr(words if len(words) <= 60 else words[:60] + "...")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_separator(path: Path, data: bytes, encoding: str, separator: str) -> TextFile:
    """The csv module takes separators of one character only; others are replaced by one."""
    escaped = b'\\"' in data
    if separator == WHITESPACE:
        data = b"\n".join([b" ".join(line.split()) for line in data.splitlines()])
        return TextFile(path, data, encoding, " ", csv.QUOTE_NONE, WHITESPACE, escaped)
    if len(separator) > 1:
        data = data.replace(separator.encode(encoding), STAND_IN.encode())
        return TextFile(path, data, encoding, STAND_IN, csv.QUOTE_NONE, repr(separator), escaped)
    return TextFile(path, data, encoding, separator, csv.QUOTE_MINIMAL, repr(separator), escaped)


def _guess_separator(path: Path, data: bytes, encoding: str, needed: int) -> str:
    """The separator by which the most of the first lines have the same number of fields."""
    head = data[: 1 << 16]
    if len(data) > len(head):
        head = head[: head.rfind(b"\n") + 1] or head
    best, most = "", 0
    for separator in SEPARATORS:
        widths = Counter(len(row) for row in _with_separator(path, head, encoding, separator).sample())
        agreeing = max((count for width, count in widths.items() if width >= needed), default=0)
        if agreeing > most:
            best, most = separator, agreeing
    if not best:
        first = data.split(b"\n", 1)[0].decode(encoding).strip()
        raise ValueError(
            f"{path}: expected {needed} columns or more, separated by commas, semicolons, tabs, '|', '::' or spaces, "
            f"got {shortened(first)} in the first line."
        )
    return best
