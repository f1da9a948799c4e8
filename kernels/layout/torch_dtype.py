"""Element types as torch names them."""

from __future__ import annotations

import torch

from einpage.einsum_front.base.dtype import DType

TORCH_DTYPE = {
    DType.FP32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.INT32: torch.int32,
    DType.INT64: torch.int64,
    DType.BYTE: torch.uint8,
}
