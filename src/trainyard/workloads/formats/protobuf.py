"""The wire format of protocol buffers, by hand: what ONNX files and Chakra traces are made of.

A message is a run of fields, each a key (field number * 8 + wire type) and a value: 0 a varint, 1 eight bytes, 2 a length and that
many bytes (text, a message, packed numbers), 5 four bytes (protobuf.dev, Encoding). Reading copies nothing: a nested message is a
view of the file, so weights of gigabytes are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from trainyard.errors import BadInput

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
Value = int | memoryview
"""The unsigned number of a varint; the bytes of any other field."""
_MODULUS = 2**64


def fields(message: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Field number, wire type and value of each field of a message, in order.

    >>> [(number, kind) for number, kind, _ in fields(memoryview(b"\\x08\\x96\\x01\\x12\\x02hi"))]
    [(1, 0), (2, 2)]
    """
    at, end = 0, len(message)
    while at < end:
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise BadInput(f"byte {at}: a field has the number 0: this is no protocol buffer")
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, kind, value
            continue
        size = 8 if kind == EIGHT_BYTES else 4 if kind == FOUR_BYTES else -1
        if kind == LENGTH:
            size, at = varint(message, at)
        if size < 0:
            raise BadInput(f"byte {at}: wire type {kind} of field {number} is not known")
        if size > end - at:
            raise BadInput(f"byte {at}: field {number} has {size} bytes, only {end - at} are left: the file is cut short")
        yield number, kind, message[at : at + size]
        at += size


def varint(message: memoryview, at: int) -> tuple[int, int]:
    """The varint that begins at byte `at`, and where it ends."""
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value % _MODULUS, at
        shift += 7
        if shift >= 70:
            raise BadInput(f"byte {at}: a number has more than ten bytes")
    raise BadInput(f"byte {at}: the file ends inside a number")


def signed(value: int) -> int:
    """A varint read as a two's complement number of 64 bits."""
    return value - _MODULUS if value >= _MODULUS // 2 else value


def text(value: Value) -> str:
    if isinstance(value, int):
        raise BadInput("a number stands where text is expected")
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise BadInput("text that is not UTF-8") from None


def integer(value: Value) -> int:
    if not isinstance(value, int):
        raise BadInput(f"{len(value)} bytes stand where a number is expected")
    return signed(value)


def nested(value: Value) -> memoryview:
    """A nested message."""
    if isinstance(value, int):
        raise BadInput("a number stands where a message is expected")
    return value


def integers(value: Value, kind: int, limit: int) -> list[int]:
    """A repeated integer field, which is written as single varints or packed."""
    if kind == VARINT:
        return [integer(value)]
    window, at = nested(value), 0
    numbers: list[int] = []
    while at < len(window):
        if len(numbers) >= limit:
            raise BadInput(f"a list of more than {limit} numbers")
        number, at = varint(window, at)
        numbers.append(signed(number))
    return numbers


def floats(value: Value, kind: int) -> tuple[float, ...]:
    """A number of four or eight bytes, or packed numbers of four bytes each."""
    window = nested(value)
    letter, size = ("d", 8) if kind == EIGHT_BYTES else ("f", 4)
    if len(window) % size:
        raise BadInput(f"{len(window)} bytes are no whole count of numbers")
    return struct.unpack(f"<{len(window) // size}{letter}", window)


def write_varint(value: int) -> bytes:
    """
    >>> write_varint(150), write_varint(-1).hex()
    (b'\\x96\\x01', 'ffffffffffffffffff01')
    """
    value %= _MODULUS
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)


def write_number(field: int, value: int) -> bytes:
    return write_varint(field << 3 | VARINT) + write_varint(value)


def write_bytes(field: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return write_varint(field << 3 | LENGTH) + write_varint(len(content)) + content


def write_double(field: int, value: float) -> bytes:
    return write_varint(field << 3 | EIGHT_BYTES) + struct.pack("<d", value)


def write_packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated integer field, packed; no bytes for an empty list."""
    content = b"".join(map(write_varint, values))
    return write_bytes(field, content) if content else b""


def delimited(message: bytes) -> bytes:
    """A message with its length before it, as a file of many messages holds them."""
    return write_varint(len(message)) + message
