"""Small files that claim, or unpack to, far more than they are."""

import bz2
import gzip
import hashlib
import io
import json
import struct
import zipfile
import zlib

import numpy as np
from hostile_readers import matlab, zipped

PIECE = 1 << 22
CLAIMED = 10**12


def deflated(size, byte=b"a"):
    """Raw deflate of so many equal bytes: one packed piece over and over."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(byte * PIECE) + packer.flush(zlib.Z_FULL_FLUSH)
    return piece * (size // PIECE) + zlib.compressobj(9, wbits=-15).flush()


def gzip_bomb(size, byte=b"a"):
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + deflated(size, byte) + bytes(8)


def bzip2_bomb(size):
    return bz2.compress(b"a" * PIECE) * (size // PIECE)


def npy(kind="<f8", shape=(CLAIMED,), content=b"\0" * 64, length=None):
    text = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(text) if length is None else length) + text + content


def npz(names, **options):
    return zipped({f"{name}.npy": npy(**options) for name in names})


def zip_with_claims(name, content, claimed):
    """An archive whose lists say that a part has so many bytes."""
    data = bytearray(zipped({name: content}, kind=zipfile.ZIP_DEFLATED))
    for signature, at in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        place = data.index(signature) + at
        data[place : place + 4] = struct.pack("<I", claimed)
    return bytes(data)


def zip_bomb(name, size):
    """A part that really unpacks to so many bytes; only its checksum is wrong."""
    content, size = deflated(size), size // PIECE * PIECE
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0x21, 0, len(content), size, len(name), 0) + name.encode()
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0x21, 0, len(content), size, len(name), *[0] * 6)
    entry += name.encode()
    start = len(local) + len(content)
    return local + content + entry + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), start, 0)


def long_directory(size):
    """An archive that consists of nothing but a list of parts."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0x21, 0, 0, 0, 1, *[0] * 6) + b"a"
    entries = entry * (size // len(entry))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFE, 0xFFFE, len(entries), 0, 0)
    return b"PK\3\4" + entries + end


def packed_claims():
    """A checkpoint with right checksums and an array that claims too much."""
    text = json.dumps({"kind": "bilevax checkpoint", "arrays": {"a": "0"}}).encode()
    return zipped({"a.npy": npy(), "header.json": text}, hashlib.sha256(text).hexdigest().encode())


def matlab_bomb(size):
    content = zlib.compress(b"a" * PIECE)[:2] + deflated(size) + bytes(4)
    return matlab()[:128] + struct.pack("<II", 15, len(content)) + content


def parquet_rows(rows):
    """A few bytes that stand for many equal rows."""
    import pyarrow
    import pyarrow.parquet

    out, ones = io.BytesIO(), np.ones(rows, np.int8)
    table = pyarrow.table({"user": ones, "item": ones, "rating": ones})
    pyarrow.parquet.write_table(table, out, row_group_size=rows)
    return out.getvalue()


SPARSE = ["rows", "cols", "values"]
MODEL = ["header"]
NEWS = ["data", "indices", "indptr", "shape", "y20", "y6"]


def bombs(small):
    """Content by name and reader; `small` bytes is what a packed file may always unpack to."""
    much = 4 * small
    return {
        "claims.npz ratings": npz(SPARSE),
        "negative.npz ratings": npz(SPARSE, shape=(-1, -8)),
        "objects.npz ratings": npz(SPARSE, kind="|O", shape=(8,)),
        "long header.npz ratings": npz(SPARSE, length=2**32 - 1),
        "zip claims.npz ratings": zip_with_claims("rows.npy", npy(), 2**32 - 2),
        "bomb.npz ratings": zip_bomb("rows.npy", much),
        "directory.npz ratings": long_directory(30_000_000),
        "claims.npz model": npz(MODEL),
        "text.npz model": npz(MODEL, kind="<U999999999", shape=(1000,)),
        "bomb.npz model": zip_bomb("header.npy", much),
        "claims.npz newsgroups": npz(NEWS),
        "claims.npz packed": packed_claims(),
        "directory.npz packed": long_directory(30_000_000),
        "bomb.csv.gz ratings": gzip_bomb(much),
        "one line.csv.gz ratings": gzip.compress(b"a" * (small // 2)),
        "bomb.csv.bz2 ratings": bzip2_bomb(much),
        "images.gz idx": gzip_bomb(much, b"\0"),
        "shape.idx idx": bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3) + bytes(24),
        "one line.gz libsvm": gzip.compress(b"1" * (small // 2)),
        "bomb.mat matlab": matlab_bomb(much),
        "rows.parquet ratings": parquet_rows(9_000_000),
        "rows.parquet stream": parquet_rows(9_000_000),
        "archive.zip member": zip_bomb("inner/table", much),
    }
