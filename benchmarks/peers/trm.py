"""The Tiny Recursive Model in torch, as published, for benchmarks/trm.py: a supervision step, forward and backward.

    .venv-peer-trm/bin/python benchmarks/sides.py peers.trm float32 --threads 2

Written from the description of the published model (https://arxiv.org/abs/2510.04871) and of its code, whose losses
ours are compared with: float32 weights that each dot rounds to the arithmetic of the forward pass, latents in that
type, norms and rotary embedding in float32, the cross-entropy in float64, rounds before the last without a gradient.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from peers.trm_side import Arrays, File, serve

DATA = ("inputs", "labels", "puzzle_identifiers")
LATENTS = ("z_H", "z_L")
EPSILON = 1e-5
IGNORED = -100
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TRM:
    """A `trm_side.Side`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def start(self, file: File) -> None:
        self.config, examples = file.config, len(file.arrays["step0/batch/inputs"])
        self.weights = {name: torch.nn.Parameter(torch.from_numpy(one)) for name, one in file.under("param/").items()}
        buffers = {name: torch.from_numpy(one) for name, one in file.under("buffer/").items()}
        self.first = {name: buffers[f"{name[-1]}_init"].to(self.dtype) for name in LATENTS}
        self.table = buffers["puzzle_emb"]
        width, length = self.config["hidden_size"], self.config["seq_len"] + self.config["puzzle_emb_len"]
        self.angles = rotation(length, width // self.config["num_heads"])
        tokens = torch.zeros(examples, self.config["seq_len"], dtype=torch.int32)
        self.held = {name: torch.zeros(examples, length, width, dtype=self.dtype) for name in LATENTS} | {
            "inputs": tokens,
            "labels": tokens,
            "puzzle_identifiers": torch.zeros(examples, dtype=torch.int32),
            "steps": torch.zeros(examples, dtype=torch.int32),
            "halted": torch.ones(examples, dtype=torch.bool),
        }

    def step(self, batch: Arrays) -> float:
        for weight in self.weights.values():
            weight.grad = None
        held = self.refilled({name: torch.from_numpy(batch[name]) for name in DATA})
        rows = self.table[held["puzzle_identifiers"]].requires_grad_()
        x = self.embedded(held["inputs"], rows)
        high, low = self.recursed(held["z_H"], held["z_L"], x)
        logits = self.dense(high, "inner.lm_head.weight")[:, self.config["puzzle_emb_len"] :]
        head = (self.weights[f"inner.q_head.{name}"] for name in ("weight", "bias"))
        q = F.linear(high[:, 0].float(), *head)[:, 0]
        loss = summed_loss(logits, q, held["labels"])
        loss.backward()
        steps = held["steps"] + 1
        halted = (steps >= self.config["halt_max_steps"]) | (q.detach() > 0)
        self.held = held | {"z_H": high.detach(), "z_L": low.detach(), "steps": steps, "halted": halted}
        return loss.item()

    def refilled(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Slots that have halted hold the batch's puzzle, at its beginning."""
        new = batch | self.first | {"steps": torch.zeros((), dtype=torch.int32)}

        def chosen(name: str) -> torch.Tensor:
            old = self.held[name]
            halted = self.held["halted"].view(-1, *[1] * (old.ndim - 1))
            return torch.where(halted, new[name], old)

        return self.held | {name: chosen(name) for name in new}

    def embedded(self, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        width = self.config["hidden_size"]
        tokens = F.embedding(inputs, self.weights["inner.embed_tokens.embedding_weight"].to(self.dtype))
        padded = F.pad(rows.to(self.dtype), (0, self.config["puzzle_emb_len"] * width - rows.shape[1]))
        return math.sqrt(width) * torch.cat([padded.view(len(rows), -1, width), tokens], dim=1)

    def recursed(self, high: torch.Tensor, low: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            for _ in range(self.config["H_cycles"] - 1):
                high, low = self.round(high, low, x)
        return self.round(high, low, x)

    def round(self, high: torch.Tensor, low: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(self.config["L_cycles"]):
            low = self.module(low, high + x)
        return self.module(high, low), low

    def module(self, hidden: torch.Tensor, injected: torch.Tensor) -> torch.Tensor:
        hidden = hidden + injected
        for layer in range(self.config["L_layers"]):
            name = f"inner.L_level.layers.{layer}"
            if self.config["mlp_t"]:
                across = hidden.transpose(1, 2)
                hidden = rms(across + self.swiglu(across, f"{name}.mlp_t")).transpose(1, 2)
            else:
                hidden = rms(hidden + self.attended(hidden, f"{name}.self_attn"))
            hidden = rms(hidden + self.swiglu(hidden, f"{name}.mlp"))
        return hidden

    def attended(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        batch, length, width = hidden.shape
        heads = self.dense(hidden, f"{name}.qkv_proj.weight").view(batch, length, 3, self.config["num_heads"], -1)
        query, key, value = heads.unbind(2)
        query, key = (turned(one, *self.angles).transpose(1, 2) for one in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value.transpose(1, 2))
        return self.dense(mixed.transpose(1, 2).reshape(batch, length, width), f"{name}.o_proj.weight")

    def swiglu(self, x: torch.Tensor, name: str) -> torch.Tensor:
        gate, up = self.dense(x, f"{name}.gate_up_proj.weight").chunk(2, dim=-1)
        return self.dense(F.silu(gate) * up, f"{name}.down_proj.weight")

    def dense(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weights[name].to(x.dtype))


def summed_loss(logits: torch.Tensor, q: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sums over examples the mean over cells, and half the cross-entropy of the halting logit."""
    valid = labels != IGNORED
    count = valid.sum(-1)
    solved = ((logits.argmax(-1) == labels) & valid).sum(-1) == count
    asked = torch.where(valid, labels, 0).long()
    picked = log_stablemax(logits.double()).gather(-1, asked[..., None])[..., 0]
    of_cells = (torch.where(valid, -picked, 0.0) / count.clamp_min(1)[:, None]).sum()
    return of_cells + 0.5 * F.binary_cross_entropy_with_logits(q, solved.float(), reduction="sum")


def rms(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


def rotation(length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of (length, 1, width)."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)[:, None]
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def log_stablemax(x: torch.Tensor) -> torch.Tensor:
    s = torch.where(x < 0, 1 / (1 - x + 1e-30), x + 1)
    return torch.log(s / s.sum(-1, keepdim=True))


def side() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precision", choices=TYPES)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    serve(TRM(TYPES[options.precision]))
