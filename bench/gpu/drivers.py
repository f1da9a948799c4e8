"""The driver that parts measure through: CUDA's own, or in a rehearsal the one that was put in its place."""

from __future__ import annotations

from bench.gpu.report import Setting
from einpage.exec.device.cuda import CudaDriver
from einpage.exec.device.driver import Driver


def new_driver(setting: Setting) -> Driver | None:
    """None in a dry run that rehearses no driver."""
    return None if setting.dry and not setting.rehearsed else CudaDriver()
