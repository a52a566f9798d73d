"""What a plan computes of a batch: loss, gradients and figures of an evaluation, by the functions that a run compiles.

All of it runs in a process of its own, which has two devices (`two_devices`), so that a lever that splits a state is
compared as the others are. The plain plan has one device and no lever; its attention over windows, which has no plain
form in the package, is the textbook's (`textbook_attention`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plimsoll.levers import attention, attention_blocks, offload, sharding
from plimsoll.levers.chunked_loss import IGNORE
from plimsoll.levers.registry import LEVERS
from plimsoll.models import language
from plimsoll.optimizers.in_place import in_place
from plimsoll.planned import Plan
from plimsoll.recipes.finetune.task import Blank, Published
from plimsoll.training.program import Functions, compiled
from plimsoll.training.step import evaluated, make_init
from plimsoll.types import COUNTED, IGNORED_LABEL, StepOptions
from pretrained_folders import GEMMA_3, LLAMA, write
from task_examples import OWN, control_file, folder_of_this_process, model_folder, preset, puzzles, recommend

EXAMPLES = 8
LENGTH = 24
VOCABULARY = 300
DEVICES = 2


def two_devices() -> None:
    """Readies a process, before JAX has looked for devices."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    sharding.SMALLEST_SPLIT = offload.SMALLEST_MOVED = 2  # a model of a test has no larger leaf


# --- Recipes, as small as their parts allow ---


LENGTHS = {"batch_size": EXAMPLES, "steps": 10}
OF_TEXT = {"width": 16, "layers": 2, "heads": 2, "vocab_size": VOCABULARY, "seq_len": LENGTH, **LENGTHS}
OF_CONTROL = {"width": 16, "layers": 1, "heads": 2, "patch": 1, **LENGTHS}


def _recommend(name):
    sizes = {"num_items": 60, "item_embedding_dim": 16, "adapter_inner": 24}
    return recommend(name).replace(**sizes, seq_len=LENGTH)


@cache
def _folder_of_windows():
    """Of a Gemma 3, whose layers see all positions or the last five of them."""
    shape = replace(GEMMA_3, vocab=VOCABULARY, layers=2, windowed=(True, False), window=5)
    folder = folder_of_this_process("windows")
    layers = ["sliding_attention" if windowed else "full_attention" for windowed in shape.windowed]
    config = {"layer_types": layers, "sliding_window": shape.window, "query_pre_attn_scalar": 16, "rope_scaling": None}
    return str(write(folder, shape, model_type="gemma3_text", **config))


@cache
def _folder_of_llama():
    return str(write(folder_of_this_process("tuned"), replace(LLAMA, vocab=VOCABULARY, layers=2)))


def _finetune(folder, **options):
    return preset("finetune").replace(pretrained=folder(), seq_len=LENGTH, **LENGTHS, **options)


RECIPES = {
    "text": lambda: preset("stories").replace(**OF_TEXT),
    "longcontext": lambda: preset("longcontext").replace(**OF_TEXT, states=8, attention_every=2),
    "control": lambda: preset("control").replace(data=control_file(), **OF_CONTROL),
    "puzzles, attention": lambda: puzzles("sudoku-attention").replace(width=16, low_cycles=1, ema_decay=0.0),
    "puzzles, MLP": lambda: puzzles("sudoku-mlp").replace(width=16, ema_decay=0.0),
    "recommend": lambda: _recommend("recommend"),
    "recommend, frozen model": lambda: _recommend("recommend-gemma-2b").replace(pretrained=model_folder()),
    "finetune": lambda: _finetune(_folder_of_llama, lora_rank=0),
    "finetune, windows, LoRA": lambda: _finetune(_folder_of_windows, lora_rank=2),
    "own": OWN["plain_jax"],
}
"""A recipe of every kind, and several of a kind whose recipes compute different things."""


@cache
def recipe_of(name: str) -> Any:
    return RECIPES[name]().replace(gradient_accumulation_steps=1)


