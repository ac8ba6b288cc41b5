"""CRC-32C (Castagnoli), as RFC 3720, appendix B.4, defines it, and the mask that TFRecord puts on.

Law: pure.
"""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # reflected 0x1EDC6F41
_MASK_DELTA = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_row(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    """The checksum of `data`, 32 bits."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """As it is stored: rotated right by 15 bits and moved, so that no checksum is of itself."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
