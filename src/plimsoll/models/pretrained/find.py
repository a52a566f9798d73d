"""Finds a model by its name: a folder, or an id of the Hugging Face hub.

Planning needs only a shape. `models.toml` has the settings of well-known ids; for others, `config.json` is downloaded.
Weights come from the cache of `huggingface_hub` (`HF_HOME`), which is filled on first use, and works without a network
afterwards. Imports no JAX.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.models.pretrained.config import INSTEAD, read_shape, shape_of
from plimsoll.models.shape import DecoderShape

MODEL_FILES = ["*.json", "*.safetensors", "*.jinja"]
"""Patterns of files to download: settings, tokenizer and weights, but no pickles and no copies in other formats."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TABLE = Path(__file__).with_name("models.toml")


def find_shape(name: str) -> DecoderShape:
    """Returns the shape of a model in a folder, in `models.toml`, or on the hub.

    Args:
        name: Folder with a `config.json`, or an id like `meta-llama/Llama-3.1-8B`.

    Raises:
        DataError: The model does not exist, cannot be downloaded, or is not supported.
    """
    path = _local(name)
    if path is not None:
        return read_shape(path)
    known = known_configs().get(name.lower())
    return shape_of(known, source=name) if known else read_shape(_downloaded(name, ["config.json"]))


def find_folder(name: str) -> Path:
    """Returns the folder of a model with its weights. The weights of an id are downloaded if they are not cached.

    Args:
        name: Folder, or an id like `meta-llama/Llama-3.1-8B`.

    Raises:
        DataError: The model does not exist, or cannot be downloaded.
    """
    return _local(name) or _downloaded(name, MODEL_FILES)


@cache
def known_configs() -> Mapping[str, Mapping[str, Any]]:
    """Returns the settings of the models in `models.toml`, by id in lower case, since the hub ignores case."""
    configs: dict[str, Mapping[str, Any]] = {}
    for entry in tomllib.loads(TABLE.read_text("utf-8"))["models"]:
        config = dict(configs[entry["like"].lower()]) if "like" in entry else {}
        for name, value in entry["config"].items():
            config[name] = None if value == "null" else value
        for name in entry["ids"]:
            configs[name.lower()] = config
    return configs


def _local(name: str) -> Path | None:
    """Returns the path of a folder named `name`, or None for a hub id. Raises DataError if `name` is neither."""
    path = Path(name).expanduser()
    if name and path.is_dir():
        return path
    if path.exists() or not HUB_ID.fullmatch(name):
        raise DataError(
            f"--pretrained {name} is no folder here, nor the id of a Hugging Face model, which looks like org/name:"
            f" name the folder with its config.json and .safetensors files, or {INSTEAD}"
        )
    return None


def _downloaded(name: str, patterns: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except errors.GatedRepoError as problem:
        raise DataError(
            f"--pretrained {name} is a gated model of the Hugging Face hub: accept its licence on"
            f" https://huggingface.co/{name}, then log in with `hf auth login`, or set HF_TOKEN to a token that may"
            " read it; a copy on this machine can be named by its folder"
        ) from problem
    except Exception as problem:  # a dozen classes: network, permissions, full disk
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        raise DataError(
            f"--pretrained {name} is no folder here, and as a model of the Hugging Face hub it cannot be downloaded"
            f" ({reason[:200]}). Check the id; log in with `hf auth login` if it is private; without a network,"
            f" download it elsewhere (`hf download {name}`) and copy the cache,"
            f" {huggingface_hub.constants.HF_HUB_CACHE}, or name a folder"
        ) from problem
