"""Every plimsoll command on a page of the docs can be typed: it is parsed here, and not run."""

import dataclasses
import shlex
from itertools import takewhile

import pytest

from interaction_files import write_small
from packed_files import write_packed
from page_commands import PAGES, ROOT, commands
from plimsoll.cli.help import Page
from plimsoll.cli.look import ConfigOptions
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.options import LadderOptions, PlanOptions, TrainOptions
from plimsoll.cli.parse import parse, parse_with_recipe, values_typed
from plimsoll.cli.prepare import page_of
from plimsoll.cli.report import ReportOptions
from plimsoll.cli.verbs import USES, rows_of_pretrained, rows_of_run
from plimsoll.errors import RecipeError
from plimsoll.recipes import registered
from plimsoll.recipes.registered import preparations
from pretrained_folders import LLAMA, write
from puzzle_files import write_split
from recipe_packages import installed_into

OPTIONS = {"plan": PlanOptions, "train": TrainOptions, "ladder": LadderOptions, "config": ConfigOptions}
SETS = {"data/sudoku-4x4": (16, 6), "data/sudoku": (81, 11)}
"""Folders of puzzles that pages name: tokens of a puzzle, and of the vocabulary."""


PREPARED = [preparation.example for preparation in preparations().values()]
SHOWN = [*(command.example for command in COMMANDS.values() if not command.takes_recipe), *PREPARED]
FOUND = {tuple(words): page.name for page in PAGES for words in commands(page)}
FOUND |= {tuple(shlex.split(text)[1:]): "help" for text in SHOWN}
"""Commands, each once, to the last place that has it."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the commands are typed: recipe files are named from the checkout, and data sets are there already."""
    folder = tmp_path_factory.mktemp("reader")
    for part in ("docs", "benchmarks"):
        (folder / part).symlink_to(ROOT / part)
    write_small(folder / "data", [[1, 2, 3, 4], [2, 3, 1]])
    for model in ("Llama-3.2-1B", "gemma-2b"):
        write(folder / model, LLAMA)
    for name, (seq_len, vocab_size) in SETS.items():
        for split in ("train", "test"):
            write_split(folder / name / split, groups=[[1]], seq_len=seq_len, vocab_size=vocab_size, identifiers=1)
    write_packed(folder / "packed", [1, 2, 256] * 10)
    (folder / "mine.toml").write_text('[mine]\nlike = "control"\n')
    installed_into(folder / "site")
    return folder


@pytest.fixture
def package(place, monkeypatch):
    """The package of your-own.md is installed."""
    monkeypatch.syspath_prepend(place / "site")
    registered.installed.cache_clear()
    yield
    registered.installed.cache_clear()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("words", FOUND, ids=[" ".join([page, *words]) for words, page in FOUND.items()])
def test_every_command_in_the_docs_parses(words, place, monkeypatch):
    monkeypatch.chdir(place)
    name, *rest = words
    assert name in COMMANDS or name.startswith("-")
    if {"-h", "--help"} & {*rest}:
        with pytest.raises(SystemExit) as stopped:
            require_parsed(name, rest)
        assert stopped.value.code == 0
    elif rest:  # the bare name is a mention, not a command
        require_parsed(name, rest)


def require_parsed(name, rest):
    """Raises what would be said of the options."""
    if name in OPTIONS:
        recipes = list(takewhile(lambda word: not word.startswith("-"), rest))
        for typed in [[recipe, *rest[len(recipes) :]] for recipe in recipes] or [rest]:
            parse_with_recipe(OPTIONS[name], typed, command=name)
    elif name == "report":
        parse(ReportOptions, rest, command=name)
    elif name in USES:
        rows = rows_of_pretrained(name) if "--pretrained" in rest else rows_of_run(name)
        values_typed(Page(program=f"plimsoll {name}", options=rows, example=""), rest)
    elif name == "prepare" and rest[0] in preparations() and rest[1:]:  # the bare name is a mention
        values_typed(page_of(rest[0], preparations()[rest[0]]), rest[1:])


