"""What comes out of a tuned model: folders that others load, and answers that end. No run is trained here."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from chat_files import byte_tokenizer, write_records
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.weight_bits import as_bits, readable
from plimsoll.models.decoder import Decoder
from plimsoll.models.pretrained.adapters import read_adapter
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.weights import load
from plimsoll.recipes.finetune.export import export
from plimsoll.recipes.finetune.use import sample
from plimsoll.types import Compute
from pretrained_folders import GEMMA_3, drawn
from tuning_files import SHAPE, small, write_model

IDS = np.arange(24)[None] * 7 % 200


def zeros(task):
    """In the place of the parameters that it draws."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


class Tuned(SimpleNamespace):
    """A run as the verbs get it, its adapters (or its model) moved away from where they begin."""

    def __init__(self, tmp_path, *, moved=0.05, **changed):
        recipe, run = small(tmp_path, **changed), tmp_path / "run"
        run.mkdir()
        made = recipe.open(run).prepare(lambda _: None)
        super().__init__(recipe=recipe, run=str(run), path=run, step=6, prepared=made)
        self.task = recipe.task(Compute())
        params, draw = recipe.open(None).load(zeros(self.task)), np.random.default_rng(3)
        move = lambda leaf: leaf + jnp.asarray(moved * draw.standard_normal(leaf.shape), jnp.float32)  # noqa: E731
        self.all = params | {"trainable": jax.tree.map(move, params["trainable"])}

    @property
    def data(self):
        data = self.recipe.open(self.path)
        data.require_same(self.prepared, training=False)
        return data

    def params(self, *, average=True, given=True):
        params = self.all | {"trainable": readable(self.all["trainable"])}
        return params if given else {name: part for name, part in params.items() if name != "frozen"}

    def logits(self):
        rank = self.recipe.options["lora_rank"]
        weights = self.task.adapted(self.all) if rank else self.all["trainable"]
        return logits(self.task.task.decoder if rank else self.task.decoder, weights)


def logits(model, weights):
    found = jax.jit(lambda weights, ids: model.logits(weights, model.hidden(weights, ids)[0]))
    return np.asarray(found(weights, IDS.astype(np.int32)))


def logits_of(folder):
    shape = read_shape(folder)
    return logits(Decoder(shape, Compute(), frozen=True), load(folder, shape))


def test_adapters_are_exported_to_the_bit_and_a_run_that_goes_on_from_them_begins_with_their_loss(tmp_path):
    tuned = Tuned(tmp_path, lora_targets="q,down", rslora=True)
    answer = export(tuned, {"adapter": str(tmp_path / "out")})
    learned, settings = read_adapter(tmp_path / "out", SHAPE, rank=4)
    assert settings == tuned.recipe.model.adapter
    assert learned.keys() == tuned.all["trainable"].keys()
    jax.tree.map(np.testing.assert_array_equal, learned, tuned.all["trainable"])
    assert answer["adapter"]["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(learned))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert "model.safetensors" not in names

    again = tuned.recipe.replace(init_from=str(tmp_path / "out"))
    opened = again.open(tmp_path / "again")
    RunFolder(tmp_path / "again").write("data.json", opened.prepare(lambda _: None).to_json())
    batch = next(opened.source(prefetch=0))
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    loss = jax.jit(lambda params: tuned.task.loss(params, None, batch, keys, train=True)[0].total)
    assert loss(opened.load(zeros(tuned.task))) == loss(tuned.all)


@pytest.mark.parametrize("options", [{"rslora": True, "lora_targets": "v,down"}, {"lora_rank": 0}], ids=str)
def test_a_merged_model_computes_what_was_tuned_also_of_weights_that_were_learned_in_bfloat16(tmp_path, options):
    tuned = Tuned(tmp_path, **options)
    export(tuned, {"merged": str(tmp_path / "out")})
    expected = tuned.logits()
    np.testing.assert_allclose(logits_of(tmp_path / "out"), expected, atol=1e-4)
    assert abs(expected - logits_of(tmp_path / "model")).max() > 1e-2

    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tuned.all["trainable"])
    tuned.all |= {"trainable": jax.tree.map(as_bits, rounded)}
    export(tuned, {"merged": str(tmp_path / "half")})
    tuned.all |= {"trainable": jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded)}
    np.testing.assert_allclose(logits_of(tmp_path / "half"), tuned.logits(), atol=1e-4)


