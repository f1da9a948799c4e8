"""What one would write by hand: layers in pinned host memory, two slots on the device, the next layer copied while one computes.

In: modules that are called one after the other, their parameters (`flat_parameters`), a device, how many of them are resident. Out: a
function of the hidden state. A slot is refilled once the layer in it has computed; those that are resident are spread evenly between
those that are copied, so that their work hides copies too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

SLOTS = 2
cuda: Any = torch.cuda
"""Its streams and events have no Python types."""


class Ring:
    def __init__(self, layers: Sequence[nn.Module], host: Sequence[Tensor], device: torch.device, resident: int = 0) -> None:
        self._layers, on_gpu = layers, device.type == "cuda"
        kept = {n * len(layers) // resident for n in range(resident)}
        self._flat = {i: flat.to(device) if i in kept else flat for i, flat in enumerate(host)}
        self._streamed = [i for i in range(len(layers)) if i not in kept]
        self._slots = [torch.empty(max(f.numel() for f in host), dtype=host[0].dtype, device=device) for _ in range(SLOTS)]
        self._copies = cuda.Stream() if on_gpu else None
        self._arrived, self._free = ([cuda.Event() for _ in range(SLOTS)] if on_gpu else [] for _ in range(2))

    def __call__(self, x: Tensor, call: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """`call(layer, x)` for one layer after the other."""
        slot_by_layer = {i: n % SLOTS for n, i in enumerate(self._streamed)}
        for i in self._streamed[:SLOTS]:
            self._fetch(i, slot_by_layer[i])
        coming = iter(self._streamed[SLOTS:])
        for i, layer in enumerate(self._layers):
            slot = slot_by_layer.get(i)
            if slot is None:
                _bind(layer, self._flat[i])
                x = call(layer, x)
                continue
            if self._copies is not None:
                torch.cuda.current_stream().wait_event(self._arrived[slot])
            _bind(layer, self._slots[slot])
            x = call(layer, x)
            if self._copies is not None:
                self._free[slot].record()
            if (following := next(coming, None)) is not None:
                self._fetch(following, slot)
        return x

    def _fetch(self, i: int, slot: int) -> None:
        target = self._slots[slot][: self._flat[i].numel()]
        if self._copies is None:
            target.copy_(self._flat[i])
            return
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(self._free[slot])
            target.copy_(self._flat[i], non_blocking=True)
            self._arrived[slot].record()


def flat_parameters(layer: nn.Module, pinned: bool) -> Tensor:
    """All parameters of a layer as one vector on the host."""
    parameters = [p.detach().reshape(-1) for p in layer.parameters()]
    flat = torch.empty(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, pin_memory=pinned)
    return torch.cat(parameters, out=flat)


def _bind(layer: nn.Module, flat: Tensor) -> None:
    """Make the layer's parameters views of `flat`."""
    start = 0
    for p in layer.parameters():
        p.data = flat[start : start + p.numel()].view(p.shape)
        start += p.numel()
