"""Export of a trained language model as a Hugging Face folder for `transformers`.

The model has the shape of a plain Llama; `models.pretrained.weights` maps its tensors to their published names.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.models.pretrained.safetensors_folder import SINGLE
from plimsoll.models.pretrained.weights import published_tensor
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.exported import exported
from plimsoll.types import TrainedRun


def export(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the requested folder, and returns the answer of `recipes.exported.exported`.

    Args:
        trained: The run.
        request: `merged`, the path of a Hugging Face folder to write.

    Raises:
        RecipeError: The folder is not empty, or an adapter is requested.
    """
    shape: DecoderShape = trained.recipe.model.shape(trained.prepared.spec)
    tokenizer = load_tokenizer(trained.path / "tokenizer.json")
    config = config_of(shape, trained.prepared.spec.length, end=tokenizer.end_of_text)
    params = trained.params()["trainable"]

    def merged(folder: Path) -> int:
        tensors = {
            name: np.ascontiguousarray(published_tensor(params, shape, name), np.float32) for name in shape.tensors()
        }
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})  # transformers requires this
        tokenizer.save(folder / "tokenizer.json")
        end = tokenizer.end_of_text_token
        settings = {
            "config.json": config,
            "generation_config.json": {name: config[name] for name in ("bos_token_id", "eos_token_id")},
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": end,
                "eos_token": end,
                "model_max_length": config["max_position_embeddings"],
                "clean_up_tokenization_spaces": False,
            },
        }
        for name, content in settings.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n")
        return sum(tensor.size for tensor in tensors.values())

    return exported(trained, request, {"merged": merged})


def config_of(shape: DecoderShape, length: int, *, end: int) -> dict[str, Any]:
    """Returns the config.json of the model as `transformers` writes it.

    One token marks both the beginning and the end of a document: a document begins after the end of the document
    before.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": length,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rotary.theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }
