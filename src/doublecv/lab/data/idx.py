"""The idx format of MNIST: 0, 0, a type, the number of axes, their lengths as big-endian int32, the values."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from doublecv.lab.common.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import UInt8

UNSIGNED_BYTE = 0x08
AXES = 3


def read_images(content: bytes) -> UInt8[np.ndarray, "images height width"]:
    """The images of an idx file of unsigned bytes with three axes."""
    magic = bytes([0, 0, UNSIGNED_BYTE, AXES])
    if content[:4] != magic:
        raise InputError(f"not an idx file of images: expected it to start with {magic!r}, found {content[:4]!r}")
    header = 4 + 4 * AXES
    if len(content) < header:
        raise InputError(f"the idx header is cut off: expected {header} bytes, found {len(content)}")
    shape = struct.unpack(f">{AXES}I", content[4:header])
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise InputError(f"the idx header promises {shape}: expected {expected} bytes, found {len(content)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
