"""Training on the card of this machine: what is refused where there is none, and what a card's process is told.

No card was to be had when this was written: `benchmarks/device.py` runs the same on one.
"""

import dataclasses
import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from commands import workers_here
from making import made
from plimsoll.api import train
from plimsoll.api.messages import quiet
from plimsoll.api.plan_of_run import Starting
from plimsoll.api.planning import card, place
from plimsoll.api.planning.find import compile_process, find_plan
from plimsoll.api.planning.place import (
    Place,
    budget_bytes,
    chip_named,
    elsewhere,
    place_of,
    require_card,
    require_free,
)
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, PlimsollError, RecipeError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import HostLedger
from plimsoll.planner.child import Child
from plimsoll.planner.chips import chip
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.recipes.registry import preset
from plimsoll.units import GIB, MIB
from report_examples import PLANNED
from subjects import subject_of

CARD = card.Card(kind="NVIDIA H200", memory_bytes=140 * GIB)


def silently(text):
    raise AssertionError(f"said {text}")


def sees(monkeypatch, devices, *, kind=CARD.kind, backend="gpu", memory_bytes=CARD.memory_bytes):
    """Makes JAX's process list so many devices of a kind."""
    listed = {"backend": backend, "devices": devices * [{"kind": kind, "memory_bytes": memory_bytes}]}
    card._listed.cache_clear()
    monkeypatch.setattr(card, "ask", lambda *_, **__: listed)


@pytest.fixture(autouse=True)
def nothing_is_known_before_or_after():
    card._listed.cache_clear()
    yield
    card._listed.cache_clear()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The root of a machine with NVIDIA's driver and JAX's plug-in, and `nvidia-smi` that prints files of its own."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {tmp_path}/gpus;; *) cat {tmp_path}/holders;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    for variable in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "holders").touch()
    (tmp_path / "gpus").touch()
    installed(monkeypatch, "jax-cuda13-plugin")
    return tmp_path


def installed(monkeypatch, *plugins):
    monkeypatch.setattr(card.metadata, "distributions", lambda name: [name] if name in plugins else [])


def chosen(root, batch=8, mesh=None):
    said = []
    target = place.chip_here(said.append, batch=batch, mesh=place.parse_mesh(mesh), root=root)
    return target, said[-1]


PLUGIN = "jax-cuda13-plugin"