def test_of_a_model_that_sees_pictures_the_text_is_exported_with_its_own_settings(tmp_path):
    shape = replace(GEMMA_3, vocab=SHAPE.vocab)
    write_model(tmp_path / "text", shape, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                sliding_window=4, query_pre_attn_scalar=16, model_type="gemma3_text", rope_scaling=None)  # fmt: skip
    config = json.loads((tmp_path / "text/config.json").read_text())
    tensors = {f"language_model.{name}": tensor for name, tensor in drawn(shape).items()}
    write_model(tmp_path / "model", shape, tensors=tensors)
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    write_records(tmp_path / "chats.jsonl", [{"text": f"once upon {i}"} for i in range(400)])
    tuned = Tuned(tmp_path)
    export(tuned, {"merged": str(tmp_path / "out")})
    np.testing.assert_allclose(logits_of(tmp_path / "out"), tuned.logits(), atol=1e-4)
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["Gemma3ForCausalLM"]
    export(tuned, {"adapter": str(tmp_path / "adapter")})
    names = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert {name.split("layers")[0] for name in names} == {"base_model.model.model.language_model."}


def test_all_forms_are_checked_before_one_is_written(tmp_path, monkeypatch):
    tuned = Tuned(tmp_path, lora_rank=0)
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"learned the whole model, and --adapter is for adapters, .*--merged"):
        export(tuned, {"adapter": str(tmp_path / "more"), "merged": str(tmp_path / "good")})
    with pytest.raises(RecipeError, match=r"--merged .*file/out cannot be written"):
        export(tuned, {"merged": str(tmp_path / "file/out")})
    wrong = {"model_type": "llama"} | json.loads((tmp_path / "model/config.json").read_text()) | {"rope_theta": 7.0}
    monkeypatch.setattr("plimsoll.recipes.finetune.export._config", lambda base: wrong)
    with pytest.raises(DataError, match="settings that do not describe the model"):
        export(tuned, {"merged": str(tmp_path / "out")})
    assert {path.name for path in tmp_path.iterdir()} == {"model", "chats.jsonl", "run", "file"}


def test_places_that_are_taken_are_left_alone_and_nothing_is_written(tmp_path):
    tuned = Tuned(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").touch()
    with pytest.raises(RecipeError, match=r"--merged .*is there already: name a folder that is new or empty"):
        export(tuned, {"adapter": str(tmp_path / "new"), "merged": str(tmp_path / "out")})
    with pytest.raises(RecipeError, match="--adapter and --merged name the same place: give each a folder"):
        export(tuned, {"adapter": str(tmp_path / "new"), "merged": str(tmp_path / "more/../new")})
    assert not (tmp_path / "new").exists()


def always(token):
    """Weights of a model that writes one token whatever it reads."""
    tensors = drawn(SHAPE)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[:] = 0
    tensors["model.embed_tokens.weight"][:] = tensors["model.norm.weight"][:] = 1
    tensors["lm_head.weight"][:] = 0
    tensors["lm_head.weight"][byte_tokenizer().token_to_id(token)] = 1
    return tensors


def writing(tmp_path, token, records=None):
    write_model(tmp_path / "model", tensors=always(token))
    write_records(tmp_path / "chats.jsonl", records or [{"messages": [*MESSAGES]} for _ in range(200)])
    return Tuned(tmp_path, moved=0)


MESSAGES = {"role": "user", "content": "why?"}, {"role": "assistant", "content": "so"}
ASKED = {"prompt": "why?", "tokens": 5, "temperature": 0.0, "top_k": 0, "seed": 0}


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
def test_an_answer_ends_where_the_template_ends_a_turn_or_a_text_ends(tmp_path, token):
    answer = sample(writing(tmp_path, token), ASKED)
    assert (answer["text"], answer["tokens"], answer["ended"]) == ("", 0, True)


def test_an_answer_that_does_not_end_has_the_tokens_that_were_asked_for(tmp_path):
    run = writing(tmp_path, "w")
    answer = sample(run, ASKED | {"tokens": 300})  # more than the model reads at once
    assert (answer["text"], answer["ended"]) == ("w" * 300, False)
    with pytest.raises(RecipeError, match=r"--prompt has 3\d\d tokens, .* 256 at once"):
        sample(run, ASKED | {"prompt": "w" * 300})


CHAT = "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
FORMS = {
    "conversations": (None, "why?", CHAT),
    "turns": ([{"prompt": [MESSAGES[0]], "completion": [MESSAGES[1]]}], "why?", CHAT),
    "pairs": ([{"prompt": "why?", "completion": "so"}], "why?", "why?"),
    "no prompt": ([{"text": "why? so"}], "", "<|endoftext|>"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_prompt_has_the_form_of_what_was_learned(tmp_path, monkeypatch, name):
    records, prompt, expected = FORMS[name]
    seen = []
    monkeypatch.setattr(
        "plimsoll.recipes.finetune.use.continued", lambda _, weights, ids, **how: seen.extend(ids) or ()
    )
    sample(writing(tmp_path, "w", records and records * 300), ASKED | {"prompt": prompt})
    assert byte_tokenizer().decode(seen, skip_special_tokens=False) == expected
