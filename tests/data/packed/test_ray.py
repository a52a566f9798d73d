"""The same folder comes off a Ray cluster: one that is started here, where Ray is installed."""

import importlib.util
import json
import os

import pytest

from plimsoll.data.packed.prepare import build
from plimsoll.data.text.options import TextSet
from plimsoll.errors import PlimsollError

WITH_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "texts.jsonl"
    texts = [f"Ship {place} loads {place * 37 % 11} crates of tea. " * 40 for place in range(400)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return TextSet(dataset_id=str(path), vocab_size=400)


@pytest.mark.skipif(not WITH_RAY, reason="Ray is not installed: pip install 'plimsoll-jax[ray]'")
def test_a_local_ray_makes_the_folder_that_threads_make(made, tmp_path):
    build(made, tmp_path / "here", workers=1)
    build(made, tmp_path / "ray", ray="local", workers=2)
    names = sorted(os.listdir(tmp_path / "here"))
    assert names == sorted(os.listdir(tmp_path / "ray"))
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()


@pytest.mark.skipif(WITH_RAY, reason="Ray is installed: nothing is to be refused")
def test_without_the_package_it_is_named(made, tmp_path):
    with pytest.raises(PlimsollError, match=r"--ray needs the package ray.*pip install ray"):
        build(made, tmp_path / "packed", ray="local")
    assert not (tmp_path / "packed").exists()
