"""A compile environment is made whole or not at all, and borrows our packages. The network's part is played here."""

import importlib.util
import json
import shutil
import signal
import site
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy
import pytest

from plimsoll.api.planning.find import compile_process
from plimsoll.api.planning.place import Place
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.planner.chips import chip
from plimsoll.processes import toolchains
from plimsoll.processes.environment import for_processes
from plimsoll.recipes.registry import preset
from plimsoll.units import GIB
from subjects import subject_of

real_run = toolchains._run


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_COMPILERS", str(tmp_path / "compilers"))
    return tmp_path / "compilers"


class Steps:
    """The steps of an installation: the environment is real, pip writes one module, the proof imports it and ours."""

    def __init__(self, *, fails=None):
        self.fails, self.ran = fails, []

    def __call__(self, command, *, environment=None):
        words = [str(word) for word in command]
        step = "venv" if "venv" in words else "pip" if "pip" in words else "proof"
        self.ran.append((step, words[-1]))
        if step == self.fails:
            return real_run([words[0], "-c", "import sys; sys.exit('no matching distribution')"])
        if step == "venv":
            return real_run([*words[:3], "--without-pip", words[-1]])
        if step == "pip":
            (packages,) = Path(words[0]).parents[1].glob("lib/python*/site-packages")
            return (packages / "a_plugin.py").write_text("made_for = 'a chip'")
        return real_run([words[0], "-c", "import a_plugin, importlib.util as u; assert u.find_spec('jax')"])


@pytest.fixture
def steps(monkeypatch):
    monkeypatch.setattr(toolchains, "_run", steps := Steps())
    return steps


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An environment, the steps of its installation, and what was said of it."""
    folder, messages = tmp_path_factory.mktemp("compilers"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLIMSOLL_COMPILERS", str(folder))
        patch.setattr(toolchains, "_run", steps := Steps())
        toolchains.install("tpu", messages.append)
    return SimpleNamespace(folder=folder, steps=steps, messages=messages)


@pytest.fixture
def install(made, place):
    """Copies it: making one takes a third of a second."""

    def copy(platform):
        shutil.copytree(made.folder / "tpu", place / platform, symlinks=True)
        return place / platform

    return copy


def test_an_environment_has_its_plug_in_and_our_packages_and_ours_do_not_see_it(made, monkeypatch):
    assert toolchains.python_for("tpu") is None
    monkeypatch.setenv("PLIMSOLL_COMPILERS", str(made.folder))
    python = toolchains.python_for("tpu")
    assert python == made.folder / "tpu/bin/python"
    assert toolchains.missing("tpu") is None
    assert toolchains.python_for("cuda") is None
    assert [name for name, _ in made.steps.ran] == ["venv", "pip", "proof"]
    assert made.steps.ran[1][1] == f"jax[tpu]=={jax.__version__}"
    assert "705.7 MiB on disk" in made.messages[0], "the size is said before anything is downloaded"
    program = "import a_plugin, numpy, sys; print(a_plugin.made_for, numpy.__file__, sys.prefix)"
    printed = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert printed == ["a", "chip", numpy.__file__, str(made.folder / "tpu")]
    assert importlib.util.find_spec("a_plugin") is None


@pytest.mark.parametrize(("step", "before"), [("venv", False), ("pip", True), ("proof", False)])
def test_what_fails_leaves_what_was_there_before(step, before, monkeypatch, place, install):
    if before:
        install("cuda")
    monkeypatch.setattr(toolchains, "_run", Steps(fails=step))
    with pytest.raises(PlimsollError, match=r"was not made: .* ended with code 1: no matching distribution") as refusal:
        toolchains.install("cuda", lambda _: None)
    assert "\n" not in str(refusal.value)
    assert (toolchains.python_for("cuda") is not None) == before
    assert {path.name for path in place.iterdir()} - {"cuda"} == {"cuda.lock"}


KILLED = """
    import time
    from plimsoll.processes import toolchains
    def step(command, **_):
        (toolchains.folder("tpu").with_name("tpu.unfinished") / "bin").mkdir(parents=True, exist_ok=True)
        print("downloading", flush=True)
        time.sleep(600)
    toolchains._run = step
    toolchains.install("tpu", lambda _: None)
