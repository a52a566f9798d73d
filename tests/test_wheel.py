"""The wheel in empty environments: Python 3.11 to 3.13, the oldest and the newest JAX. Downloads some 500 MiB each."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = [("3.11", "0.10.2"), ("3.12", "0.11.2"), ("3.13", "0.12.*")]
PROGRAM = """
import plimsoll
plan = plimsoll.plan("code", memory="512MiB", pins={"micro_batch": 8, "loss_chunk": 0, "remat": "none"})
print(plan.fits, plimsoll.preset("recommend-debug").effective_batch)
"""


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
@pytest.mark.by_hand
@pytest.mark.parametrize(("version", "jax"), ENVIRONMENTS)
def test_it_plans_from_an_empty_environment(version, jax, wheel, tmp_path):
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"there is no python{version} here")
    run(python, "-m", "venv", tmp_path / "env")
    here = tmp_path / "env/bin"
    run(here / "python", "-m", "pip", "install", "--quiet", wheel, f"jax=={jax}")
    environment = {"PATH": str(here), "PLIMSOLL_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environment}

    assert run(here / "python", "-c", PROGRAM, **options).split() == ["True", "8"]
    planned = run(here / "plimsoll", "plan", "code", "--memory", "512MiB", "--micro-batch", "8", "--json", **options)
    assert json.loads(planned)["verdict"] == "fits"
    assert "ready" in run(here / "plimsoll", "doctor", **options)
