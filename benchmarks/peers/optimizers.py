"""torch's, bitsandbytes' and torchao's AdamW, for benchmarks/optimizers.py.

.venv-peer-optimizers/bin/python benchmarks/sides.py peers.optimizers bitsandbytes-8 --threads 2
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from peers.turns import BETA1, BETA2, EPSILON, LEARNING_RATE, WEIGHT_DECAY, serve


def bitsandbytes_8(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(parameters, **options)


def torchao(name: str, **more: Any) -> Callable[..., torch.optim.Optimizer]:
    def build(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        import torchao.optim

        return getattr(torchao.optim, name)(parameters, **options, **more)

    return build


def fused(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True, **options)


SIDES = {
    "torch-fused": (fused, torch.float32),
    "bitsandbytes-8": (bitsandbytes_8, torch.float32),
    "torchao-8": (torchao("AdamW8bit"), torch.float32),
    "torchao-4": (torchao("AdamW4bit"), torch.float32),
    "torchao-8-w16": (torchao("AdamW8bit", bf16_stochastic_round=True), torch.bfloat16),
}


class Torch:
    """A `turns.Side`."""

    def __init__(self, build: Callable[..., torch.optim.Optimizer], dtype: torch.dtype) -> None:
        self.build, self.dtype = build, dtype

    def start(self, weights: Sequence[np.ndarray]) -> None:
        self.parameters = [torch.nn.Parameter(torch.from_numpy(one.copy()).to(self.dtype)) for one in weights]
        self.optimizer = self.build(
            self.parameters, lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON, weight_decay=WEIGHT_DECAY
        )

    def give(self, gradients: Sequence[np.ndarray]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient.copy()).to(self.dtype)

    def update(self) -> None:
        self.optimizer.step()

    def weights(self) -> list[np.ndarray]:
        return [parameter.detach().float().numpy() for parameter in self.parameters]

    def state_bytes(self) -> int:
        seen: dict[int, int] = {}  # bitsandbytes' maps are shared by all leaves
        for state in self.optimizer.state.values():
            for value in state.values():
                for part in parts(value):
                    seen[part.untyped_storage().data_ptr()] = part.untyped_storage().nbytes()
        return sum(seen.values())

    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters)

    def transient_bytes(self) -> None:
        return None


def parts(value: Any) -> list[torch.Tensor]:
    """The plain tensors of a state's entry; torchao's are made of several."""
    if not isinstance(value, torch.Tensor):
        return []
    if hasattr(value, "__tensor_flatten__") and type(value) is not torch.Tensor:
        return [part for name in value.__tensor_flatten__()[0] for part in parts(getattr(value, name))]
    return [value]


def side() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    serve(Torch(*SIDES[options.side]))