"""


def test_one_that_was_killed_is_not_taken_for_a_good_one_and_can_be_made_again(steps, place):
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "downloading\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (place / "tpu.unfinished").exists()
    assert toolchains.python_for("tpu") is None
    toolchains.install("tpu", lambda _: None)
    assert toolchains.python_for("tpu") is not None
    assert not (place / "tpu.unfinished").exists()


@pytest.mark.parametrize(("field", "was"), [("jax", "0.9.0"), ("python", "3.10.0"), ("environment", "/another")])
def test_one_that_was_made_for_other_packages_is_not_used(field, was, install):
    mark = install("tpu") / toolchains.MARK
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {field: was}))
    assert toolchains.python_for("tpu") is None
    missing = toolchains.missing("tpu")
    assert missing.startswith(f"installed for {field} {was}, and this is ")


def test_packages_are_borrowed_from_where_they_lie_and_not_by_a_link(steps, place, tmp_path, monkeypatch):
    (real,) = [path for path in site.getsitepackages() if (Path(path) / "jax").is_dir()]
    (tmp_path / "link").symlink_to(real)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "link")])
    toolchains.install("tpu", lambda _: None)
    (tmp_path / "link").unlink()
    assert toolchains.missing("tpu") is None
    done = subprocess.run([place / "tpu/bin/python", "-c", "import importlib.util as u; print(u.find_spec('jax'))"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert "ModuleSpec" in done.stdout


def test_where_its_interpreter_has_gone_a_plan_says_why_it_is_only_estimated(install, capsys):
    python = install("cuda") / "bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert toolchains.python_for("cuda") is None
    broken = toolchains.missing("cuda")
    assert broken == "broken, its interpreter /nowhere/python3 is gone"

    messages = []
    place = Place(chip=chip("h200"), budget_bytes=GIB)
    process = compile_process(place, subject_of(preset("stories")), messages.append)
    assert process.python == sys.executable
    assert not process.subject.is_compiled
    (message,) = messages
    assert broken in message
    assert "`plimsoll chips --install cuda`" in message
    assert main(["chips"]) == 0
    assert f"{broken}: `plimsoll chips --install cuda`" in " ".join(capsys.readouterr().out.split())


def test_what_a_compile_environment_answered_is_asked_again_of_another_version(install):
    (packages,) = install("cuda").glob("lib/python*/site-packages")
    asked = []
    for version in ("9.1", "9.2"):
        (packages / f"nvidia_cudnn-{version}.dist-info").mkdir()
        place = Place(chip=chip("h200"), budget_bytes=GIB)
        asked.append(compile_process(place, subject_of(preset("stories")), lambda _: None).subject.compiler)
    assert asked == [("nvidia_cudnn-9.1",), ("nvidia_cudnn-9.1", "nvidia_cudnn-9.2")]


def test_too_little_disk_is_refused_before_anything_is_made(steps, monkeypatch, place):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * GIB))
    with pytest.raises(PlimsollError, match=r"cuda needs 6\.6 GiB of disk while it is made, and 3\.0 GiB are free"):
        toolchains.install("cuda", lambda _: None)
    assert steps.ran == []


def test_a_compile_child_runs_on_the_cpu_and_keeps_the_users_flags(monkeypatch, tmp_path):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    tpu = for_processes("tpu", base={})
    assert (tpu["JAX_PLATFORMS"], tpu["ALLOW_MULTIPLE_LIBTPU_LOAD"]) == ("cpu", "1")
    cuda = for_processes("cuda", base={"XLA_FLAGS": "--xla_dump_to=x"})
    assert cuda["XLA_FLAGS"].split() == ["--xla_dump_to=x", "--xla_gpu_autotune_level=0"]
    assert cuda["JAX_PLATFORMS"] == "cpu"
    assert "GLIBC_TUNABLES" not in cuda
    assert "ALLOW_MULTIPLE_LIBTPU_LOAD" not in for_processes("cpu", base={})