# --- Batches: rows with every kind of padding that the recipe's batch can express ---

DOCUMENTS = (
    ("padding at the end", [11, 7, -6]),
    ("many short documents, padding at the end", [1, 2, 1, 3, 2, 1, 4, -10]),
    ("padding in the middle", [5, -8, 11]),
    ("empty", [-LENGTH]),
    ("documents that end at the edges of blocks", [8, 8, -8]),
    ("padding first", [-3, 13, 8]),
    ("one document and padding", [16, -8]),
    ("one document", [LENGTH]),
)
"""Rows by name: tokens of each document in turn, and of padding, with a minus."""


def drawn_row(random: np.random.Generator) -> list[int]:
    """Returns a row of documents and padding of any lengths."""
    cuts = np.sort(random.integers(1, LENGTH, random.integers(0, 6)))
    lengths = np.diff([0, *cuts, LENGTH])
    return [int(length) * (-1 if random.random() < 0.3 else 1) for length in lengths if length]


def rows_of(seed: int) -> list[list[int]]:
    """Returns the rows by name for seed 0, and rows drawn at random for any other."""
    if seed == 0:
        return [row for _, row in DOCUMENTS]
    random = np.random.default_rng(seed)
    return [drawn_row(random) for _ in range(EXAMPLES)]


def batch_of(name: str, seed: int) -> dict[str, np.ndarray]:
    """Returns a batch of EXAMPLES rows in the recipe's own arrays."""
    recipe, random = recipe_of(name), np.random.default_rng(seed)
    if name == "own":
        return next(recipe.replace(batch_size=EXAMPLES, seed=seed).open(Path()).source(prefetch=0))
    spec = recipe.spec.batch(EXAMPLES)
    drawn = {name: _drawn(random, shape, dtype, recipe) for name, (shape, dtype) in spec.items()}
    length = next(iter(spec.values()))[0][1]
    padded = np.stack([_padding(row, length) for row in rows_of(seed)])
    if recipe.kind == "stories":
        drawn["labels"] = np.where(padded, IGNORE, drawn["labels"])
    elif recipe.kind == "puzzles":
        drawn["labels"] = np.where(padded, IGNORED_LABEL, drawn["labels"])
    elif recipe.kind == "recommend":
        drawn["items"] = np.zeros((EXAMPLES, length), np.int32)  # what is empty is at the end of a row
        for place, row in enumerate(padded):
            taken = length - row.sum()
            drawn["items"][place, :taken] = 1 + random.permutation(recipe.options["num_items"])[:taken]  # none twice
    elif recipe.kind == "control":
        drawn["masks"] = (random.random(drawn["masks"].shape) < 0.7).astype(np.float32)
        drawn["masks"][4] = 0  # a row that fills up a batch
        drawn["inputs"][5, :7] = 0  # a window that begins with filling
    elif recipe.kind == "finetune":
        drawn |= _of_documents(rows_of(seed), random)
    return drawn


def _drawn(random: np.random.Generator, shape: tuple, dtype: str, recipe: Any) -> np.ndarray:
    if not np.issubdtype(np.dtype(dtype), np.integer):
        return random.normal(size=shape).astype(dtype)
    ids = {"puzzles": 6, "control": 3}.get(recipe.kind, VOCABULARY)
    return random.integers(1, ids, shape).astype(dtype)


def _padding(row: list[int], length: int) -> np.ndarray:
    """Returns True at the padding of a row, which is cut or repeated to `length`."""
    return np.resize(np.concatenate([np.full(abs(tokens), tokens < 0) for tokens in row]), length)


