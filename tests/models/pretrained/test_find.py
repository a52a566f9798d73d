"""Models found by name: the table beside published sizes, the cache of the hub, and a hub that refuses."""

from collections import Counter
from fnmatch import fnmatch

import httpx
import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub.errors import GatedRepoError

from plimsoll.errors import DataError
from plimsoll.models.pretrained.config import shape_of
from plimsoll.models.pretrained.find import TABLE, find_folder, find_shape, known_configs
from plimsoll.models.pretrained.weights import load
from pretrained_folders import LLAMA, write, write_sharded
from small_tasks import parameters_of

SIGHT = 416_866_032
"""Parameters of the tower by which a Gemma 3 of 4B and more sees; 1,152 x (width + 1) lead from it to the words."""
PUBLISHED = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "deepseek-ai/deepseek-coder-1.3b-base": 1_346_471_936,
    "deepseek-ai/deepseek-coder-6.7b-base": 6_740_512_768,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-pt": 999_885_952,
    "google/gemma-3-4b-pt": 4_300_079_472 - SIGHT - 1_152 * (2560 + 1),
    "google/gemma-3-12b-pt": 12_187_325_040 - SIGHT - 1_152 * (3840 + 1),
    "google/gemma-3-27b-pt": 27_432_406_640 - SIGHT - 1_152 * (5376 + 1),
}
"""Id of the first of an entry to its number of parameters, as the hub shows it."""


def test_the_table_has_the_published_numbers_of_parameters():
    assert {name: parameters_of(find_shape(name)) for name in PUBLISHED} == PUBLISHED
    sizes = set(PUBLISHED.values())
    assert {name for name in known_configs() if parameters_of(find_shape(name)) not in sizes} == set()


def test_the_table_names_a_model_once_and_every_setting_that_it_names_is_read():
    text = TABLE.read_text()
    ids = Counter(word for word in text.split('"') if "/" in word and " " not in word and "\n" not in word)
    named = {name for name, times in ids.items() if times > 1 and f'like = "{name}"' not in text}
    assert named == set()
    assert len(known_configs()) >= 60
    for name, config in known_configs().items():
        shape = shape_of(config, source=name)
        for setting in config.keys() - {"rope_theta", "rope_scaling"}:
            less = {key: value for key, value in config.items() if key != setting}
            try:
                assert shape_of(less, source=name) != shape or config[setting] is not None, (name, setting)
            except DataError:
                continue


def test_the_table_knows_windows_positions_and_scales():
    assert find_shape("Google/Gemma-2B-IT") == find_shape("google/gemma-2b")  # the hub tells no cases apart
    first, third = find_shape("mistralai/Mistral-7B-v0.1"), find_shape("mistralai/Mistral-7B-v0.3")
    assert (first.window, first.windowed, third.window) == (4096, (), 0)
    qwen = find_shape("Qwen/Qwen2.5-7B-Instruct")
    assert (qwen.window, qwen.positions, qwen.rotary.theta) == (0, 32_768, 1e6)
    gemma = find_shape("google/gemma-3-27b-it")
    assert (sum(gemma.windowed), len(gemma.windowed), gemma.window) == (52, 62, 1024)
    assert (gemma.score_scale, gemma.rotary.factor, gemma.window_rotary.theta) == (168**-0.5, 8.0, 1e4)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached(hub, name, make):
    """A model in the cache as `huggingface_hub` lays it out: blobs, and links to them in a snapshot."""
    folder = hub / f"models--{name.replace('/', '--')}"
    snapshot, blobs = folder / "snapshots" / ("0" * 40), folder / "blobs"
    make(snapshot)
    blobs.mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / f"{number:040}")
        path.symlink_to(blobs / f"{number:040}")
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("0" * 40)
    return snapshot


@pytest.mark.parametrize("make", [write, write_sharded])
def test_a_model_in_the_cache_is_used_without_the_network(hub, make):
    snapshot = cached(hub, "some/model", lambda folder: make(folder, LLAMA))
    assert find_shape("some/model") == LLAMA
    assert find_folder("some/model") == snapshot
    assert load(find_folder("some/model"), LLAMA)["embedding"].shape == (LLAMA.vocab, LLAMA.width)


def test_a_folder_goes_before_an_id_of_the_same_name(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "google/gemma-2b", LLAMA)
    assert find_shape("google/gemma-2b") == LLAMA
    assert find_folder("google/gemma-2b").resolve() == folder


def refusal(find, name):
    with pytest.raises(DataError) as refused:
        find(name)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_is_neither_here_nor_in_the_cache(hub, tmp_path):
    said = refusal(find_folder, "meta-llama/Llama-3.1-8B")
    assert str(hub) in said
    assert "hf download meta-llama/Llama-3.1-8B" in said
    assert "LocalEntryNotFoundError" in refusal(find_shape, "some/model")
    for name in ("nowhere", "a/b/c", "-/x", str(tmp_path / "absent")):
        assert "org/name" in refusal(find_folder, name)


def test_a_gated_model_of_the_hub_is_said_with_what_to_do(monkeypatch):
    def refused(*_, **__):
        raise GatedRepoError("403", response=httpx.Response(403, request=httpx.Request("GET", "https://hub")))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    said = refusal(find_folder, "some/model")
    assert "https://huggingface.co/some/model" in said
    assert "`hf auth login`, or set HF_TOKEN" in said


def test_of_a_model_of_the_hub_no_pickles_are_downloaded_and_for_its_shape_no_weights(tmp_path, monkeypatch):
    asked = []

    def download(name, *, allow_patterns, ignore_patterns):
        assert ignore_patterns == ["*/*"]
        asked.append([file for file in ("config.json", "pytorch_model.bin", "model.safetensors")
                      if any(fnmatch(file, pattern) for pattern in allow_patterns)])  # fmt: skip
        return write(tmp_path, LLAMA)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_shape("some/model") == LLAMA
    assert find_folder("some/model") == tmp_path
    assert asked == [["config.json"], ["config.json", "model.safetensors"]]
