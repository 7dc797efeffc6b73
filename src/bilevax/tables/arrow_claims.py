"""How much memory an Arrow stream asks for, added up before pyarrow gives it.

Buffers may be packed, and then begin with the number of bytes that they unpack to. pyarrow believes that number, so it
is read here first, from the metadata of each message: tables of flatbuffers, as the Arrow format describes them.
"""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

from bilevax import limits

_DICTIONARY, _BATCH = 2, 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_ROWS, _BUFFERS, _PACKING = 0, 2, 3
_ENTRY = 8


def check_claims(path: object, stream: Any) -> int:
    """The number of rows of a stream of Arrow; a ValueError if it claims more than may come into memory."""
    rows = size = 0
    try:
        reader = import_module("pyarrow.ipc").MessageReader.open_stream(stream)
        for message in reader:
            metadata = message.metadata.to_pybytes()
            root = struct.unpack_from("<I", metadata, 0)[0]
            kind = _field(metadata, root, _MESSAGE_KIND)
            batch = _target(metadata, _field(metadata, root, _MESSAGE_HEADER))
            if kind is None or batch is None or metadata[kind] not in (_DICTIONARY, _BATCH):
                continue
            if metadata[kind] == _DICTIONARY:
                batch = _target(metadata, _field(metadata, batch, 1))
            else:
                length = _field(metadata, batch, _ROWS)
                rows += 0 if length is None else struct.unpack_from("<q", metadata, length)[0]
            size += _unpacked(metadata, batch, message.body)
            limits.check_size(path, max(size, rows), len(stream))
    except struct.error as error:
        raise ValueError(f"a message is cut short: {error}") from None
    if rows < 0:
        raise ValueError(f"it claims {rows} rows")
    return rows


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table stands, None if the table does not have it."""
    places = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    if places < 0 or at >= struct.unpack_from("<H", data, places)[0]:
        return None
    offset = struct.unpack_from("<H", data, places + at)[0]
    return table + offset if offset else None


def _target(data: bytes, field: int | None) -> int | None:
    """What a field points to."""
    return None if field is None else field + struct.unpack_from("<I", data, field)[0]


def _unpacked(data: bytes, batch: int | None, body: Any) -> int:
    """The bytes of all buffers of a batch in memory."""
    if batch is None:
        return 0
    vector = _target(data, _field(data, batch, _BUFFERS))
    if vector is None:
        return 0
    count, total = struct.unpack_from("<I", data, vector)[0], 0
    content = memoryview(b"" if body is None else body)
    packed = _field(data, batch, _PACKING) is not None
    for number in range(count):
        offset, length = struct.unpack_from("<qq", data, vector + 4 + 16 * number)
        if min(offset, length) < 0 or offset + length > len(content):
            raise ValueError("a buffer lies outside of its message")
        claimed = struct.unpack_from("<q", content, offset)[0] if packed and length >= _ENTRY else length
        total += max(claimed, length)  # -1 says that the buffer is not packed
    return total
