"""Adapters go to PEFT's folder and come back; what is not of the model is refused by name."""

import json
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from plimsoll.errors import DataError
from plimsoll.models.pretrained.adapters import CONFIG, PATHS, WEIGHTS, AdapterSettings, read_adapter, write_adapter
from plimsoll.models.shape import DecoderShape

SHAPE = DecoderShape(
    architecture="llama", vocab=50, width=16, layers=3, heads=4, key_heads=2, head_width=4, inner=24,
    norm_epsilon=1e-6,
)  # fmt: skip
SETTINGS = AdapterSettings(rank=2, alpha=8, rslora=True, dropout=0.1, base="someone/model")


def drawn(paths=tuple(PATHS)):
    random, kernels = np.random.default_rng(0), SHAPE.tensors()

    def pair(path):
        out, inner = kernels[f"model.layers.0.{PATHS[path]}.weight"]
        draw = lambda *sides: random.standard_normal((SHAPE.layers, *sides), np.float32)  # noqa: E731
        return {"a": draw(inner, 2), "b": draw(2, out)}

    return {path: pair(path) for path in paths}


@pytest.fixture
def folder(tmp_path):
    write_adapter(tmp_path / "adapter", drawn(), SETTINGS)
    return tmp_path / "adapter"


def changed(folder, **settings):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | settings))


@pytest.mark.parametrize("paths", [tuple(PATHS), ("blocks/value/kernel", "blocks/down/kernel")])
def test_what_is_written_is_read_to_the_bit(tmp_path, paths):
    learned = drawn(paths)
    write_adapter(tmp_path, learned, SETTINGS)
    found, settings = read_adapter(tmp_path, SHAPE, rank=2, targets=paths)
    assert settings == SETTINGS
    assert set(found) == set(paths)
    for path in paths:
        for which in ("a", "b"):
            np.testing.assert_array_equal(found[path][which], learned[path][which])


def test_files_have_pefts_names_shapes_and_settings(folder):
    tensors, config = load_file(folder / WEIGHTS), json.loads((folder / CONFIG).read_text())
    assert len(tensors) == 7 * 3 * 2
    name = "base_model.model.model.layers.1.self_attn.k_proj.lora_"
    assert (tensors[name + "A.weight"].shape, tensors[name + "B.weight"].shape) == ((2, 16), (8, 2))
    np.testing.assert_array_equal(tensors[name + "A.weight"], drawn()["blocks/key/kernel"]["a"][1].T)
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["use_rslora"]) == ("LORA", 2, 8, True)
    assert "q_proj" in config["target_modules"]
    assert SETTINGS.scale == pytest.approx(8 / 2**0.5)


def test_an_adapter_beside_a_model_that_sees_pictures_has_its_names_there(tmp_path):
    """As AutoModelForCausalLM of transformers has them; older versions had the language model elsewhere."""
    write_adapter(tmp_path, drawn(), SETTINGS, pictures=True)
    tensors, config = load_file(tmp_path / WEIGHTS), json.loads((tmp_path / CONFIG).read_text())
    assert all(name.startswith("base_model.model.model.language_model.layers.") for name in tensors)
    beside = re.compile(config["target_modules"])
    assert beside.fullmatch("model.language_model.layers.1.self_attn.q_proj")
    assert not beside.fullmatch("model.vision_tower.encoder.layers.1.self_attn.q_proj")
    older = {name.replace("model.language_model.", "language_model.model."): x for name, x in tensors.items()}
    for named in (tensors, older):
        save_file(named, tmp_path / WEIGHTS)
        learned, _ = read_adapter(tmp_path, SHAPE)
        for path, pair in drawn().items():
            np.testing.assert_array_equal(learned[path]["b"], pair["b"])


@pytest.mark.parametrize("kind", [jnp.bfloat16, np.float16])
def test_matrices_of_16_bits_are_widened(folder, kind):
    save_file({name: x.astype(kind) for name, x in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)
    found, _ = read_adapter(folder, SHAPE)
    np.testing.assert_allclose(found["blocks/up/kernel"]["a"], drawn()["blocks/up/kernel"]["a"], rtol=2**-7)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rank": 4}, "of rank 2, .* --lora-rank is 4"),
        ({"targets": ["blocks/query/kernel"]}, "--lora-targets"),
        ({"shape": replace(SHAPE, width=32)}, "3 layers of width 32"),
        ({"shape": replace(SHAPE, layers=4)}, r"14 of them differ: .*q_proj\.lora_A absent instead of \(2, 16\)"),
        ({"shape": replace(SHAPE, layers=2)}, r"14 of them differ: .*lora_A \(2, 24\) instead of absent"),
    ],
)
def test_an_adapter_of_another_model_than_asked_for_is_refused_by_what_does_not_fit(folder, asked, said):
    with pytest.raises(DataError, match=said):
        read_adapter(folder, **{"shape": SHAPE} | asked)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type"), ({"use_dora": True}, "use_dora"), ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"r": "many"}, "r and lora_alpha"),
    ],
)  # fmt: skip
def test_settings_that_are_not_computed_here_are_refused_by_name(folder, settings, said):
    changed(folder, **settings)
    with pytest.raises(DataError, match=said):
        read_adapter(folder, SHAPE)


def test_missing_files_and_strange_tensors_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match=CONFIG):
        read_adapter(tmp_path, SHAPE)
    for name in ("lm_head", "model.layers.0.mlp.router"):
        tensor = np.zeros((2, 16), np.float32)
        save_file({f"base_model.model.{name}.lora_A.weight": tensor}, folder / WEIGHTS)
        with pytest.raises(DataError, match=name.split(".")[-1]):
            read_adapter(folder, SHAPE)
    (folder / WEIGHTS).unlink()
    with pytest.raises(DataError, match="safe_serialization"):
        read_adapter(folder, SHAPE)
