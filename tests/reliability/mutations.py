"""Files changed as damage and malice change them: a list of operations that Hypothesis draws and makes shorter."""

import struct

from hypothesis import strategies as st

HUGE = [0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 10**12, 2**62, 2**63 - 1, 2**64 - 1]
DIGITS = [
    b"-1",
    b"0",
    b"99999999999999999999",
    b"1e999",
    b"nan",
    b"-inf",
    b"1000000000000",
    b"0x10",
    b"\xff",
    b'"',
    b"",
]

PLACE = st.integers(0, 2**16 - 1)
FLIP = st.tuples(st.just("flip"), PLACE, st.integers(0, 7))
CUT = st.tuples(st.just("cut"), PLACE, st.just(0))
DROP = st.tuples(st.just("drop"), PLACE, st.integers(1, 64))
REPEAT = st.tuples(st.just("repeat"), PLACE, st.integers(1, 64))
MOVE = st.tuples(st.just("move"), PLACE, PLACE)
BINARY = st.tuples(st.just("binary"), PLACE, st.sampled_from(HUGE))
TEXT = st.tuples(st.just("text"), PLACE, st.sampled_from(DIGITS))
NOISE = st.tuples(st.just("noise"), PLACE, st.binary(min_size=1, max_size=12))
OPERATIONS = st.lists(st.one_of(FLIP, CUT, DROP, REPEAT, MOVE, BINARY, TEXT, NOISE), min_size=1, max_size=4)


def mutated(content, operations):
    """The content after these operations; places are shares of its length."""
    for kind, place, more in operations:
        at = place * len(content) >> 16
        if kind == "flip" and content:
            content = content[:at] + bytes([content[at] ^ 1 << more]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "drop":
            content = content[:at] + content[at + more :]
        elif kind == "repeat":
            content = content[:at] + content[at : at + 16] * more + content[at + 16 :]
        elif kind == "move":
            other = more * len(content) >> 16
            content = content[:at] + content[other : other + 24] + content[at + 24 :]
        elif kind == "binary":
            number = struct.pack("<Q", more) if more >= 2**32 else struct.pack("<I", more)
            content = content[:at] + number + content[at + len(number) :]
        elif kind == "text":
            content = _replaced(content, at, more)
        elif kind == "noise":
            content = content[:at] + more + content[at + len(more) :]
    return content


def _replaced(content, at, digits):
    """The next number in a text by another one."""
    while at < len(content) and not content[at : at + 1].isdigit():
        at += 1
    end = at
    while end < len(content) and content[end : end + 1] in b"0123456789.e+-":
        end += 1
    return content[:at] + digits + content[end:]