@pytest.mark.parametrize(
    ("has_driver", "plugins", "variables", "why"),
    [
        (False, [PLUGIN], {}, "no NVIDIA driver and no TPU is here"),  # as in an image for cards, elsewhere
        (True, [], {}, "install the extra `cuda13`"),
        (True, [PLUGIN], {"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS is cpu"),
        (True, [PLUGIN], {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES hides the GPU"),
    ],
)
def test_where_no_card_can_be_used_it_is_the_cpu_and_no_process_is_started(
    machine, monkeypatch, has_driver, plugins, variables, why
):
    monkeypatch.setattr(card, "ask", silently)
    monkeypatch.setattr(subprocess, "Popen", silently)
    installed(monkeypatch, *plugins)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    target, said = chosen(machine if has_driver else machine / "bin")
    assert target.name == "cpu"
    assert said.startswith("on the CPU: ")
    assert why in said


@pytest.mark.parametrize(
    ("here", "batch", "mesh", "name", "words"),
    [
        (1, 8, None, "h200", "JAX sees 1 x NVIDIA H200, used: 1"),
        (8, 16, None, "h200x8", "JAX sees 8 x NVIDIA H200, used: 8"),
        (8, 12, None, "h200x4", "JAX sees 8 x NVIDIA H200, used: 4"),
        (2, 7, None, "h200", "JAX sees 2 x NVIDIA H200, used: 1"),
        (2, 8, "data=1", "h200", "JAX sees 2 x NVIDIA H200, used: 1"),
        (8, 8, "fsdp=2", "h200x2", "JAX sees 8 x NVIDIA H200, used: 2"),
    ],
)
def test_of_several_cards_as_many_are_used_as_share_the_batch(machine, monkeypatch, here, batch, mesh, name, words):
    sees(monkeypatch, here)
    target, why = chosen(machine, batch, mesh)
    assert target.name == name
    assert why == f"on {name}: {words}"


def test_a_card_of_no_list_has_the_drivers_memory_and_a_name_that_is_found_again(machine, monkeypatch):
    sees(monkeypatch, 2, kind="NVIDIA RTX 5000 Ada", memory_bytes=48 * GIB)
    target, why = chosen(machine)
    assert (target.name, target.devices, target.memory_bytes) == ("nvidia-rtx-5000-ada", 1, 47 * GIB)
    assert not target.flops
    assert "2 x NVIDIA RTX 5000 Ada, used: 1" in why
    assert "its memory is the driver's, its rates are measured" in why
    monkeypatch.setattr(card, "platform_here", lambda root=None: ("cuda", ""))
    assert chip_named("nvidia-rtx-5000-ada") == target
    with pytest.raises(RecipeError, match="there is no chip called 'nvidia-rtx-6000'"):
        chip_named("nvidia-rtx-6000")


def test_a_slice_of_one_host_is_recognised(tmp_path, monkeypatch):
    device = tmp_path / "sys/bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1ae0\n")
    (device / "device").write_text("0x0042\n")  # Google's network card, of a virtual machine without a TPU
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(card.util, "find_spec", lambda name: name)
    assert chosen(tmp_path)[0].name == "cpu"
    (device / "device").write_text("0x0063\n")
    sees(monkeypatch, 8, kind="TPU v5 lite", backend="tpu")
    assert chosen(tmp_path)[0].name == "tpu-v5e-8"
    sees(monkeypatch, 3, kind="TPU v5 lite", backend="tpu")
    with pytest.raises(RecipeError, match=r"JAX sees 3 x TPU v5 lite, and no slice of one host"):
        chosen(tmp_path)


@pytest.mark.parametrize(
    "problem",
    [
        PlimsollError("Unable to initialize backend 'cuda': CUDA driver version is insufficient"),
        RuntimeError("the worker process for 'accelerators' ended with code 1: see its error above"),
    ],
)
def test_a_card_that_jax_cannot_use_is_refused_in_one_paragraph(machine, monkeypatch, problem):
    """A driver too old for the plug-in, or the plug-in's own error: training on the CPU instead would hide it."""

    monkeypatch.setattr(card, "ask", Mock(side_effect=problem))
    with pytest.raises(RecipeError) as refusal:
        chosen(machine)
    assert refusal.value.exit_code == 2
    assert f"{str(problem).rstrip('.')}. Mend" in str(refusal.value)
    assert "or train on the CPU with --chip cpu" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_look_that_takes_too_long_is_refused(machine, monkeypatch):
    """One host of a TPU slice waits for the others, and a driver that hangs for ever."""
    slow = subprocess.TimeoutExpired("a look", card.LOOK_SECONDS)
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=slow))
    with pytest.raises(RecipeError, match=f"did not answer in {card.LOOK_SECONDS} s and was killed"):
        chosen(machine)


BROKEN_PLUGIN = """
def initialize():
    raise RuntimeError("Unable to use CUDA because of the following issues:\\n  Outdated CUDA driver: 12.2, needs 13.0")
"""


def test_a_plugins_own_error_is_told_without_its_traceback(tmp_path):
    """A real process of ours, and a plug-in that fails as NVIDIA's does where the driver is too old."""
    (tmp_path / "jax_plugins").mkdir()
    (tmp_path / "jax_plugins/xla_cuda13.py").write_text(BROKEN_PLUGIN)
    variables = environment.on_card(1.0)
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "plimsoll.worker", "accelerators"]
    done = subprocess.run(command, input="{}", env=variables, capture_output=True, text=True, check=True)
    reply = json.loads(done.stdout)
    assert "Outdated CUDA driver: 12.2, needs 13.0" in reply["refused"]
    assert "\n" not in reply["refused"]
    assert "Traceback" not in done.stderr


