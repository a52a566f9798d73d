# ruff: noqa: E501 (a case is a line)
"""Bad input is answered with one paragraph on standard error and exit code 2: the option, the facts, what to do."""

import json
import shlex
import shutil

import pytest

from commands import TINY, plimsoll, workers_here
from plimsoll.api import plan_of_run
from plimsoll.api import train as preparing
from plimsoll.api.planning import find
from plimsoll.cli.main import main
from plimsoll.errors import RecipeError
from plimsoll.processes import handover
from plimsoll.training import disk
from tuning_files import write_model


@pytest.fixture(autouse=True)
def no_exec(monkeypatch):
    def refuse(*_):
        raise AssertionError("training would have started")

    monkeypatch.setattr(handover, "become", refuse)


def require_one_paragraph(error, *parts):
    text = "".join(line for line in error.splitlines(keepends=True) if not line.startswith("  compiling"))
    paragraph = text[text.index("error: ") :]
    assert "Traceback" not in error
    assert "\n\n" not in paragraph.strip()
    assert not set("╭│╰─") & set(paragraph)
    for part in parts:
        assert part in paragraph


def refused(capsys, *arguments):
    assert main([str(word) for word in arguments]) == 2
    return capsys.readouterr().err


REFUSED = {
    # Numbers out of their bounds
    "plan code --steps -3": "--steps | 1 or more and at most 2,147,483,647 | -3",
    "plan code --seed -1": "--seed | 9,223,372,036,854,775,807 | -1",
    "plan code --vocab-size 1B": "--vocab-size | 257 | 1,000,000,000",
    "plan code --stride 1000": "--stride 1000 | --seq-len",
    "train code --max-steps 0": "--max-steps | 1 or more | 0",
    "sample runs/x --tokens 0": "--tokens | 1 or more | 0",
    "sample runs/x --top-k -1": "--top-k | 0 or more | -1",
    "plan stories --target-params 5k": "--target-params 5k | 141,408 | --vocab-size",
    # Options that do not go together
    "plan code --target-params 300k --width 64": "--target-params 300,000 | --width 64",
    "plan code --epochs 2 --steps 600": "--steps 600 | --epochs 2",
    "plan stories --width 64": "--width, --layers and --heads",
    # Places
    "plan stories --dataset-id ''": "--dataset-id",
    "plan code --picture nowhere/a.png": "nowhere/a.png cannot be written",
    "plan code --picture b.svg": "b.svg | a folder",
    "train code --tracker mlflow": "--tracker mlflow | pip install",
    "plan stories --tokenizer nope.json": "nope.json",
    "evaluate nowhere/at-all": "nowhere/at-all | `plimsoll runs`",
    "fingerprint nowhere/at-all": "nowhere/at-all",
    "runs nowhere/at-all": "nowhere/at-all",
    "plan stories --dataset-id /nowhere/at-all --chip h100": "/nowhere/at-all | Check the path.",
    # Options that are wrong whatever the data is, which here would come over the network
    "train stories --memory 400": "--memory 400 | 400MiB",
    "train stories --within xyz": "xyz | 3min",
    "train stories --steps 5 --batch-size 32 --micro-batch 7": "--micro-batch 7 | 32",
    "train stories --steps 5 --offload optimizer --chip cpu": "--offload optimizer | --chip",
    "train stories --chip cpu": "cannot be streamed | huggingface.co",
    # Models that are not supported
    "plan finetune --pretrained bert-base-uncased --chip h100": "--pretrained bert-base-uncased | org/name | Qwen3",
    "inspect /nowhere/at-all": "/nowhere/at-all",
    "inspect RUN": "RUN is a run | plimsoll report RUN | plimsoll runs | plimsoll evaluate",
    "plan stories --dataset-id RUN": "RUN is a run",
    # Longcontext
    "train longcontext --run x": "--data | packed folder",
    "train stories --data nofile.txt --run x": "nofile.txt | Check the path.",
    "train sudoku --dataset-id nowhere --run x": "nowhere | plimsoll prepare",
    "train finetune --target-params 5M": "finetune | --target-params | stories, code",
    "train maze --run x": "--data | plimsoll prepare maze --source",
    "train sudoku --run x": "--data | plimsoll prepare sudoku --size",
    "train arc --run x": "--data | plimsoll prepare arc --source",
    "plan longcontext --preset sudoku": "longcontext-sudoku | longcontext-nano",
    "plan longcontext --heads 4": "--heads and --attention-window | --attention-every",
    # How long planning takes
    "plan stories --chip cpu --within 0s": "--within | above 0 | 24h | 0s",
    "plan stories --chip cpu --within 1e12s": "--within | 24h | 1e12s",
    # The largest value
    "plan stories --chip cpu --largest seq-len --seq-len 4096": "--seq-len 4096 | --largest seq-len",
    "plan stories --chip cpu --largest seq-len --floor": "--floor",
    "plan stories --chip cpu --largest lora-rank": "--largest lora-rank",
    # Chips
    "chips h1000": "'h1000' | h100",
    "plan code --chip gpu": "'gpu' | h100 | `plimsoll chips` | the CPU",
    "plan code --chip cuda": "'cuda' | a100-80 | the CPU",
    "plan code --chip tpu": "'tpu' | tpu-v5e-1 or tpu-v6e-1 | the CPU",
    "plan code --chip a100": "'a100' | a100-40 or a100-80",
    "plan code --chip v100": "'v100' | 16 GB | --chip t4, | rough",
    "plan code --chip rtx2080": "'rtx2080' | 8 GB | --chip t4 --memory 6.5GiB | rough",
    "plan code --chip 'RTX 3080'": "'RTX 3080' | 10 GB | --chip rtx3090 --memory 8.5GiB | rough | docs/chips.md",
    "plan code --chip mi300x": "'mi300x' | NVIDIA GPUs, TPUs and the CPU | `plimsoll chips`",
    "plan code --chip metal": "'metal' | NVIDIA GPUs, TPUs and the CPU of this machine",
    "plan code --chip rtx5099": "'rtx5099' | rtx5090",
    "chips gpu": "'gpu' | h200",
    "chips tpu-v4-63": "tpu-v4-63 | tpu-v4-64 | devices: 32, hosts: 8",
    "chips --install rocm": "--install | tpu, cuda | 'rocm'",
    "chips h100 h200": "h200",
    "plan stories --compare h200,rtx4091": "'rtx4091' | rtx4090",
    "plan stories --compare ,": "--compare",
    "plan stories --compare h200 --price h200": "'h200'",
    "plan stories --compare h200 --chip h200 --measure": "--chip and --measure | --compare",
    "plan stories --compare h200,t4 --mesh data=2": "--mesh | --compare",
    "plan stories --price h200=1": "--price | --compare",
    # Ladders
    "ladder stories --dataset-id text.txt --vocab-size 300 --seq-len 32 --batch-size 4 --rungs ramat": "--rungs ramat | remat",
    "ladder stories --dataset-id text.txt --rung-steps 2": "--rung-steps | 3 or more | 2",
    "ladder stories --dataset-id text.txt --vocab-size 300 --seq-len 32 --batch-size 4 --run RUN": "RUN | new folder",
    "ladder stories --micro-batch 2": "--micro-batch",
    # Schedulers
    "train stories --on slurm --memory 1GiB --run x": "sbatch | PATH | --no-submit",
    "train stories --on slurm --no-submit --run x": "--on slurm | --memory 4GiB",
    "train stories --on slurm --no-submit --run x --coordinator a:1": "--on slurm | --coordinator",
    "train stories --on slurm --no-submit --run x --chip h100x8 --nodes 3": "--nodes 3 | 8 GPUs",
    "train stories --on slurm --no-submit --run x --memory 1GiB --nodes 0": "--nodes | 1 or more | 0",
    "train stories --on slurm --no-submit --run s3://a/b --memory 1GiB": "--run s3://a/b",
    "train stories --on slurm --no-submit --run x --chip tpu-v4-64": "tpu-v4-64",
    "train stories --on slurm --no-submit --run x --memory 1GiB --sbatch \"comment='x\"": "--sbatch | quotation mark",
    "train stories --run x --nodes 2": "--nodes | --on slurm or --on ray",
    "train stories --on ray --run x --memory 1GiB --no-submit": "--no-submit | --on slurm",
    "train stories --on pbs --run x": "--on | slurm, ray | 'pbs'",
    # Data that is made
    "prepare sudoku --out x --size 5": "--size | 4, 6, 9 | '5'",
    "prepare sudoku --out x --test-size 0": "--test-size | 1 or more | 0",
    "prepare maze --out x --source no.csv": "--source no.csv",
    "prepare recommend --interactions no.csv --out x": "no.csv | No such file",
    "prepare recommend --interactions x --out x --item-column a": "--user-column",
    "prepare recommend --interactions x --out x --format xml": "--format | movielens-csv, movielens-dat",
    "prepare longcontext --dataset-id x --out y": "'x'",
    "prepare longcontext --dataset-id x --out y --tokenizer t --vocab-size 400": "--tokenizer | --vocab-size",
    "prepare longcontext --dataset-id text.txt --out y --tokenizer t": "tokenizer at t",
    # Pages
    "report": "plan",
    "report a --plan b": "plan",
    "report no-such-run --out page.txt": "'page.txt' | .html or .htm",
    "report no-such-run": "no-such-run | recipe.json",
    "report --plan no-such-plan.json": "--plan no-such-plan.json",
    # A published model
    "evaluate --pretrained MODEL": "--text",
    "evaluate --pretrained MODEL --text text.txt --seq-len 10k": "--seq-len 10,000",
    "evaluate --pretrained MODEL/nowhere --text text.txt": "MODEL/nowhere",
    "evaluate --pretrained MODEL --text no.txt": "no.txt",
    "evaluate --pretrained MODEL --text text.txt --frozen-bits 3": "--frozen-bits | 3",
    "sample --pretrained MODEL --step best": "--step",
    "sample --pretrained PICKLES": "pytorch_model.bin",
    # A run of text
    "export RUN": "--merged",
    "export RUN --adapter out": "stories | --adapter | finetune | --merged",
    "export RUN x.onnx": "nothing more is expected | x.onnx",
    "export RUN --merged x.onnx": "x.onnx | folder | transformers | --merged FOLDER | --adapter",
    "export RUN --merged MODEL": "--merged MODEL",
    "evaluate RUN --keep-seen": "--keep-seen | stories",
    "evaluate RUN --closed-loop": "--closed-loop | control",
    "solve RUN test:0": "stories | sudoku, maze or arc",
    "rank RUN --history 112": "stories",
    # A run of puzzles
    "solve": "plimsoll solve | RUN",
    "solve PUZZLES": "plimsoll solve | PUZZLE",
    "solve PUZZLES 123": "3 cells | 4x4 has 16",
    "solve PUZZLES test:960": "test:960 | test:959",
    "solve PUZZLES test:0 --step 77": "'77' | 2",
    "evaluate PUZZLES --submission no/where.json": "no/where.json",
    "evaluate PUZZLES --submission a.json": "--submission | ARC",
    "export PUZZLES --merged out": "puzzles | transformers",
}  # fmt: skip
"""What is typed, and what the paragraph names: options, numbers, files and what to type instead."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("published") / "model")


@pytest.fixture
def place(tmp_path, tiny_run, puzzle_run, model, monkeypatch):
    """Where the commands are typed, on a machine without a scheduler."""
    for name, target in {"RUN": tiny_run, "PUZZLES": puzzle_run, "MODEL": model}.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "PICKLES").mkdir()
    (tmp_path / "PICKLES/config.json").write_text((model / "config.json").read_text())
    (tmp_path / "PICKLES/pytorch_model.bin").write_bytes(b"not looked at")
    (tmp_path / "b.svg").mkdir()
    (tmp_path / "text.txt").write_text("\n\n".join(f"Ship {number} has loaded tea." for number in range(400)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("typed", REFUSED)
def test_what_makes_no_sense_is_refused_by_its_name_and_leaves_nothing(capsys, place, monkeypatch, typed):
    monkeypatch.setattr(find.search, "find_fastest", lambda *_, **__: pytest.fail("it was planned first"))
    before = sorted(place.iterdir())
    with workers_here():
        error = refused(capsys, *shlex.split(typed))
    require_one_paragraph(error, *REFUSED[typed].split(" | "))
    assert sorted(place.iterdir()) == before


DATA = {
    "not text": ("noise.txt", bytes(range(256)) * 100, [], ["UTF-8", "iconv"]),
    "an unknown kind": ("a.pdf", b"%PDF", [], ["a.pdf"]),
    "empty": ("empty.txt", b"", [], ["no documents"]),
    "no such column": ("a.jsonl", b'{"story": "a"}\n', [], ["'text'", "story", "--text-column"]),
    "too few tokens": ("small.txt", b"hello there", ["--epochs", "1"], ["3 tokens", "0 sequences of 32", "the 4 of one batch", "--batch-size"]),
    "less than a step": ("small.txt", b"".join(b"%d bells rang.\n\n" % n for n in range(999)), ["--epochs", "1e-9"], ["--epochs 1e-09", "one step of 4", "--steps"]),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_data_that_cannot_be_trained_on_is_refused(capsys, tmp_path, case):
    name, content, options, parts = DATA[case]
    (tmp_path / name).write_bytes(content)
    without_steps = [word for at, word in enumerate(TINY) if "--steps" not in (word, TINY[at - 1])]
    shape = without_steps if options else TINY
    words = ["train", "stories", "--dataset-id", tmp_path / name, *shape, *options, "--run", tmp_path / "run"]
    require_one_paragraph(refused(capsys, *words), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("there", "left"), [("", []), ("runs", ["runs"]), ("runs/a", ["runs", "runs/a"])])
def test_a_refused_start_prepares_no_data_and_leaves_no_folder_that_it_made(capsys, tmp_path, monkeypatch, there, left):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preparing, "prepare_data", lambda *_: pytest.fail("data was prepared first"))
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    words = ["train", "code", "--plan", "nope.json", "--run", "runs/a/b/x"]
    require_one_paragraph(refused(capsys, *words), "nope.json", "plan.json")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == left


def test_a_full_disk_is_refused_before_data_is_prepared(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "prepare_data", lambda *_: pytest.fail("data was prepared first"))
    full = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: full)
    error = refused(capsys, "train", "code", "--chip", "cpu", "--memory", "1GiB", "--run", tmp_path / "x")
    require_one_paragraph(error, "4.0 KiB free", "--run")
    assert not (tmp_path / "x").exists()


def test_a_refused_start_leaves_what_another_run_put_beside_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def meanwhile(*_):
        (tmp_path / "runs/a/other").mkdir()
        raise RecipeError("no plan")

    monkeypatch.setattr(plan_of_run, "levers_of", meanwhile)
    refused(capsys, "train", "code", "--plan", "nope.json", "--run", "runs/a/b/x")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["runs", "runs/a", "runs/a/other"]


def test_a_folder_that_cannot_be_made_leaves_none_above_it(capsys, tmp_path):
    error = refused(capsys, "train", "code", "--run", tmp_path / "a" / "b" / ("x" * 300))
    require_one_paragraph(error, "File name too long")
    assert not (tmp_path / "a").exists()


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(capsys, tmp_path):
    from plimsoll.data.text.opening import python_sources
    from plimsoll.data.text.tokenizer import train_byte_bpe

    train_byte_bpe(python_sources(max_examples=3), 320).save(tmp_path / "tokenizer.json")
    words = ["plan", "stories", "--tokenizer", tmp_path, "--vocab-size", 300]
    require_one_paragraph(refused(capsys, *words), "--vocab-size 300", "320")


@pytest.mark.slow
def test_a_budget_that_no_plan_fits_is_refused_with_the_floor(text_file):
    words = ["plan", "stories", "--dataset-id", text_file, *TINY, "--memory", "40MiB", "--json"]
    done = plimsoll(*words)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["fits"] is False
    assert found["budget_bytes"] == 40 * 2**20 < found["floor_bytes"]
    require_one_paragraph(done.stderr, "fits in 40.0 MiB", "smallest found: ", "you could: ", "--memory ")


def test_a_run_of_another_recipe_is_not_continued(runs, tiny_run, capsys):
    words = runs.command(tiny_run, "--learning-rate", "1e-2")[3:]
    require_one_paragraph(refused(capsys, *words), "--learning-rate", "0.0005", "0.01", "--run")


def test_a_file_is_no_run_folder(capsys, text_file):
    words = ["train", "stories", "--dataset-id", text_file, *TINY, "--run", text_file]
    require_one_paragraph(refused(capsys, *words), f"--run {text_file}")
