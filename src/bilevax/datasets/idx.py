"""The IDX format of MNIST: unsigned bytes under a header with the shape."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from bilevax.files import unpacked


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An array of bytes with that many dimensions."""
    data = unpacked(path)
    offset = 4 + 4 * dimensions
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) < offset:
        raise ValueError(f"{path}: expected an IDX file of bytes in {dimensions} dimensions, got header {data[:4]!r}")
    shape = struct.unpack(f">{dimensions}I", data[4:offset])
    if len(data) - offset != math.prod(shape):
        raise ValueError(f"{path}: expected {math.prod(shape)} bytes for shape {shape}, got {len(data) - offset}")
    try:
        return np.frombuffer(data, np.uint8, offset=offset).reshape(shape).copy()
    except ValueError as error:  # no bytes at all, and sides whose product is too large without the one that is 0
        raise ValueError(f"{path}: shape {shape}: {error}") from None