GPUS = "0, GPU-aa, NVIDIA H200, 143167, 580.159\n1, GPU-bb, NVIDIA H200, 20000, 580.159\n"
HOLDERS = "GPU-bb, 4242, python, a.py, 123000\nGPU-bb, 77, [Not Found], [N/A]\n"


def test_what_others_hold_of_a_card_is_said_with_the_budget_that_would_do(machine, monkeypatch):
    (machine / "gpus").write_text(GPUS)
    (machine / "holders").write_text(HOLDERS)
    h200 = chip("h200")
    require_free(CARD, h200, 130 * GIB)  # the first card is free
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(BudgetError) as refusal:
        require_free(CARD, h200, 30 * GIB)
    for part in ("python, a.py (process 4242) with 120.1 GiB", "[Not Found] (process 77)", "at most --memory 18976MiB"):
        assert part in str(refusal.value)
    assert refusal.value.exit_code == 2
    require_free(CARD, h200, 18976 * MIB)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb")
    require_free(CARD, h200, 30 * GIB)
    with pytest.raises(BudgetError, match="process 4242"):  # of two cards the fuller one counts
        require_free(CARD, chip("h200x2"), 30 * GIB)


def test_without_nvidia_smi_nothing_is_known_to_be_held(machine):
    require_free(CARD, chip("h200"), CARD.memory_bytes - GIB)
    with pytest.raises(BudgetError, match="the driver names none"):
        require_free(CARD, chip("h200"), CARD.memory_bytes)


def test_the_default_budget_is_no_more_than_the_card_has_and_what_is_free_of_it(machine):
    h200, said = chip("h200"), []
    small = dataclasses.replace(CARD, memory_bytes=100 * GIB)
    (machine / "gpus").write_text(GPUS)
    assert budget_bytes(None, h200, CARD, said.append) == 143167 * MIB - GIB
    assert budget_bytes(None, h200, small, said.append) == 100 * GIB
    assert said == []
    (machine / "gpus").write_text(GPUS.replace("143167", "51200"))
    (machine / "holders").write_text(HOLDERS.replace("GPU-bb", "GPU-aa"))
    assert budget_bytes(None, h200, CARD, said.append) == 49 * GIB
    assert said[0].startswith("49.0 GiB of the NVIDIA H200 can be used now: python, a.py (process 4242) with 120.1")
    with pytest.raises(RecipeError, match=r"--memory 120GiB is 120.0 GiB per device, .* has 100.0 GiB"):
        budget_bytes("120GiB", h200, small)


def test_a_plan_of_one_card_leaves_the_others_alone(monkeypatch):
    monkeypatch.delenv("JAX_CUDA_VISIBLE_DEVICES", raising=False)
    four = dataclasses.replace(CARD, devices=4)
    for variables in (
        card.training_environment(chip("h200x2"), four, 35 * GIB, silently),
        card.compile_environment(chip("h200x2"), four, 35 * GIB, measure=True),
    ):
        assert variables["JAX_CUDA_VISIBLE_DEVICES"] == "0,1"
    monkeypatch.setenv("JAX_CUDA_VISIBLE_DEVICES", "3,1,0,2")
    variables = card.training_environment(chip("h200"), four, 35 * GIB, silently)
    assert variables["JAX_CUDA_VISIBLE_DEVICES"] == "3"


def test_a_process_on_a_card_has_the_budget_and_no_more_and_only_compiling_does_not_take_it_at_once():
    training = card.training_environment(chip("h200"), CARD, 35 * GIB, silently)
    timing, compiling = (
        card.compile_environment(chip("h200"), CARD, 35 * GIB, measure=measure) for measure in (True, False)
    )
    for variables, at_once in ((training, "true"), (timing, "true"), (compiling, "false")):
        assert float(variables["XLA_CLIENT_MEM_FRACTION"]) == pytest.approx(0.25)
        assert variables["XLA_PYTHON_CLIENT_PREALLOCATE"] == at_once
    assert training["JAX_PLATFORMS"] == "cuda,cpu"


def with_card(card):
    return Place(chip=chip("h200"), card=card, budget_bytes=GIB)


def test_the_child_of_a_card_that_is_here_is_its_own_compiler_and_answers_for_its_driver():
    subject = subject_of(preset("stories"))
    places = [with_card(dataclasses.replace(CARD, driver=driver)) for driver in ("580.1", "590.2")]
    first, second = (compile_process(place, subject, silently) for place in places)
    assert first.command[3] == "compile"
    assert "cuda" in first.environment["JAX_PLATFORMS"]
    assert first.subject != second.subject
    absent = compile_process(with_card(None), subject, quiet)  # its compiler may be installed or not
    assert absent.command[3] == "cross-compile"


def test_a_unit_of_one_letter_is_said_as_it_is_read():
    said = []
    assert budget_bytes("2g", chip("cpu"), say=said.append) == 2 * GIB
    assert budget_bytes("2gb", chip("cpu"), say=said.append) == 2 * 10**9
    assert budget_bytes("2GiB", chip("cpu"), say=said.append) == 2 * GIB
    assert said == ["--memory 2g is read as 2.0 GiB", "--memory 2gb is read as 1.9 GiB"]


def test_what_is_not_here_is_not_timed():
    with pytest.raises(RecipeError, match="--measure times plans on the chip at hand, and h200 is not"):
        place_of(Question(recipe=preset("stories"), name="stories", chip="h200", measure=True))


def test_what_the_user_set_for_the_allocator_does_not_contradict_the_budget():
    theirs = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform", "HOME": "/"}
    variables = environment.on_card(0.5, base=theirs)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in variables
    assert "XLA_PYTHON_CLIENT_ALLOCATOR" not in variables
    assert variables["HOME"] == "/"


def ledger_of(*, budget, peak, pinned):
    return HostLedger(budget_bytes=budget, components={"process": peak}, phase="train", pinned_bytes=pinned)


@pytest.mark.parametrize(
    ("planned_host", "gibibytes"),
    [
        (None, "117"),  # what the machine can give, less a tenth that is 2 GiB at most
        (ledger_of(budget=None, peak=70 * GIB, pinned=64 * GIB), "111"),  # less what is not pinned
        (ledger_of(budget=90 * GIB + 1, peak=70 * GIB, pinned=64 * GIB), "85"),
        (ledger_of(budget=50 * GIB, peak=70 * GIB, pinned=64 * GIB), "64"),  # the plan's own, whatever is there
        (ledger_of(budget=None, peak=200 * GIB, pinned=0), "1"),  # more than this machine has now
    ],
)
def test_what_xla_may_pin_of_the_host_is_its_budget_without_the_rest_of_the_process(
    monkeypatch, planned_host, gibibytes
):
    """By itself it pins 64 GiB at most, and a row of 262,144 tokens alone has as much of Llama-3.1-8B's inputs."""
    monkeypatch.delenv(environment.PINNED_LIMIT, raising=False)
    monkeypatch.setattr(card.host, "available_bytes", lambda: 119 * GIB)
    variables = card.training_environment(chip("h200"), CARD, 35 * GIB, silently, planned_host=planned_host)
    assert variables["XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"] == gibibytes


def test_plans_are_timed_with_what_the_machine_can_pin_and_a_users_own_limit_is_kept(monkeypatch):
    monkeypatch.delenv(environment.PINNED_LIMIT, raising=False)
    monkeypatch.setattr(card.host, "available_bytes", lambda: 119 * GIB)
    timing = card.compile_environment(chip("h200"), CARD, 35 * GIB, measure=True)
    assert timing[environment.PINNED_LIMIT] == "117"
    assert environment.for_several("cuda", pinned_bytes=3 * GIB)[environment.PINNED_LIMIT] == "3"
    assert environment.PINNED_LIMIT not in environment.for_several("cuda")
    monkeypatch.setenv(environment.PINNED_LIMIT, "7")
    assert card.training_environment(chip("h200"), CARD, GIB, silently)[environment.PINNED_LIMIT] == "7"
    assert card.compile_environment(chip("h200"), CARD, GIB, measure=False)[environment.PINNED_LIMIT] == "7"


def test_a_card_smaller_than_the_budget_is_refused_and_another_kind_is_said():
    small = dataclasses.replace(CARD, kind="NVIDIA L4", memory_bytes=20 * GIB)
    with pytest.raises(BudgetError, match=r"budget is 35.0 GiB .* NVIDIA L4 .* has 20.0 GiB. Ask for .*19456MiB"):
        require_free(small, chip("h200"), 35 * GIB)
    messages = []
    card.training_environment(chip("h200"), small, 10 * GIB, messages.append)
    assert "has a NVIDIA L4" in messages[0]


def test_what_is_several_machines_is_not_trained_on_by_one_command():
    with pytest.raises(RecipeError, match=r"tpu-v4-64 is 32 devices in 8 machines, .* start it on each of them"):
        require_card(chip("tpu-v4-64"))


def test_a_card_and_as_many_devices_as_the_chip_has_must_be_here_before_anything_is_made(monkeypatch):
    sees(monkeypatch, 1, kind="cpu", backend="cpu", memory_bytes=None)
    with pytest.raises(RecipeError, match=r"--chip h200 needs an NVIDIA GPU in this machine .* JAX finds a cpu alone"):
        require_card(chip("h200"))
    sees(monkeypatch, 4)
    assert require_card(chip("h200x4")) == dataclasses.replace(CARD, devices=4)
    with pytest.raises(RecipeError, match=r"needs 8 devices in this machine .* JAX finds 4 of its 8"):
        require_card(chip("h200x8"))


def test_a_run_is_on_what_is_here_where_nothing_names_its_chip_and_stays_there_until_planned_again(
    tmp_path, machine, monkeypatch
):
    sees(monkeypatch, 2)
    monkeypatch.setattr(card, "platform_here", lambda root=None: ("cuda", ""))
    folder, said = RunFolder(tmp_path / "run"), []
    folder.create()

    def target(say=silently, processes=1, **options):
        starting = Starting(
            folder=folder,
            recipe=preset("stories"),
            options=train.TrainOptions(**options),
            say=say,
            processes=processes,
        )
        return train._target(starting).name

    assert target(said.append) == "h200x2"
    assert len(said) == 2
    assert target(said.append, pins={"micro_batch": 1}) == "h200"
    assert target(chip="cpu") == target(processes=2) == "cpu"

    plan = dataclasses.replace(PLANNED.plan, chip="l4")
    folder.write("plan.json", dataclasses.replace(PLANNED, plan=plan).to_dict())
    assert target() == "l4"
    with pytest.raises(RunError, match=r"is planned for l4, and --chip says cpu: add --replan"):
        target(chip="cpu")
    assert target(chip="cpu", replan=True) == "cpu"


def test_where_a_card_is_its_memory_is_found_and_where_none_is_that_is_said():
    with workers_here():
        result = ask("accelerators", {}, under=environment.on_card(1.0))
    assert result["backend"] in ("cpu", "gpu")
    assert (result["devices"][0]["memory_bytes"] is None) == (result["backend"] == "cpu")


ON_A_FAKE_CARD = """
import json, sys
import jax
from plimsoll.training import allocator
most = {}
def counted(figure="bytes_in_use"):
    held = sum(array.nbytes for array in jax.live_arrays())
    most["now"] = held
    most["peak"] = max(most.get("peak", 0), held)
    return most["now" if figure == "bytes_in_use" else "peak"]
allocator.device_bytes = counted
from plimsoll import worker
sys.exit(worker.main(["train", sys.argv[1]]))
"""
"""The training process, but that its devices count their arrays, as an accelerator's allocator does."""


@pytest.mark.slow
def test_beside_an_accelerator_the_ledger_has_its_bytes_and_the_hosts(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "plimsoll.cli.main", "train", "code", "--width", "32", "--layers", "1"]
    command += ["--heads", "2", "--vocab-size", "384", "--seq-len", "16", "--batch-size", "4", "--steps", "6"]
    command += ["--shuffle-buffer-size", "0", "--max-examples", "20", "--memory", "1GiB", "--run", str(folder)]
    command += ["--micro-batch", "4", "--remat", "none", "--loss-chunk", "0", "--precision", "float32", "--quiet"]
    subprocess.run([*command, "--max-steps", "2"], check=True)
    assert json.loads((folder / "ledger.json").read_text())["host"] is None

    # The plan of a card has a ledger of its host.
    run = RunFolder(folder)
    host = HostLedger(budget_bytes=None, components={"process": 50 * MIB}, phase="train")
    planned = run.planned()
    planned = dataclasses.replace(planned, ledger=dataclasses.replace(planned.ledger, host=host))
    run.write("plan.json", planned.to_dict())
    session = json.dumps({"run": str(folder), "budget_bytes": GIB, "log_every": 1})
    subprocess.run([sys.executable, "-c", ON_A_FAKE_CARD, session], check=True, env=environment.for_processes("cpu"))
    result = json.loads((folder / "ledger.json").read_text())
    measured = {name: sizes["measured"] for name, sizes in result["components"].items() if sizes["measured"]}
    assert measured["parameters"] * 2 == pytest.approx(measured["optimizer"], rel=0.01)
    assert "process" not in measured
    assert result["host"]["measured_peak_bytes"] > 50 * 2**20
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = [row["peak_device_bytes"] for row in rows if "peak_device_bytes" in row]
    assert len(counted) == 4  # the steps of the second session
    assert 0 < max(counted) <= result["measured"]["peak_bytes"]


@pytest.mark.slow
def test_plans_are_compiled_and_timed_where_the_card_is(tmp_path, monkeypatch):
    """The whole way, with this CPU in the card's place: a child compiles and times; a second plan asks for nothing."""
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setattr(card, "compile_environment", lambda *_, **__: environment.for_processes("cpu"))
    recipe = made(
        "stories", dataset_id="no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=2
    )
    pins = {"remat": "none", "loss_chunk": 0, "offload": "none", "prefetch": 0}
    question = Question(recipe=recipe, name="stories", numerics="exact", pins=pins, measure=True)
    here = dataclasses.replace(CARD, kind="cpu")
    at = Place(chip=chip("h200"), card=here, budget_bytes=GIB, host_budget_bytes=chip("h200").host_memory_bytes)
    planned = find_plan(question, at)
    assert planned.step_seconds_source == "measured"
    assert planned.ledger.source == "compiled"
    assert planned.ledger.budget_bytes == GIB
    assert planned.ledger.host.predicted_peak_bytes > 50 * MIB

    monkeypatch.setattr(Child, "_start", lambda child: silently("a child was started"))
    assert find_plan(question, at) == dataclasses.replace(planned, compiles=0)


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_a_run_is_not_kept_on_another_mesh_than_its_plan_has(name):
    target = chip(name)
    assert elsewhere(PLANNED, None, target) is None
    assert elsewhere(PLANNED, "data=1", target) is None
    assert "data=1,fsdp=2" in elsewhere(PLANNED, "data=1,fsdp=2", target)