ROWS = {
    "guide-hdf5.md": [
        # Overview and memory.
        "streams HDF5 in batches",
        "100M samples",
        "JIT-compiled train and evaluation steps",
        "efficient device transfers",
        "average time",
        "time left",
        "Checkpoints are automatic",
        "CPU backend, stable",
        # Installation, scripts.
        "jax-metal",
        "jax[cuda11]",
        "test_gpu_training.py",
        "train_jax.py",
        "data_generation_jax.py",
        "inspect_data.py",
        "Memory usage comparison",
        "`jax.device_put` of each batch",
        "vectorized operations, multi-core",
        "M4 MacBook Pro",
        # Trouble.
        "`batch_size` 256, then 128, 64",
        "slow: JIT, shorter sequences, smaller model",
        "TRAINING_CONFIG",
        "Production ready, 100M+",
    ],
    "guide-tinystories.md": [
        "--dataset-id skeskinen/TinyStories-Instruct-hf",
        "`--use-streaming` is the default",
        "StreamingDataLoader",
        'batch["input_ids"].shape',
        "--gradient-accumulation-steps 4`: 128 a step",
        "--use-mixed-precision",
        "--use-8bit-optimizer",
        "tokenised once and stored",
        "--shuffle-buffer-size 10000",
        "1036 MB",
        '"100x"',
        "8-16 GB",
        "--target-params 500000",
        "seven remedies",
        "slow training",
        "data not shuffling well",
        "estimate_memory_usage",
        "jax.local_devices()",
        "train_model.py",
        "don't pre-tokenize and store",
        "--no-use-streaming",
    ],
    "guide-trm.md": [
        "ACT halting",
        "JAX vs PyTorch key differences",
        "`jax.lax.pmean` of gradients",
        "--worker=all",
        "Verify installation",
        "NumPy iterator",
        "PyTreeCheckpointer",
        "EMAState",
        "wandb.log",
        "evaluation loop",
        "Experiments in a row",
        "equivalence with PyTorch",
        "50,000 epochs",
        "data sets on all workers",
        "Multi-host coordination",
        "~500K examples/s",
        "2-3 % of 128 GB",
        "process_index()",
        "make_jaxpr",
        "start_server(9999)",
        "jax_debug_nans",
        "GCS",
        "build_sudoku_dataset.py",
        "Known limitations",
    ],
    "guide-32k.md": [
        "GradScaler",
        "num_workers=4",
        "pin_memory",
        "gradient_accumulation",
        "empty_cache",
        "OneCycleLR",
        "--precision tf32",
        "clip_grad_norm_",
        "num_eigenstates",
        "use_gradient_checkpointing",
        "PreTokenizedDataset",
        "35,000-45,000 tokens/s",
        "train_small_32k.sh",
        "DigitalOceanTrainer",
        "CUDA_LAUNCH_BLOCKING",
        "92 hours",
        "~7.2 GB",
        "save_steps",
        "--checkpoint_dir ./checkpoints",
        "Memory/allocated_gb",
        "nvidia-smi dmon",
        "pretokenize_and_pack.py",
        "--largest batch-size",
        "torch.utils.bottleneck",
        "out of memory: batch, accumulation, `chunk_size`, checkpointing",
        "training unstable",
        "torchrun --nproc_per_node=4",
        "validation set",
    ],
    "guide-efficientids.md": [
        "--config tpu_optimized",
        "meta-llama/Llama-3.2-1B",
        "--item-embedding-dim 384",
        "remat saves 40-60 %",
        "bfloat16 saves 50 %",
        "2 x 8 = 16",
        "get_tpu_optimized_config",
        "TrainingConfig(",
        "Trainer(model=",
        "6.5 GB",
        "A100, H100, RTX 4090",
        "Detected platform",
        "weights stay float32",
        "no dimension reduced",
    ],
}
"""Of each guide, words of every heading, command, class and figure that its page answers."""
TITLES = {
    "guide-hdf5.md": "Memory-Efficient JAX Training Guide",
    "guide-tinystories.md": "Memory Optimization Guide",
    "guide-trm.md": "JAX/Flax Deployment Guide for TPU v4-64",
    "guide-32k.md": "Training Script Optimizations Complete",
    "guide-efficientids.md": "Memory Optimizations for EfficientIDs Flax",
}


@pytest.mark.parametrize("page", ROWS)
def test_a_page_answers_every_row_of_its_guide(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    assert [row for row in ROWS[page] if row not in text] == []


@pytest.mark.parametrize("page", TITLES)
def test_a_page_has_the_title_of_its_guide_and_leads_to_help(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    title, _, first, *_ = text.splitlines()
    assert title == f"# {TITLES[page]}"
    assert first.startswith(f'If your guide is called "{TITLES[page]}"')
    assert "(trouble.md" in text


def test_all_promises_of_the_guides_are_there():
    assert sum(len({*rows}) for rows in ROWS.values()) == 109


def parsed(flags):
    return parse_with_recipe(TrainOptions, ["stories", *flags.split()], command="train")


@pytest.mark.parametrize(
    ("flags", "batch", "numerics"),
    [
        ("--batch-size 16 --gradient-accumulation-steps 4", 64, "mixed"),
        ("--use-mixed-precision", 32, "mixed"),
        ("--no-mixed-precision", 32, "exact"),
    ],
)
def test_the_guides_flags_keep_their_meaning(flags, batch, numerics):
    typed = parsed(flags)
    assert (typed.recipe.effective_batch, typed.options.numerics) == (batch, numerics)


def test_the_guides_eight_bit_flag_pins_the_optimizers_state():
    assert parsed("--use-8bit-optimizer").pins == {"optimizer_bits": 8}


@pytest.mark.parametrize(
    "flags",
    [
        "--checkpoint-dir runs/x",
        "--checkpoint_dir=runs/x",
        "--checkpoint-dir=runs/x --resume",
        "--resume --output_dir runs/x",
    ],
)
def test_the_folder_of_checkpoints_is_the_run_and_resuming_is_what_happens_anyway(flags):
    typed = parsed(flags)
    assert dataclasses.replace(typed.options, run=None) == parsed("").options
    assert (typed.recipe, typed.options.run) == (parsed("").recipe, "runs/x")


@pytest.mark.parametrize("flags", ["--resume step_1000.pt", "--resume=step_1000.pt"])
def test_a_checkpoint_that_is_named_is_not_silently_left_out(flags):
    with pytest.raises(RecipeError, match=r"got 'step_1000\.pt'"):
        parsed(flags)


def test_a_value_with_underscores_and_an_equals_sign_stays_what_it_is():
    assert parsed("--dataset-id my_texts=1").recipe.options["dataset_id"] == "my_texts=1"
