"""How factors of fp32 are multiplied: exactly, without tensor cores, or by tensor cores as three products of tf32.

A tensor core reads fp32 as tf32, which keeps 11 bits of 24. Written as x = b + s, b being x rounded to tf32 and s what is left of it, the
product x y is b b' + b s' + s b' but for what the small parts leave out. That is less than `ERROR` of |x y|, where fp32 itself rounds
by 2**-24 with each sum.
Published as 3xTF32 (NVIDIA's CUTLASS, 2021); Triton's word for it is the same.
"""

from __future__ import annotations

from enum import Enum


class Fp32Products(Enum):
    """As Triton's `input_precision` has it, and `--fp32-products`."""

    TF32X3 = "tf32x3"
    IEEE = "ieee"


ERROR = {Fp32Products.TF32X3: 5 * 2.0**-22, Fp32Products.IEEE: 0.0}
"""Of one product, as a share of |x y|, before anything is summed: 1.2e-6. Each small part is cut to 11 bits, 2**-21 of its factor, and
the product of both small parts, 2**-22 at most, is left out. Beyond 3.4e38 a factor is rounded to infinity."""