def _of_documents(rows: list[list[int]], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns numbers, positions and learned labels of documents, as `data.chat.rows` numbers them."""
    arrays = {name: np.zeros((len(rows), LENGTH), np.int32) for name in ("segments", "positions", "learned")}
    for place, row in enumerate(rows):
        end = document = 0
        for tokens in row:
            begin, end = end, end + abs(tokens)
            document += tokens > 0
            arrays["segments"][place, begin:end] = document if tokens > 0 else 0
            arrays["positions"][place, begin:end] = np.arange(end - begin)
            arrays["learned"][place, begin : end - 1] = tokens > 0
    arrays["learned"] = arrays["learned"] * (random.random((len(rows), LENGTH)) < 0.8)
    return arrays | {"learned": arrays["learned"].astype(np.float32)}


def evaluation_of(name: str, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch as an evaluation reads it: where rows may be filling, the fifth does not count."""
    spec = recipe_of(name).spec.validation_batch(EXAMPLES)
    filling = np.arange(EXAMPLES) == 4
    counted = {COUNTED: ~filling} if COUNTED in spec and spec[COUNTED][0] == (EXAMPLES,) else {}
    return batch | counted


# --- Plans ---


def plan_of(levers: dict[str, Any], devices: int = 1) -> Plan:
    """Returns a plan with these levers, all others as if memory were free."""
    values = {lever.name: lever.plain for lever in LEVERS.values()} | {"micro_batch": EXAMPLES} | levers
    times = max(1, EXAMPLES // max(1, values["micro_batch"]))
    return Plan.from_dict({"chip": "cpu", "accumulation": times, "devices": devices, **values})


PLAIN = plan_of({})


# --- Results ---


@dataclass(frozen=True)
class Result:
    """What a plan computes: names to arrays."""

    loss: dict[str, np.ndarray]
    """Sums of the loss and of the metrics of a step, and the gradient's norm."""
    gradients: dict[str, np.ndarray]
    """Of every trainable leaf, over the norm of the whole, and of every row of a table."""
    evaluation: dict[str, np.ndarray]


class _Moments(NamedTuple):
    """State of a rule that keeps the gradient, called as optax calls it."""

    mu: Any


MOMENTS = re.compile(r"\.(mu|mean)\b")
"""Path of first moments in an optimizer's state: of optax, and of Adam-atan2."""


class _RowGradients:
    """In the place of a rule for the rows of tables: the tables become the gradients of their rows."""

    def after(self, tables: Any, rows: Any, gradients: Any, *, step: Any, taken: Any) -> Any:
        del step, taken
        return {name: jnp.zeros_like(table).at[rows[name]].add(gradients[name]) for name, table in tables.items()}


def textbook_attention(query, key, value, segments, which, *, blocks, seen):
    """Softmax over whole scores with every mask written out: what attention in blocks is compared with."""
    heads, length = query.shape[1], query.shape[2]
    key, value = (jnp.repeat(x, heads // x.shape[1], axis=1) for x in (key, value))
    scores = blocks.scale * jnp.einsum("bhqd,bhkd->bhqk", query, key)
    if blocks.cap:
        scores = blocks.cap * jnp.tanh(scores / blocks.cap)
    distance = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
    visible = jnp.stack([(distance >= 0) & (distance < (view.window or length)) for view in seen])
    assert all(view.causal for view in seen)
    mask = visible[0 if which is None else which][None]
    if segments is not None:
        mask = mask & (segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, value)


SCALES = {"puzzles": 0.1}
"""Size of weights, by kind: with larger ones a block that is applied many times over is chaotic, and doubles rounding
each time."""


@cache
def start_of(name: str) -> Any:
    """Returns the state before the first step, its numbers drawn by NumPy, which compiles nothing.

    What a recipe begins with would hide much: zeros hide what multiplies them. Whole numbers are the recipe's own.
    """
    recipe, plan = recipe_of(name), PLAIN
    with patch.multiple(Blank, init=Published.init, stored=Published.stored):
        task = recipe.task(plan.compute("cpu"))
        init = make_init(task, _rule(recipe, plan), examples=EXAMPLES)
    leaves, layout = jax.tree.flatten(jax.eval_shape(init, np.uint32(0)))
    is_float = [leaf.dtype == jnp.float32 for leaf in leaves]

    def whole_numbers(seed: Any) -> list[Any]:
        return [None if skip else leaf for leaf, skip in zip(jax.tree.leaves(init(seed)), is_float, strict=True)]

    random = np.random.default_rng(0)
    known = jax.jit(whole_numbers)(np.uint32(1))
    scale = SCALES.get(recipe.kind, 0.3)
    drawn = [np.float32(scale) * random.standard_normal(leaf.shape, np.float32) for leaf in leaves]
    values = [np.asarray(own) if own is not None else noise for own, noise in zip(known, drawn, strict=True)]
    return jax.tree.unflatten(layout, values)


def _rule(recipe: Any, plan: Plan) -> Any:
    """Returns the recipe's own rule where a lever is about updates, and else one that keeps the gradient alone."""
    rows = _RowGradients() if in_place(recipe.update_rule(recipe.length.steps)).row_rule is not None else None
    if plan.lever("layerwise") or plan.offload != "none":
        return in_place(recipe.update_rule(recipe.length.steps, plan.storage), row_rule=rows)  # type: ignore[arg-type]
    keeps = optax.GradientTransformation(
        lambda params: _Moments(jax.tree.map(jnp.zeros_like, params)),
        lambda gradient, state, params: (jax.tree.map(jnp.zeros_like, gradient), _Moments(gradient)),
    )
    return in_place(keeps, row_rule=rows)  # type: ignore[arg-type]


class Compiled:
    """The executables of a plan, each compiled when it is asked for."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.recipe, self.plan = recipe_of(name), plan
        task = self.recipe.task(plan.compute("cpu"))
        devices = jax.devices() if plan.devices > 1 else None
        self.functions = Functions(task, _rule(self.recipe, plan), plan, StepOptions(), devices)

    @cached_property
    def step(self) -> Any:
        return compiled(self.functions.step(self.recipe.spec.batch(EXAMPLES))[0])

    @cached_property
    def evaluate(self) -> Any:
        return compiled(self.functions.evaluate(self.recipe.spec.validation_batch(self.plan.micro_batch)))

    def result(self, state: Any, batch: Any, evaluation: Any, only_evaluated: bool) -> Result:
        """Returns what the plan makes of a batch, and of the same rows as an evaluation reads them."""
        placed = self.functions.placed()
        zeros = jax.tree.map(lambda like: np.zeros(like.shape, like.dtype), placed["optimizer"])
        state = state | {"optimizer": zeros}
        state = jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), state, placed)
        feed = jax.device_put if self.functions.mesh is None else self.functions.put

        # The evaluation first: the step takes over the state.
        sums: dict[str, Any] = {}
        for start in range(0, EXAMPLES, self.plan.micro_batch):
            rows = {name: values[start : start + self.plan.micro_batch] for name, values in evaluation.items()}
            for name, pair in self.evaluate(evaluated(state), feed(rows)).items():
                sums[name] = sums.get(name, 0) + np.asarray(pair)
        if only_evaluated:
            return Result({}, {}, sums)

        new, report = self.step(state, feed(batch))
        tables = new["params"].get("tables", {})
        rows = {f"table {name}": np.asarray(table) for name, table in tables.items()}
        metrics = {name: np.asarray(value) for name, value in report.items()}
        return Result(metrics, _shares(new["optimizer"]) | rows, sums)


def _shares(optimizer: Any) -> dict[str, np.ndarray]:
    """Returns the gradient of every leaf over the norm of the whole, of an optimizer's first moments.

    After one step they are the gradient times one number, which the clip and the optimizer's own settings decide.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(optimizer)
    names = [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]
    paths = [(MOMENTS.search(name), name, leaf) for name, leaf in names]
    moments = {name[path.end() :]: np.asarray(leaf, np.float64) for path, name, leaf in paths if path}
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in moments.values()))
    return {name: leaf / norm for name, leaf in moments.items()}


@cache
def plain_of(name: str) -> Compiled:
    with patch.object(attention, "chunked", textbook_attention):
        plain = Compiled(name, PLAIN)
        _ = plain.evaluate
        _ = plain.step
    return plain


# --- Faults that are put in by hand ---


def _passes_over_padding(queries, keys):
    """The condition of before 2026-11-28: it takes the numbers of documents to grow along a row."""
    return keys[:, -1] >= queries[:, 0]


def _one_position_more(causal, length, window=0):
    return attention_blocks.Seen(causal, length, window + 1 if window else 0)


def _forgets_its_last_rows(hidden, weights, labels, *, chunk, **how):
    whole = len(labels) - len(labels) % chunk if chunk else len(labels)
    labels = jnp.where(jnp.arange(len(labels)) < whole, labels, IGNORE)
    return _chunked_cross_entropy(hidden, weights, labels, chunk=chunk, **how)


_chunked_cross_entropy = language.chunked_cross_entropy

FAULTS = {
    "padding is passed over": partial(patch.object, attention_blocks, "_ranges_meet", _passes_over_padding),
    "a window off by one": partial(patch.object, attention, "Seen", _one_position_more),
    "a chunked loss without its last rows": partial(
        patch.object, language, "chunked_cross_entropy", _forgets_its_last_rows
    ),
}


@contextmanager
def _with_fault(fault: str) -> Iterator[None]:
    """Puts a fault in, and takes it out. JAX keeps what it traced, with a fault or without one: both are forgotten."""
    jax.clear_caches()
    with FAULTS[fault]():
        yield
    jax.clear_caches()


# --- Comparison ---


def differences(
    name: str, levers: dict[str, Any], devices: int, seeds: list[int], fault: str = "", only_evaluated: bool = False
) -> dict[str, float]:
    """Returns how far each figure of a plan is from the plain plan's, relative to its size, the farthest first.

    Of several batches, the one of each of the `seeds`, the farthest counts. A gradient's size is the norm of its leaf,
    at least a hundredth of that of the largest leaf: one that only rounding keeps from zero has no digits to compare.
    """
    distances: dict[str, float] = {}
    with jax.numpy_dtype_promotion("standard"):
        plain = plain_of(name)  # before a fault is put in
        with _with_fault(fault) if fault else nullcontext():
            plan = Compiled(name, plan_of(levers, devices))
            for seed in seeds:
                batch = batch_of(name, seed)
                arguments = (start_of(name), batch, evaluation_of(name, batch), only_evaluated)
                for figure, distance in _distances(plain.result(*arguments), plan.result(*arguments)).items():
                    distances[figure] = max(distance, distances.get(figure, 0.0))
    return dict(sorted(distances.items(), key=lambda item: -item[1]))


def _distances(expected: Result, actual: Result) -> dict[str, float]:
    norms = [float(np.linalg.norm(leaf)) for leaf in expected.gradients.values()]
    floors = {"loss": 0.0, "gradients": 1e-2 * max(norms, default=0.0), "evaluation": 0.0}
    distances = {}
    for part, floor in floors.items():
        one, other = getattr(expected, part), getattr(actual, part)
        assert one.keys() == other.keys(), part
        for key, value in one.items():
            distances[f"{part} {key}"] = _apart(value, other[key], floor)
    return distances


def _apart(expected: np.ndarray, actual: np.ndarray, least: float) -> float:
    assert np.isfinite(expected).all()
    if not np.isfinite(actual).all():
        return float("inf")
    wide = [np.asarray(x, np.float64) for x in (expected, actual)]
    return float(np.linalg.norm(wide[1] - wide[0]) / max(np.linalg.norm(wide[0]), least, 1e-30))


def main() -> None:
    """Reads requests from standard input, a JSON object a line, and answers each with a line."""
    import sys

    two_devices()
    for line in sys.stdin:
        print(json.dumps(differences(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
