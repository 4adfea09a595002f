"""Number formats: full or half precision, or few bits in blocks with a scale each. Pure functions.

Formats of few bits divide every row into blocks of 64, each with a float32 scale. A payload has all scales first, then
all codes; a row's codes start at a byte boundary.

    int8   255 even steps up to the block's largest magnitude
    int4   15 even steps, likewise
    int2   -1, -1/3, 1/3 and 1 times the scale, the best four steps for a normal distribution; there is no 0
    log8   a sign and a magnitude in quarters of an octave below the block's largest, down to 2^-31.5 of it, or 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64
SCALE = torch.float32
BITS = {"int8": 8, "int4": 4, "int2": 2, "log8": 8}
ZEROS = {"int8": 127.0, "int4": 7.0, "int2": 1.5}  # the code of 0
UNITS = {"int8": 1.0, "int4": 1.0, "int2": 1.5}  # number of codes from 0 to the scale
SPREAD = 1.494  # int2's scale in root mean squares (Max 1960)
OCTAVE, NOTHING, MINUS = 4, 127, 128  # log8: codes per halving, the code of 0, the sign's bit
MAGNITUDES = torch.tensor([2.0 ** (-code / OCTAVE) for code in range(NOTHING)] + [0.0], dtype=SCALE)
SIGNED = torch.cat([MAGNITUDES, -MAGNITUDES])


def wire_bytes(wire: str, rows: int, width: int) -> int:
    """Return the size of an array [rows, width] on the wire, in bytes."""
    if wire in BITS:
        return rows * (math.ceil(width * BITS[wire] / 8) + SCALE.itemsize * math.ceil(width / BLOCK))
    dtype: torch.dtype = getattr(torch, wire)
    return dtype.itemsize * rows * width


def projections_wire(wire: str) -> str:
    """Return the format of projections next to a wire's numbers, with a larger range of exponents."""
    return {"float64": "float64", "float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16"}.get(wire, "log8")


def encode(arrays: Sequence[Tensor], wire: str) -> Tensor:
    """Return the bytes of arrays, each [rows, width], as a uint8 tensor on their device.

    Raises:
        OverflowError: a number is NaN, infinite, or too large for the wire.
    """
    if not arrays:
        return torch.empty(0, dtype=torch.uint8)
    arrays = [array.detach() for array in arrays]
    if wire in BITS:
        codes, scales = _quantised(arrays, wire)
        if not finite(scales):
            raise OverflowError
        parts = _rows_of(codes, arrays)
        if BITS[wire] < 8:
            parts = [_packed(part, wire) for part in parts]
        return torch.cat([scales.view(torch.uint8), *(part.reshape(-1) for part in parts)])
    dtype: torch.dtype = getattr(torch, wire)
    flat = torch.cat([array.reshape(-1) for array in arrays]).to(dtype)
    if not finite(flat.float() if dtype.itemsize < 4 else flat):
        raise OverflowError
    return flat.view(torch.uint8)


def decode(
    data: bytes | Tensor, shapes: Sequence[tuple[int, int]], wire: str, device: str | torch.device = "cpu"
) -> list[Tensor]:
    """Decode arrays of the given shapes from bytes; half precision and few bits become float32.

    Raises:
        OverflowError: a number is NaN or infinite; its argument is the index of the first such array.
    """
    if isinstance(data, Tensor):
        read = data.clone()  # its first byte is aligned
    else:
        read = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    read = read.to(device)
    if wire in BITS:
        numbers, arrays = _decode_blocks(read, shapes, wire)
    else:
        dtype: torch.dtype = getattr(torch, wire)
        numbers = read.view(dtype).to(torch.float32 if dtype.itemsize < 4 else dtype)
        parts = numbers.split_with_sizes([rows * width for rows, width in shapes])
        arrays = [array.view(shape) for array, shape in zip(parts, shapes, strict=True)]
    if not finite(numbers):
        raise OverflowError(next(place for place, array in enumerate(arrays) if not finite(array)))
    return arrays


def as_received(arrays: Sequence[Tensor], wire: str) -> list[Tensor]:
    """Return arrays [rows, width] after encoding and decoding, in their own dtype."""
    if wire in BITS and arrays:
        codes, scales = _quantised(arrays, wire)
        found = _rows_of(_in_scales(codes, wire).mul_(scales.unsqueeze(-1)), arrays)
        return [part.to(array.dtype) for part, array in zip(found, arrays, strict=True)]
    return [array.to(getattr(torch, wire)).to(array.dtype) for array in arrays]


def is_lossless(wire: str, dtype: torch.dtype) -> bool:
    """Return whether a wire preserves numbers of a dtype exactly."""
    return wire == "float64" or (wire == "float32" and dtype == torch.float32)


