"""PEFT's own LoRA run of a small Qwen2, step by step: losses to 1e-5, the adapter after 20 to 1e-4, merged logits."""

import json

import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

from plimsoll.levers.lora import LoRA
from plimsoll.models.pretrained.adapters import CONFIG, PATHS, WEIGHTS, read_adapter
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.weights import load
from plimsoll.recipes.finetune.task import Published
from plimsoll.training.step import StepSpec, make_init, make_step
from plimsoll.types import IGNORE, Compute, Levers


@pytest.fixture(autouse=True)
def _as_optax_does():
    with jax.numpy_dtype_promotion("standard"):  # it multiplies floats by its int32 count
        yield


def at_start(golden, folder):
    """The first adapter as a PEFT folder: its names hold the adapter's own, which a saved one leaves out."""
    save_file(load_file(golden / "adapter_at_start.safetensors"), folder / WEIGHTS)
    (folder / CONFIG).write_text((golden / "adapter_after20" / CONFIG).read_text())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "block"])
def test_pefts_run_is_ours(shared, tmp_path, remat):
    golden, folder = shared / "golden/finetune/lora_qwen2", shared / "golden/finetune/qwen2_tiny"
    settings = json.loads((golden / "settings.json").read_text())
    with np.load(golden / "expected.npz") as file:
        expected = {name: file[name] for name in file.files}
    shape = read_shape(folder)
    levers = {"remat": remat, "loss_chunk": 32, "further": (("mlp_chunk", 12),)} if remat == "block" else {}
    task = LoRA(
        Published(shape, Compute(levers=Levers(**levers)), frozen=True), "q,k,v,o,gate,up,down", rank=settings["rank"],
        alpha=settings["alpha"],
    )  # fmt: skip
    learned, _ = read_adapter(at_start(golden, tmp_path), shape, rank=settings["rank"], targets=list(PATHS))
    beta1, beta2 = settings["betas"]
    rule = optax.chain(
        optax.clip_by_global_norm(settings["clip_norm"]),
        optax.adamw(settings["learning_rate"], b1=beta1, b2=beta2, eps=settings["eps"], weight_decay=0.0),
    )
    state = jax.jit(make_init(task, rule))(np.uint32(0))
    state["params"] = {"trainable": jax.device_put(learned), "frozen": {"base": load(folder, shape), "frozen": {}}}
    step = jax.jit(make_step(task, rule, StepSpec(accumulation=1)))
    losses, norms = [], []
    for ids, counted in zip(expected["input_ids"], expected["counted"], strict=True):
        ids = ids.astype(np.int32)
        following = np.concatenate([ids[:, 1:], np.full((len(ids), 1), IGNORE, np.int32)], axis=1)
        counts = np.concatenate([counted[:, 1:], np.zeros((len(ids), 1), bool)], axis=1)
        batch = {"input_ids": ids, "labels": np.where(counts, following, IGNORE).astype(np.int32)}
        state, report = step(state, batch)
        losses.append(float(report["loss"]))
        norms.append(float(report["gradient_norm"]))
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(norms, expected["grad_norms"], rtol=1e-4)
    after, _ = read_adapter(golden / "adapter_after20", shape)
    for path, pair in after.items():
        for which, matrix in pair.items():
            found = np.asarray(state["params"]["trainable"][path][which])
            assert np.linalg.norm(found - matrix) <= 1e-4 * np.linalg.norm(matrix), (path, which)
    model, ids = task.task.decoder, expected["input_ids"][0].astype(np.int32)
    adapted = task.adapted(state["params"])
    hidden = jax.jit(model.hidden)(adapted, ids)
    logits = np.asarray(model.logits(adapted, hidden.reshape(-1, shape.width))).reshape(*ids.shape, -1)
    for name in ("logits_after20", "logits_merged"):
        np.testing.assert_allclose(logits, expected[name], rtol=1e-3, atol=1e-4 * np.abs(expected[name]).max())
