"""Real matrices of a MATLAB 5 file, and cells of them: only what data sets need, so that hostile files can do little.

A file is a header of 128 bytes and elements, packed or not. Each element is a type, a length and content, filled up to
8 bytes; elements of up to 4 bytes have type and length in one number. A matrix is an element that holds elements; those
of a cell array are matrices.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from bilevax import limits

_MATRIX, _PACKED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CELLS = 1  # a class of matrices
_DENSE = range(6, 16)  # classes of matrices: double, single and integers
_COMPLEX = 0x0800
_MOST_CELLS = 100_000  # an empty cell takes few bytes in a file and many in memory

Made = TypeVar("Made")


def read_matrices(path: Path, data: bytes, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The matrices of these names as floats; a ValueError where one is missing or the file is damaged."""
    return _read(path, data, names, _numbers)


def read_cells(path: Path, data: bytes, names: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    """The cell arrays of these names, each as a list of matrices of floats; cells in cells are refused."""
    return _read(path, data, names, _cells)


def _read(
    path: Path, data: bytes, names: tuple[str, ...], make: Callable[[memoryview, str], tuple[str, Made] | None]
) -> dict[str, Made]:
    found: dict[str, Made] = {}
    try:
        order = {b"IM": "<", b"MI": ">"}[data[126:128]]
        for kind, content in _elements(memoryview(data)[128:], order):
            if kind == _PACKED:
                content = memoryview(_unpacked(path, bytes(content)))
                kind, content = next(_elements(content, order))
            if kind == _MATRIX and _header(content, order)[2] in names and (made := make(content, order)):
                found |= [made]
        return {name: found[name] for name in names}
    except (KeyError, StopIteration, struct.error, zlib.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a MATLAB file with {' and '.join(names)} ({type(error).__name__}).") from None


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at + 8 <= len(data):
        kind, length = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:  # a small one: its length is in the upper half, its content follows at once
            yield kind & 0xFFFF, data[at + 4 : at + 4 + min(kind >> 16, 4)]
            at += 8
            continue
        if length > len(data) - at - 8:
            raise IndexError
        yield kind, data[at + 8 : at + 8 + length]
        at += 8 + length
        if kind != _PACKED:
            at += -at % 8


def _unpacked(path: Path, content: bytes) -> bytes:
    most = limits.most_bytes(packed=len(content))
    unpacked = zlib.decompressobj().decompress(content, most + 1)
    limits.check_size(path, len(unpacked), packed=len(content), what="unpacked, a matrix")
    return unpacked


def _header(content: memoryview, order: str) -> tuple[int, tuple[int, ...], str, Iterator[tuple[int, memoryview]]]:
    """Flags, shape and name of a matrix, and the elements that follow."""
    parts = _elements(content, order)
    flags = struct.unpack_from(f"{order}I", next(parts)[1])[0]
    sizes = next(parts)[1]
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    return flags, shape, bytes(next(parts)[1]).decode("ascii"), parts


def _numbers(content: memoryview, order: str) -> tuple[str, np.ndarray] | None:
    """A matrix of numbers, or None for another kind."""
    flags, shape, name, parts = _header(content, order)
    if flags & 0xFF not in _DENSE or flags & _COMPLEX:
        return None
    kind, numbers = next(parts)
    stored = np.dtype(order + _NUMBERS[kind])
    if len(numbers) % stored.itemsize:
        raise IndexError
    values = np.frombuffer(numbers, stored)
    if min(shape, default=-1) < 0 or math.prod(shape) != len(values):
        raise IndexError
    return name, values.astype(float).reshape(shape, order="F")


def _cells(content: memoryview, order: str) -> tuple[str, list[np.ndarray]] | None:
    """The matrices of a cell array, or None for another kind."""
    flags, shape, name, parts = _header(content, order)
    if flags & 0xFF != _CELLS:
        return None
    if min(shape, default=-1) < 0 or math.prod(shape) > _MOST_CELLS:
        raise IndexError
    matrices: list[np.ndarray] = []
    for kind, cell in parts:
        made = _numbers(cell, order) if kind == _MATRIX and len(matrices) < math.prod(shape) else None
        if made is None:
            raise IndexError
        matrices.append(made[1])
    if len(matrices) != math.prod(shape):
        raise IndexError
    return name, matrices
