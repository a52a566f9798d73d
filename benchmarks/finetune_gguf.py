"""GGUF files beside llama.cpp itself: logits of every architecture, and tokens of texts.

    pip install --target PEER cyllama numpy          # llama.cpp in a wheel, into an environment of its own
    python benchmarks/finetune_gguf.py --python PEER/bin/python

Draws a small model of each architecture, writes it by `models.pretrained.gguf_file` in every type, and has llama.cpp
read the files (cyllama's bindings, in the interpreter `--python`). A line for each file: the largest difference of
logits from ours, the largest of ours, and how often the likeliest token is the same. llama.cpp keeps keys and values in
float16, and looks up GELU in a table of float16. Then, for a tokenizer that cuts words as GPT-2 does, and one of
SentencePiece's kind: how many of the texts have the tokens that the tokenizers library gives.

Says why and ends with 0 where that interpreter has no cyllama. Writes one JSON to bench-out/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from plimsoll.models.pretrained.gguf_file import GgufType, Words, write_gguf
from plimsoll.models.pretrained.shape import PretrainedShape, Rotary

ROOT = Path(__file__).resolve().parents[1]
TOKENS, LAYERS, TYPES = 400, 12, ("f32", "bf16", "f16", "q8_0")
SIZES: dict[str, Any] = {
    "vocab": TOKENS + 20, "width": 64, "layers": LAYERS, "heads": 4, "key_heads": 2, "head_width": 16, "inner": 96,
    "norm_epsilon": 1e-6,
}  # fmt: skip
PEER = """
import json, sys, numpy
import cyllama.llama.llama_cpp as llama
class Model(llama.LlamaModel):
    n_vocab = property(lambda self: self.get_vocab().n_vocab)
asked, answer = json.load(sys.stdin), {}
for name, (path, ids) in asked["models"].items():
    model = Model(path, llama.LlamaModelParams(), verbose=False)
    settings = llama.LlamaContextParams()
    settings.n_ctx = settings.n_batch = 64
    context = llama.LlamaContext(model, settings, verbose=False)
    batch = llama.LlamaBatch(n_tokens=64, embd=0, n_seq_max=1)
    batch.set_batch(ids, 0, True)
    context.decode(batch)
    answer[name] = numpy.stack([numpy.asarray(context.get_logits_ith(at)) for at in range(len(ids))])
for name, path in asked["tokenizers"].items():
    model = Model(path, llama.LlamaModelParams(), verbose=False)  # which has to outlive its vocabulary
    vocabulary = model.get_vocab()
    for number, text in enumerate(asked["texts"]):
        answer[f"{name} {number}"] = numpy.array(vocabulary.tokenize(text, False, False), numpy.int64)
