"""A Hugging Face folder with random weights in bfloat16 and a tokenizer of its size: what fine-tuning is measured on.

Kernels are normal with deviation 0.02, norms
1. The tokenizer is GPT-2's byte-level BPE with its last merges left out. No torch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from plimsoll.models.pretrained.config import read_shape

MERGES = "data/tokenizers/gpt2_merges.txt"
"""Under the folder of shared files."""
END = "<|endoftext|>"
BYTES = 256


def shared() -> Path:
    """Returns the folder of shared files."""
    return Path(os.environ.get("PLIMSOLL_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def made(folder: Path, config: Mapping[str, Any], *, seed: int = 0, speaks_as: Path | None = None) -> Path:
    """Writes the folder and returns it.

    Args:
        folder: Folder that is not there yet.
        config: Settings, as in a `config.json`.
        seed: Seed of the weights.
        speaks_as: Folder of a model whose tokenizer it gets instead.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1))
    if speaks_as is None:
        tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
        words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
        (folder / "tokenizer_config.json").write_text(json.dumps(words))
    else:
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copyfile(speaks_as / file, folder / file)
    draw = np.random.default_rng(seed)

    def drawn(sides: tuple[int, ...]) -> np.ndarray:
        values = np.ones(sides, np.float32) if len(sides) == 1 else 0.02 * draw.standard_normal(sides, np.float32)
        return values.astype(ml_dtypes.bfloat16)

    tensors = {name: drawn(sides) for name, sides in read_shape(folder).tensors().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def tokenizer(size: int) -> Tokenizer:
    """Returns a tokenizer of so many ids, or as many as GPT-2's merges make: bytes, merges, end of text."""
    text = (shared() / MERGES).read_text("utf-8")
    merges = [tuple(line.split(" ")) for line in text.splitlines() if line and not line.startswith("#version")]
    merges = merges[: size - BYTES - 1]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges), END]
    built = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([END])
    return built


def text_records(out: Path, *, files: list[Path], characters: int, count: int | None = None) -> Path:
    """Writes records with a `text` of so many characters, cut from files one after another; returns their file."""
    whole = "\n".join(file.read_text("utf-8", errors="ignore") for file in files)
    texts = (whole[start : start + characters] for start in range(0, len(whole), characters))
    with out.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            if number == count:
                break
            file.write(json.dumps({"text": text}) + "\n")
    return out
