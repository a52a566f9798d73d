"""Models found by name: the table beside published sizes, the cache of the hub, and a hub that refuses."""

import json
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import huggingface_hub.constants
import pytest

from plimsoll.errors import DataError
from plimsoll.models.pretrained.config import shape_of
from plimsoll.models.pretrained.find import TABLE, find_folder, find_shape, known_configs
from plimsoll.models.pretrained.weights import load
from pretrained_folders import LLAMA, config_of, write, write_sharded

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
TWINS = {
    "meta-llama/Llama-3.3-70B-Instruct": "meta-llama/Llama-3.1-70B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-Coder-7B-Instruct": "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-Coder-1.5B": "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-32B-Instruct": "Qwen/Qwen2.5-32B",
    "Qwen/Qwen3-8B-Base": "Qwen/Qwen3-8B",
    "google/gemma-3-27b-it": "google/gemma-3-27b-pt",
}
"""Models that were made from others, to these."""


def test_the_table_has_the_published_numbers_of_parameters():
    assert {name: find_shape(name).parameters() for name in PUBLISHED} == PUBLISHED
    sizes = set(PUBLISHED.values())
    assert {name for name in known_configs() if find_shape(name).parameters() not in sizes} == set()
    for twin, other in TWINS.items():
        assert find_shape(twin).parameters() == PUBLISHED[other]


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
    assert find_shape("meta-llama/Llama-3.2-1B").parameters() == 1_235_814_400
    assert find_shape("google/gemma-2b").parameters() == 2_506_172_416
    assert find_shape("Google/Gemma-2B-IT") == find_shape("google/gemma-2b")  # the hub tells no cases apart
    first, third = find_shape("mistralai/Mistral-7B-v0.1"), find_shape("mistralai/Mistral-7B-v0.3")
    assert (first.window, all(first.windowed), third.windowed) == (4096, True, ())
    qwen = find_shape("Qwen/Qwen2.5-7B-Instruct")
    assert (qwen.windowed, qwen.positions, qwen.rotary.theta) == ((), 32_768, 1e6)
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
    assert "cannot be had (LocalEntryNotFoundError" in refusal(find_shape, "some/model")
    for name in ("nowhere", "a/b/c", "-/x", str(tmp_path / "absent")):
        assert "is no folder here, nor the id of a Hugging Face model, which looks like org/name" in refusal(
            find_folder, name
        )


@contextmanager
def served(answer, monkeypatch):
    """A hub on this machine that gives one answer (status, headers) to all but what a list of files is made from."""
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, headers = answer(self.path)
            body = headers.pop("body", "{}").encode()
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body)),
                "Content-Type": "application/json",
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()


def gated(path):
    if "/resolve/" in path:
        return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model some/model is restricted."}
    files = [
        {"type": "file", "path": name, "size": 2, "oid": "1" * 40} for name in ("config.json", "model.safetensors")
    ]
    about = {"id": "some/model", "sha": "2" * 40, "siblings": [{"rfilename": file["path"]} for file in files]}
    return 200, {"body": json.dumps(files if "/tree/" in path else about)}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (gated, "gated model of the Hugging Face hub: accept its licence on https://huggingface.co/some/model, then"),
        (lambda path: (401, {"X-Error-Code": "GatedRepo"}), "log in with `hf auth login`, or set HF_TOKEN"),
        (
            lambda path: (404, {"X-Error-Code": "RepoNotFound"}),
            "cannot be had (RepositoryNotFoundError: 404",
        ),
    ],
    ids=["licence not accepted", "not logged in", "not found"],
)
def test_what_the_hub_refuses_is_said_with_what_to_do(hub, monkeypatch, answer, said):
    with served(answer, monkeypatch) as asked:
        assert said in refusal(find_folder, "some/model")
    assert asked


def test_a_model_of_the_hub_is_downloaded_without_pickles_and_its_shape_without_weights(hub, monkeypatch):
    files = {
        "config.json": json.dumps(config_of(LLAMA)),
        "pytorch_model.bin": "",
        "model.safetensors": "",
        "a/b.json": "",
    }

    def answer(path):
        if "/resolve/" in path:
            name = path.rpartition(f"{'2' * 40}/")[2]
            return 200, {"body": files[name], "ETag": f'"{name}"', "X-Repo-Commit": "2" * 40}
        listed = [{"type": "file", "path": name, "size": len(body), "oid": "1" * 40} for name, body in files.items()]
        about = {"id": "some/model", "sha": "2" * 40, "siblings": [{"rfilename": name} for name in files]}
        return 200, {"body": json.dumps(listed if "/tree/" in path else about)}

    with served(answer, monkeypatch) as asked:
        assert find_shape("some/model") == LLAMA
        assert {path.rpartition("/")[2] for path in asked if "/resolve/" in path} == {"config.json"}
        folder = find_folder("some/model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
