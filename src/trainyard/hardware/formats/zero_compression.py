"""Zero-value compression of DRAM traffic, as in the compressing DMA engine.

M. Rhu, M. O'Connor, N. Chatterjee, J. Pool, Y. Kwon, S. W. Keckler: Compressing DMA Engine: Leveraging Activation Sparsity for
Training Deep Neural Networks. HPCA 2018.

A tensor is cut into windows of 32 elements. Each window becomes a mask, one bit an element, and behind it the elements that are not
zero, in order. The last window's mask has as many bits as there are elements left, in whole bytes. With n elements of s bytes, of
which z are not zero, this takes

    ceil(n / 8) + z s bytes,

wherever the non-zeros are. A tensor that would grow is stored uncompressed: the flag for that is in the transfer's descriptor, with
the shape and the type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

WINDOW = 32  # Rhu, HPCA 2018: a window of 32 elements, so that its mask is one 32-bit word
MASK_BYTES = WINDOW // 8
Octets = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor in DRAM: its bytes, and their description in the transfer's descriptor."""

    data: bytes
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    compressed: bool

    def __len__(self) -> int:
        return len(self.data)


def compressed_bytes(elements: int, nonzero: int, element_bytes: int) -> int:
    """Bytes of a tensor in DRAM, in closed form.

    >>> compressed_bytes(64, 16, 4), compressed_bytes(64, 63, 4), compressed_bytes(5, 0, 4)  # a quarter, too full to pay, all zero
    (72, 256, 1)
    """
    if not 0 <= nonzero <= elements or element_bytes < 1:
        raise BadInput(f"zero compression: {nonzero} of {elements} elements of {element_bytes} bytes are not zero: that cannot be")
    return min(elements * element_bytes, -(-elements // 8) + nonzero * element_bytes)


def encode(values: npt.NDArray[Any]) -> Stored:
    """A tensor compressed, or uncompressed where that is shorter.

    Zero is the element whose bits are all zero, so that decoding is exact: a negative zero is stored.

    >>> len(encode(np.zeros(32, np.float32))), len(encode(np.ones(32, np.float32)))
    (4, 128)
    """
    elements = _octets(values)
    nonzero: npt.NDArray[np.bool_] = np.asarray(elements.any(axis=1))
    if compressed_bytes(len(nonzero), int(nonzero.sum()), elements.shape[1]) == elements.size:
        return Stored(data=elements.tobytes(), shape=values.shape, dtype=values.dtype, compressed=False)
    pieces: list[bytes] = []
    for start in range(0, len(nonzero), WINDOW):
        bits = nonzero[start : start + WINDOW]
        pieces.append(np.packbits(bits, bitorder="little").tobytes())
        pieces.append(elements[start : start + WINDOW][bits].tobytes())
    return Stored(data=b"".join(pieces), shape=values.shape, dtype=values.dtype, compressed=True)


def decode(stored: Stored) -> npt.NDArray[Any]:
    """The tensor that was encoded, bit for bit. The masks before a window give its offset, so windows are read in order.

    >>> bool((decode(encode(np.arange(-3.0, 9.0))) == np.arange(-3.0, 9.0)).all())
    True
    """
    size, count = stored.dtype.itemsize, int(np.prod(stored.shape, dtype=np.int64))
    data = np.frombuffer(stored.data, np.uint8)
    if not stored.compressed:
        _require(data.size == count * size, stored)
        return np.frombuffer(bytearray(stored.data), stored.dtype).reshape(stored.shape)
    elements = np.zeros((count, size), np.uint8)
    at = 0
    for start in range(0, count, WINDOW):
        length = min(WINDOW, count - start)
        mask = data[at : at + -(-length // 8)]
        _require(mask.size * 8 >= length, stored)
        bits = np.unpackbits(mask, bitorder="little", count=length).astype(np.bool_)
        at += mask.size
        nonzero = int(bits.sum())
        _require(at + nonzero * size <= data.size, stored)
        elements[start : start + length][bits] = data[at : at + nonzero * size].reshape(nonzero, size)
        at += nonzero * size
    _require(at == data.size, stored)
    return elements.reshape(-1).view(stored.dtype).reshape(stored.shape)


def _octets(values: npt.NDArray[Any]) -> Octets:
    """One row of bytes for each element."""
    if values.dtype.hasobject or values.dtype.itemsize == 0:
        raise BadInput(f"zero compression: elements of type {values.dtype} have no bytes of their own: give numbers")
    return np.frombuffer(values.tobytes(), np.uint8).reshape(values.size, values.dtype.itemsize)


def _require(fits: bool, stored: Stored) -> None:
    if not fits:
        raise BadInput(f"zero compression: {len(stored)} bytes are not a tensor of shape {stored.shape} of {stored.dtype}")
