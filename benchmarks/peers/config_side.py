"""transformers' side of config_fields.py: fields of the configuration classes, and logits of odd configurations.

    PYTHON benchmarks/sides.py peers.config_side fields
    PYTHON benchmarks/sides.py peers.config_side models CASES.json FOLDER

The first prints each class's fields with their defaults, as JSON. The second makes a model of random weights for every
case, in FOLDER/NAME, whose config.json is the case's own, and computes logits in float32 with eager attention. What
transformers itself refuses is noted. Imports nothing of plimsoll.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LENGTH = 40


def fields() -> dict:
    found = {}
    for kind in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gemma3"):
        of_class = CONFIG_MAPPING[kind]
        defaults = {field.name: field.default for field in dataclasses.fields(of_class)}
        theta = getattr(of_class, "default_theta", None)
        found[kind] = {"class": of_class.__name__, "defaults": defaults, "theta": theta}
    return {"transformers": transformers.__version__, "families": found}


def models(cases: dict, folder: Path) -> dict:
    return {name: one(config, folder / name) for name, config in cases.items()}


def one(config: dict, folder: Path) -> dict:
    """Logits of a case, or why there are none. The weights of its tensors follow from a seed."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        read = transformers.AutoConfig.from_pretrained(folder)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(read, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(0.3 * torch.randn(weight.shape))
        model.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps(config))
        # Read anew, as a user does: what a configuration ties or leaves out is decided there.
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
        vocab = model.get_input_embeddings().weight.shape[0]
        ids = torch.arange(LENGTH)[None] * 7 % vocab
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    except Exception as problem:  # of whatever class: the case is then refused by both
        return {"refused": f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"}
    return {"ids": ids.tolist(), "logits": logits[0].tolist()}


def side() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1] == "fields":
        print(json.dumps(fields()))
    else:
        found = models(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
        (Path(sys.argv[3]) / "logits.json").write_text(json.dumps(found))