def finite(numbers: Tensor) -> bool:
    """Return whether all values are finite, by their sum, which is twelve times faster than elementwise."""
    return math.isfinite(numbers.sum().item()) or bool(torch.isfinite(numbers).all())


def _blocks(arrays: Sequence[Tensor]) -> Tensor:
    """Return the rows of all arrays in blocks [·, 64], the last of a row filled with zeros."""
    return torch.cat([F.pad(a, (0, -a.shape[1] % BLOCK)).reshape(-1, BLOCK) for a in arrays])


def _filled(arrays: Sequence[Tensor]) -> Tensor:
    """Return how many numbers of each block are not padding."""
    counts = []
    for array in arrays:
        rows, width = array.shape
        count = array.new_full((rows, math.ceil(width / BLOCK)), BLOCK)
        count[:, -1:] -= -width % BLOCK
        counts.append(count.reshape(-1))
    return torch.cat(counts)


def _rows_of(blocks: Tensor, arrays: Sequence[Tensor]) -> list[Tensor]:
    """Return blocks in the shapes of arrays, without padding."""
    shapes = [tuple(array.shape) for array in arrays]
    wide = [math.ceil(width / BLOCK) for _, width in shapes]
    parts = blocks.split([rows * count for (rows, _), count in zip(shapes, wide, strict=True)])
    return [
        part.view(shape)
        if shape[1] == count * BLOCK
        else part.view(shape[0], count * BLOCK)[:, : shape[1]].contiguous()
        for part, shape, count in zip(parts, shapes, wide, strict=True)
    ]


def _quantised(arrays: Sequence[Tensor], wire: str) -> tuple[Tensor, Tensor]:
    """Return uint8 codes [·, 64] of all blocks, including padding, and float32 scales [·]."""
    blocks = _blocks(arrays)
    if wire == "int2":
        scales = (torch.linalg.vector_norm(blocks, dim=-1) / _filled(arrays).sqrt() * SPREAD).to(SCALE)
    else:
        unit = 1.0 if wire == "log8" else ZEROS[wire]
        scales = (blocks.abs().amax(dim=-1) / unit).to(SCALE)
    parts = blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    if wire == "log8":
        codes = (-OCTAVE * torch.log2(parts.abs())).round().clamp(0, NOTHING - 1)
        codes = torch.where(parts == 0, float(NOTHING), codes + MINUS * (parts < 0))
    else:
        whole = math.floor(ZEROS[wire])  # added after rounding: before, it would lose digits and change ties
        codes = (parts * UNITS[wire] + (ZEROS[wire] - whole)).round_().add_(whole).clamp_(0, 2 * ZEROS[wire])
    return codes.nan_to_num_(0.0).to(torch.uint8), scales


def _in_scales(codes: Tensor, wire: str) -> Tensor:
    """Return the values of codes, in units of their block's scale."""
    if wire == "log8":
        return SIGNED.to(codes.device)[codes.int()]
    return codes.to(SCALE).sub_(ZEROS[wire]).div_(UNITS[wire])


def _packed(codes: Tensor, wire: str) -> Tensor:
    """Pack several codes into each byte, the first in the lowest bits: [rows, ·]."""
    bits = BITS[wire]
    if bits == 8:
        return codes
    parts = F.pad(codes, (0, -codes.shape[1] % (8 // bits))).unflatten(1, (-1, 8 // bits))
    shifted: Tensor = parts << torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return shifted.sum(dim=-1, dtype=torch.uint8)


def _unpacked(data: Tensor, wire: str, width: int) -> Tensor:
    bits = BITS[wire]
    if bits == 8:
        return data
    parts = data.unsqueeze(-1) >> torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
    codes: Tensor = (parts & (2**bits - 1)).reshape(len(data), data.shape[1] * (8 // bits))[:, :width]
    return codes


def _decode_blocks(data: Tensor, shapes: Sequence[tuple[int, int]], wire: str) -> tuple[Tensor, list[Tensor]]:
    """Return all numbers in blocks [·, 64], and the arrays."""
    counts = [rows * math.ceil(width / BLOCK) for rows, width in shapes]
    packed = [(rows, math.ceil(width * BITS[wire] / 8)) for rows, width in shapes]
    at = SCALE.itemsize * sum(counts)
    scales, codes = data[:at].view(SCALE), data[at:].split([rows * width for rows, width in packed])
    unpacked = [
        _unpacked(code.view(held), wire, shape[1]) for code, held, shape in zip(codes, packed, shapes, strict=True)
    ]
    blocks = _blocks(unpacked) if unpacked else data.new_empty(0, BLOCK)
    numbers = _in_scales(blocks, wire).mul_(scales.unsqueeze(-1))
    return numbers, _rows_of(numbers, unpacked)
