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
    """Return the bytes of arrays, each [rows, width], as a uint8 tensor on the CPU.

    Raises:
        OverflowError: a number is NaN, infinite, or too large for the wire.
    """
    if not arrays:
        return torch.empty(0, dtype=torch.uint8)
    if wire in BITS:
        coded = [_quantised(array.detach().cpu(), wire) for array in arrays]
        scales = torch.cat([scale.reshape(-1) for _, scale in coded]).contiguous()
        if not finite(scales):
            raise OverflowError
        codes = [
            _packed(_unpadded(code, array.shape[1]), wire).reshape(-1)
            for (code, _), array in zip(coded, arrays, strict=True)
        ]
        return torch.cat([scales.view(torch.uint8), *codes])
    dtype: torch.dtype = getattr(torch, wire)
    flat = torch.cat([array.reshape(-1) for array in arrays]).detach().to("cpu", dtype)
    if not finite(flat.float() if dtype.itemsize < 4 else flat):
        raise OverflowError
    return flat.view(torch.uint8)


def decode(data: bytes, shapes: Sequence[tuple[int, int]], wire: str, device: str = "cpu") -> list[Tensor]:
    """Decode arrays of the given shapes from bytes; half precision and few bits become float32.

    Raises:
        OverflowError: a number is NaN or infinite; its argument is the index of the first such array.
    """
    if wire in BITS:
        numbers = arrays = _decode_blocks(data, shapes, wire, device)
    else:
        dtype: torch.dtype = getattr(torch, wire)
        read = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        flat = read.to(device, torch.float32 if dtype.itemsize < 4 else dtype)
        parts = flat.split_with_sizes([rows * width for rows, width in shapes])
        numbers, arrays = [flat], [array.view(shape) for array, shape in zip(parts, shapes, strict=True)]
    if not all(finite(array) for array in numbers):
        raise OverflowError(next(place for place, array in enumerate(arrays) if not finite(array)))
    return arrays


def as_received(array: Tensor, wire: str) -> Tensor:
    """Return an array [rows, width] after encoding and decoding, in its own dtype."""
    if wire in BITS:
        codes, scales = _quantised(array, wire)
        return _unpadded(_in_scales(codes, wire) * scales.unsqueeze(-1), array.shape[1]).to(array.dtype)
    return array.to(getattr(torch, wire)).to(array.dtype)


def is_lossless(wire: str, dtype: torch.dtype) -> bool:
    """Return whether a wire preserves numbers of a dtype exactly."""
    return wire == "float64" or (wire == "float32" and dtype == torch.float32)


def finite(numbers: Tensor) -> bool:
    """Return whether all values are finite, by their sum, which is twelve times faster than elementwise."""
    return math.isfinite(numbers.sum().item()) or bool(torch.isfinite(numbers).all())


def _quantised(array: Tensor, wire: str) -> tuple[Tensor, Tensor]:
    """Return uint8 codes [rows, blocks, 64], including padding, and float32 scales [rows, blocks]."""
    rows, width = array.shape
    blocks = F.pad(array, (0, -width % BLOCK)).reshape(rows, math.ceil(width / BLOCK), BLOCK)
    if wire == "int2":
        filled = torch.full((blocks.shape[1],), BLOCK, dtype=array.dtype, device=array.device)
        filled[-1:] -= -width % BLOCK
        scales = (torch.linalg.vector_norm(blocks, dim=-1) / filled.sqrt() * SPREAD).to(SCALE)
    else:
        unit = 1.0 if wire == "log8" else ZEROS[wire]
        scales = (blocks.abs().amax(dim=-1) / unit).to(SCALE)
    parts = blocks / torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    if wire == "log8":
        codes = (-OCTAVE * torch.log2(parts.abs())).round().clamp(0, NOTHING - 1)
        codes = torch.where(parts == 0, float(NOTHING), codes + MINUS * (parts < 0))
    else:
        whole = math.floor(ZEROS[wire])  # added after rounding: before, it would lose digits and change ties
        codes = (parts * UNITS[wire] + (ZEROS[wire] - whole)).round().add_(whole).clamp_(0, 2 * ZEROS[wire])
    return codes.nan_to_num(0.0).to(torch.uint8), scales


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


def _unpadded(blocks: Tensor, width: int) -> Tensor:
    return blocks.reshape(blocks.shape[0], blocks.shape[1] * BLOCK)[:, :width]


def _decode_blocks(data: bytes, shapes: Sequence[tuple[int, int]], wire: str, device: str) -> list[Tensor]:
    sizes = [(rows, math.ceil(width / BLOCK)) for rows, width in shapes]
    packed = [(rows, math.ceil(width * BITS[wire] / 8)) for rows, width in shapes]
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    at = SCALE.itemsize * sum(rows * blocks for rows, blocks in sizes)
    scales = buffer[:at].view(SCALE).to(device).split([rows * blocks for rows, blocks in sizes])
    codes = buffer[at:].to(device).split([rows * width for rows, width in packed])
    arrays = []
    for scale, code, size, held, shape in zip(scales, codes, sizes, packed, shapes, strict=True):
        wide = scale.view(size).repeat_interleave(BLOCK, dim=1)[:, : shape[1]]
        arrays.append(_in_scales(_unpacked(code.view(held), wire, shape[1]), wire) * wide)
    return arrays
