"""How numbers travel: full or half precision, or int8 in blocks with a scale each. Pure functions.

int8 divides every row into blocks of 64. A block's largest magnitude is 127; its scale is a float32. All scales of a
payload come first, then all codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64
MAX_CODE = 127
SCALE = torch.float32


def wire_bytes(wire: str, rows: int, width: int) -> int:
    """Return the size of an array [rows, width] on the wire, in bytes."""
    if wire == "int8":
        return rows * (width + SCALE.itemsize * math.ceil(width / BLOCK))
    dtype: torch.dtype = getattr(torch, wire)
    return dtype.itemsize * rows * width


def encode(arrays: Sequence[Tensor], wire: str) -> Tensor:
    """Return the bytes of arrays, each [rows, width], as a uint8 tensor on the CPU.

    Raises:
        OverflowError: a number is NaN, infinite, or too large for the wire.
    """
    if wire == "int8":
        coded = [_quantised(array.detach().cpu()) for array in arrays]
        scales = torch.cat([scale.reshape(-1) for _, scale in coded]).contiguous()
        if not finite(scales):
            raise OverflowError
        codes = [_unpadded(code, array.shape[1]).reshape(-1) for (code, _), array in zip(coded, arrays, strict=True)]
        return torch.cat([scales.view(torch.uint8), *(code.view(torch.uint8) for code in codes)])
    dtype: torch.dtype = getattr(torch, wire)
    flat = torch.cat([array.reshape(-1) for array in arrays]).detach().to("cpu", dtype)
    if not finite(flat.float() if dtype.itemsize < 4 else flat):
        raise OverflowError
    return flat.view(torch.uint8)


def decode(data: bytes, shapes: Sequence[tuple[int, int]], wire: str, device: str = "cpu") -> list[Tensor]:
    """Return the arrays of the given shapes that the bytes hold: half precision and int8 as float32.

    Raises:
        OverflowError: a number is NaN or infinite; its argument is the place of the first such array.
    """
    if wire == "int8":
        numbers = arrays = _decode_int8(data, shapes, device)
    else:
        dtype: torch.dtype = getattr(torch, wire)
        flat = torch.frombuffer(bytearray(data), dtype=dtype).to(device) if data else torch.empty(0, dtype=dtype)
        flat = flat.float() if dtype.itemsize < 4 else flat
        parts = flat.split_with_sizes([rows * width for rows, width in shapes])
        numbers, arrays = [flat], [array.view(shape) for array, shape in zip(parts, shapes, strict=True)]
    if not all(finite(array) for array in numbers):
        raise OverflowError(next(place for place, array in enumerate(arrays) if not finite(array)))
    return arrays


def as_received(array: Tensor, wire: str) -> Tensor:
    """Return what the other end decodes of an array [rows, width], in the array's own dtype."""
    if wire == "int8":
        codes, scales = _quantised(array)
        return _unpadded(codes * scales.unsqueeze(-1), array.shape[1]).to(array.dtype)
    return array.to(getattr(torch, wire)).to(array.dtype)


def is_lossless(wire: str, dtype: torch.dtype) -> bool:
    """Tell whether numbers of a dtype come back as they were."""
    return wire == "float64" or (wire == "float32" and dtype == torch.float32)


def finite(numbers: Tensor) -> bool:
    """Tell whether no value is NaN or infinite: each would show in the sum, which is twelve times faster to take."""
    return math.isfinite(numbers.sum().item()) or bool(torch.isfinite(numbers).all())


def _quantised(array: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes [rows, blocks, 64], padded with zeros, and float32 scales [rows, blocks]."""
    rows, width = array.shape
    blocks = F.pad(array, (0, -width % BLOCK)).reshape(rows, math.ceil(width / BLOCK), BLOCK)
    scales = (blocks.abs().amax(dim=-1) / MAX_CODE).to(SCALE)
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    return (blocks / divisors).round().clamp(-MAX_CODE, MAX_CODE).to(torch.int8), scales


def _unpadded(blocks: Tensor, width: int) -> Tensor:
    return blocks.reshape(blocks.shape[0], blocks.shape[1] * BLOCK)[:, :width]


def _decode_int8(data: bytes, shapes: Sequence[tuple[int, int]], device: str) -> list[Tensor]:
    sizes = [(rows, math.ceil(width / BLOCK)) for rows, width in shapes]
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    at = SCALE.itemsize * sum(rows * blocks for rows, blocks in sizes)
    scales = buffer[:at].view(SCALE).to(device).split([rows * blocks for rows, blocks in sizes])
    codes = buffer[at:].view(torch.int8).to(device).split([rows * width for rows, width in shapes])
    arrays = []
    for scale, code, size, shape in zip(scales, codes, sizes, shapes, strict=True):
        wide = scale.view(size).repeat_interleave(BLOCK, dim=1)[:, : shape[1]]
        arrays.append(code.view(shape) * wide)
    return arrays