numpy.savez(sys.argv[1], **answer)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--python", type=Path, required=True, help="interpreter that has cyllama")
    given = options.parse_args()
    found = subprocess.run([given.python, "-c", "import cyllama"], capture_output=True, text=True, check=False)
    if found.returncode:
        print(f"skipped: {given.python} has no cyllama: {found.stderr.strip()[-200:]}")
        return
    with TemporaryDirectory() as folder:
        rows, texts = compared(Path(folder), given.python)
    for row in [*rows, *texts]:
        print(
            "  ".join(f"{name} {value:.2g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "finetune_gguf.json").write_text(json.dumps({"logits": rows, "texts": texts}, indent=1))
    if any(row["type"] == "f32" and row["same_likeliest"] < 0.9 for row in rows):
        sys.exit("llama.cpp computes something else")


def compared(folder: Path, python: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns a row for each file, and one for each tokenizer."""
    ids = np.random.default_rng(0).integers(0, TOKENS, 40).astype(np.int32)
    tokenizers, texts = {"gpt-2": byte_level(), "sentencepiece": sentencepiece()}, sample_texts()
    asked: dict[str, Any] = {"models": {}, "tokenizers": {}, "texts": texts}
    ours = {}
    for name, shape in shapes().items():
        ours[name], tensors = logits(shape, ids)
        for kind in TYPES:
            path = folder / f"{name}-{kind}.gguf"
            write(path, shape, tensors, tokenizers["gpt-2"], kind)
            asked["models"][f"{name} {kind}"] = (str(path), ids.tolist())
    llama = shapes()["llama"]
    for name, tokenizer in tokenizers.items():
        write(folder / f"{name}.gguf", llama, tensors_of(llama), tokenizer, "f32")
        asked["tokenizers"][name] = str(folder / f"{name}.gguf")
    answer = folder / "answer.npz"
    done = subprocess.run(
        [python, "-c", PEER, answer], input=json.dumps(asked), text=True, check=False, capture_output=True
    )
    if done.returncode:
        sys.exit(f"llama.cpp ended with code {done.returncode}: {done.stderr[-2000:]}")
    with np.load(answer) as file:
        theirs = {name: file[name] for name in file.files}
    rows = [row(name, ours[name.split()[0]], theirs[name]) for name in asked["models"]]
    return rows, [
        {
            "tokenizer": name,
            "texts": len(texts),
            "same_tokens": sum(
                theirs[f"{name} {number}"].tolist() == tokenizer.encode(text, add_special_tokens=False).ids
                for number, text in enumerate(texts)
            ),
        }
        for name, tokenizer in tokenizers.items()
    ]


def row(name: str, ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    architecture, kind = name.split()
    return {
        "architecture": architecture,
        "type": kind,
        "largest_difference": float(np.abs(ours - theirs).max()),
        "largest": float(np.abs(ours).max()),
        "same_likeliest": float((ours.argmax(1) == theirs.argmax(1)).mean()),
    }


def shapes() -> dict[str, PretrainedShape]:
    """Returns a small shape of each architecture, with what it has besides a Llama."""
    each = lambda period: tuple((layer + 1) % period != 0 for layer in range(LAYERS))  # noqa: E731
    stretched = Rotary(theta=5e5, kind="llama3", factor=8.0, original=16)
    further: dict[str, dict[str, Any]] = {
        "llama": {"rotary": stretched, "tied": False, "positions": 256},
        "mistral": {"tied": False, "windowed": (True,) * LAYERS, "window": 64},
        "qwen2": {},
        "qwen3": {"head_width": 32},
        "gemma": {"head_width": 32},
        "gemma2": {
            "windowed": each(2), "window": 8, "score_scale": 0.25, "score_cap": 50.0, "logit_cap": 30.0,
        },
        "gemma3": {
            "windowed": each(6), "window": 8, "score_scale": 0.25, "window_rotary": Rotary(),
            "rotary": Rotary(theta=1e6, kind="linear", factor=8.0),
        },
    }  # fmt: skip
    return {name: PretrainedShape(architecture=name, **SIZES | more) for name, more in further.items()}  # type: ignore


def tensors_of(shape: PretrainedShape) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {name: 0.15 * draw.standard_normal(sides, np.float32) for name, sides in shape.tensors().items()}


def logits(shape: PretrainedShape, ids: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns our logits and the published tensors of a model that is drawn."""
    import jax
    from safetensors.numpy import save_file

    from plimsoll.models.pretrained.model import Pretrained
    from plimsoll.models.pretrained.weights import load
    from plimsoll.types import Compute

    tensors = tensors_of(shape)
    with TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "model.safetensors")
        params = load(folder, shape)
    model = Pretrained(shape, Compute())
    compute = jax.jit(lambda params, ids: model.logits(params, model.hidden(params, ids)[0]))
    return np.asarray(compute(params, ids[None])), tensors


def write(
    path: Path, shape: PretrainedShape, tensors: dict[str, np.ndarray], tokenizer: Tokenizer, kind: GgufType
) -> None:
    end = tokenizer.token_to_id("</s>")
    words = Words(
        content=json.loads(tokenizer.to_str()), name="tokenizer.json", special={"bos_token": "<s>"}, beginning=None,
        end=end, stops=frozenset([end]), template=None,
    )  # fmt: skip
    write_gguf(path, shape, lambda name: iter([tensors[name]]), kind=kind, words=words, name=path.stem)


SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return trained(tokenizer, special_tokens=SPECIAL, initial_alphabet=alphabet)


def sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(tokenizer, special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])


def trained(tokenizer: Tokenizer, **options: Any) -> Tokenizer:
    texts = sample_texts()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=TOKENS, show_progress=False, **options))
    return tokenizer


def sample_texts() -> list[str]:
    """Returns paragraphs of our own pages, and what tokenizers stumble over."""
    text = (ROOT / "docs/finetune.md").read_text("utf-8")
    return [part for part in text.split("\n\n") if part.strip()] + [
        "  two  spaces", "12345 and 6.7", "I'll say it's John's", "naïve café — 東京 🙂", "a\n\n\nb\tc",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
