"""How the values of a message are written: one class per coding, one entry in the table.

base.py     the interface, and the two classes of quantization error
floats.py   'fp32', 'fp16', 'bf16': floating point
linear.py   'int8', 'int4': whole numbers of a block's step, rounded to the nearest
qsgd.py     'qsgd8', 'qsgd4', 'qsgd2': the same numbers, rounded at random and without bias
sign.py     'sign': one bit per value
two_bits.py '2bit': a sign, and one of two magnitudes of a block
fp4.py      'fp4', 'fp4e3': floating point of four bits, times the scale of a block
ternary.py  'ternary': -1, 0 or 1 times a maximum, at random and without bias, five in a byte
natural.py  'natural': powers of two, at random and without bias
"""

from __future__ import annotations

import torch

from dgc.codec.values.base import Contraction, Unbiased, ValueCoding
from dgc.codec.values.floats import Float32, Scaled
from dgc.codec.values.fp4 import E2M1, E3M0, Float4
from dgc.codec.values.linear import Linear
from dgc.codec.values.natural import Natural
from dgc.codec.values.qsgd import QSGD
from dgc.codec.values.sign import Sign
from dgc.codec.values.ternary import Ternary
from dgc.codec.values.two_bits import TwoBits

__all__ = ['VALUES', 'Contraction', 'Unbiased', 'ValueCoding']

VALUES: dict[str, ValueCoding] = {
    coding.name: coding
    for coding in (
        Float32(),
        Scaled('fp16', 1, torch.float16),
        Scaled('bf16', 2, torch.bfloat16),
        Linear('int8', 3, bits=8, block=256),
        Linear('int4', 4, bits=4, block=128),
        Sign(),
        QSGD('qsgd8', 6, bits=8, block=512),
        QSGD('qsgd4', 7, bits=4, block=128),
        QSGD('qsgd2', 8, bits=2, block=64),
        TwoBits(),
        Float4('fp4', 21, E2M1),
        Float4('fp4e3', 22, E3M0),
        Ternary(),
        Natural(),
    )
}
