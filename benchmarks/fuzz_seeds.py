"""Sound inputs of every kind, small, and the commands and readers that read them: what is damaged, and who meets it.

The folder `tests/support` has writers for most of these forms, in NumPy alone; they are used here.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests/support"
sys.path[:0] = [str(TESTS), str(TESTS / "report"), str(TESTS / "recipes")]

Call = Callable[[Path], object]
"""Of the folder with the (damaged) input; returns an exit code or anything else, or raises PlimsollError."""
TINY = "--width 32 --layers 2 --heads 1 --steps 8 --memory 900MiB"
STORIES = f"{TINY} --vocab-size 300 --seq-len 16 --batch-size 4"

READ = "read, and nothing is wrong with it: it would be planned or trained now"


@dataclass(frozen=True)
class Kind:
    """`write` puts sound files into a folder; one that fits a pattern is damaged; then one of that pattern's calls
    reads it."""

    write: Callable[[Path], None]
    calls: Mapping[str, Sequence[Call]]
    is_code: bool = False
    """It is to be run, so what it then does is its own."""


def command(words: str) -> Call:
    """`{in}` is the folder; anything is written beside it, into `{out}`."""

    def call(folder: Path) -> object:
        from plimsoll.cli.main import main

        out = folder.parent / "out"
        return main([word.replace("{in}", str(folder)).replace("{out}", str(out)) for word in words.split()])

    return call


def without_planning() -> None:
    """Planning compiles, and training is another process: what comes before them is what reads a user's files."""
    import plimsoll.api.plan as planning
    import plimsoll.api.train as training
    from plimsoll.errors import PlimsollError
    from plimsoll.processes import handover

    def planned(*_: Any, **__: Any) -> Any:
        raise PlimsollError(READ)

    def become(ready: handover.Ready) -> None:
        os.close(ready.lock)
        raise PlimsollError(READ)

    planning.plan, training.plan, handover.become = planned, planned, become


def _text(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    import zstandard

    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghij", k=4)) for _ in range(50)]
    documents = [" ".join(drawn.choices(words, k=40)) for _ in range(40)]
    plain, lines = "\n\n".join(documents).encode(), "\n".join(json.dumps({"text": one}) for one in documents).encode()
    (folder / "a.txt").write_bytes(plain)
    (folder / "b.jsonl").write_bytes(lines)
    (folder / "c.txt.gz").write_bytes(gzip.compress(plain))
    (folder / "d.jsonl.zst").write_bytes(zstandard.compress(lines))
    table = pyarrow.table({"text": documents})
    pyarrow.parquet.write_table(table, folder / "e.parquet")
    (folder / "saved").mkdir()
    with (
        pyarrow.OSFile(str(folder / "saved/data.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as to,
    ):
        to.write_table(table)
    (folder / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}], "_split": None}))


def _of_text(name: str) -> tuple[Call, Call]:
    trained = f"train stories --dataset-id {{in}}/{name} {STORIES} --run {{out}}/run"
    return command(f"inspect {{in}}/{name} --json"), command(trained)


def _hdf5(folder: Path) -> None:
    from control_files import write_control

    write_control(folder / "w.h5", rows=120, chunk=16)


def _packed(folder: Path) -> None:
    import numpy as np

    from packed_files import write_packed

    ids = np.random.default_rng(0).integers(0, 257, 3000)
    write_packed(folder, ids, validation=ids[:400])
    _save_tokenizer(folder / "tokenizer.json")


def _puzzles(folder: Path) -> None:
    from puzzle_files import write_split

    for split in ("train", "test"):
        write_split(folder / split, groups=[[2, 1], [3], [1, 1, 1]], seq_len=16, vocab_size=6)


def _tables(folder: Path) -> None:
    drawn = random.Random(0)
    rows = ["source,question,answer,rating"]
    for _ in range(12):
        grid = "1234341221434321".translate(str.maketrans("1234", "".join(drawn.sample("1234", 4))))
        rows.append(f"x,{''.join('.' if drawn.random() < 0.5 else digit for digit in grid)},{grid},0")
    (folder / "four.csv").write_text("\n".join(rows))
    ratings = [(drawn.randrange(12), drawn.randrange(9), time) for time in range(300)]
    (folder / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n" + "\n".join(f"{u},{i},4.0,{t}" for u, i, t in ratings)
    )
    (folder / "ratings.dat").write_text("\n".join(f"{u}::{i}::4::{t}" for u, i, t in ratings))
    (folder / "pairs.txt").write_text("\n".join(f"{u} {i}" for u, i, _ in ratings))
    task = {"train": [{"input": [[1, 2], [3, 4]], "output": [[1]]}], "test": [{"input": [[0, 5]], "output": [[9]]}]}
    (folder / "arc").mkdir()
    (folder / "arc/a_training_challenges.json").write_text(json.dumps({"t1": task, "t2": task}))
    (folder / "arc/a_training_solutions.json").write_text(json.dumps({"t1": [[[9]]], "t2": [[[9]]]}))


def _recommended(name: str) -> Call:
    def call(folder: Path) -> object:
        from plimsoll.recipes.recommend.prepare import build
        from plimsoll.recipes.recommend.prepare_options import RecommendSet

        made = RecommendSet(interactions=str(folder / name), k_core=2, clustering="frequency", embeddings="none")
        return build(made, folder.parent / "out" / name)

    return call


def _interactions(folder: Path) -> None:
    from interaction_files import write_random

    write_random(folder / "set")


def _pretrained(folder: Path) -> None:
    from pretrained_folders import LLAMA, write_sharded

    write_sharded(folder, LLAMA)
    (folder / "whole").mkdir()
    first = next(iter(sorted(folder.glob("*.safetensors"))))
    (folder / "whole/model.safetensors").write_bytes(first.read_bytes())


def _checked(folder: Path) -> object:
    from plimsoll.models.pretrained.config import read_shape
    from plimsoll.models.pretrained.safetensors_folder import checked

    return checked(folder, read_shape(folder))


def _published(folder: Path) -> object:
    from plimsoll.recipes.puzzles.published import read

    return read(folder / "whole/model.safetensors")


def _tokenizer(folder: Path) -> None:
    _save_tokenizer(folder / "tokenizer.json")
    (folder / "a.txt").write_text("\n\n".join("abc def ghi " * 30 for _ in range(40)))


def _save_tokenizer(path: Path) -> None:
    """A token for every byte, and the end of a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def _run(folder: Path) -> None:
    """Writes a run as a session leaves it; its checkpoint is a real one."""
    import dataclasses

    import numpy as np

    from plimsoll.api.train import prepare_data
    from plimsoll.recipes.registry import preset
    from plimsoll.recipes.saved import from_dict
    from plimsoll.runs.folder import RunFolder
    from plimsoll.training.checkpoint import Checkpoints
    from report_examples import LEDGER, PLANNED

    text, run = folder / "a.txt", RunFolder(folder / "run")
    text.write_text("\n\n".join(f"abc def ghi {n} " * 30 for n in range(120)))
    size: dict[str, Any] = {"width": 32, "layers": 2, "heads": 1, "vocab_size": 300, "seq_len": 16, "batch_size": 4}
    stories: Any = preset("stories")
    recipe = dataclasses.replace(stories, dataset_id=str(text), steps=8, **size)
    run.create()
    prepare_data(run, recipe, lambda text: None)
    assert from_dict(run.read("recipe.json")) == recipe
    run.write("plan.json", PLANNED.to_dict())
    run.write("ledger.json", LEDGER)
    run.write("sessions.json", [{"plimsoll": "0.1.0", "started": "2026-01-01 00:00:00Z", "commit": None}])
    run.write("overruns.json", {"overruns": []})
    seconds = {
        "step_seconds": 0.5,
        "data_seconds": 0.1,
        "tokens_per_second": 9.0,
        "resident_bytes": 9,
        "peak_resident_bytes": 9,
    }
    rows = [{"step": n, "loss": 3.0 / n, "elapsed_seconds": n, **seconds} for n in range(1, 9)]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 8, "validation_loss": 1.0}]))
    with Checkpoints(run.checkpoints, in_background=False) as checkpoints:
        for step in (4, 8):
            checkpoints.save(step, {"params": {"w": np.arange(6, dtype=np.float32)}}, {"document": step})
        checkpoints.mark_best(8, 1.0)


def _proved(folder: Path) -> object:
    from plimsoll.inference.evaluate import prove

    return prove({"run": str(folder / "run")})


def _plan(folder: Path) -> None:
    from report_examples import PLANNED

    (folder / "plan.json").write_text(json.dumps(PLANNED.to_dict()))
    (folder / "a.txt").write_text("\n\n".join("abc def ghi " * 30 for _ in range(60)))


def _recipe_file(folder: Path) -> None:
    from own_files import ONE

    (folder / "mine.py").write_text(ONE)


RUN = (
    command("runs {in}"),
    command("inspect {in}/run"),
    command("report {in}/run --no-model --out {out}/page.html"),
    command(f"train stories --dataset-id {{in}}/a.txt {STORIES} --run {{in}}/run"),
    command(f"train stories --dataset-id {{in}}/a.txt {STORIES} --run {{in}}/run"),
    _proved,
)
OF_FOUR = "prepare sudoku --source {in}/four.csv --size 4 --num-aug 2 --test-size 2 --out {out}/sudoku"

KINDS: dict[str, Kind] = {
    "text": Kind(
        _text,
        {name: _of_text(name) for name in ("a.txt", "b.jsonl", "c.txt.gz", "d.jsonl.zst", "e.parquet")}
        | {"saved/*": _of_text("saved")},
    ),
    "hdf5": Kind(
        _hdf5,
        {
            "w.h5": [
                command("inspect {in}/w.h5 --json"),
                command("inspect {in}/w.h5 --shuffle --batch-size 8"),
                command(f"train control --data {{in}}/w.h5 {TINY} --batch-size 8 --run {{out}}/run"),
            ]
        },
    ),
    "packed": Kind(
        _packed,
        {
            "*.*": [
                command("inspect {in}"),
                command("train longcontext-nano --data {in} --seq-len 32 --batch-size 2 --steps 3 --run {out}/run"),
            ]
        },
    ),
    "puzzles": Kind(
        _puzzles,
        {"**/*.*": [command("inspect {in}"), command("train sudoku-4x4 --data {in} --steps 3 --run {out}/run")]},
    ),
    "tables": Kind(
        _tables,
        {
            "four.csv": [
                command(OF_FOUR),
                command("prepare maze --source {in}/four.csv --test-size 2 --out {out}/maze"),
            ],
            "arc/*": [command("prepare arc --source {in}/arc --num-aug 2 --out {out}/arc")],
            **{name: [_recommended(name)] for name in ("ratings.csv", "ratings.dat", "pairs.txt")},
        },
    ),
    "interactions": Kind(
        _interactions,
        {
            "set/*.*": [
                command("inspect {in}/set"),
                command("train recommend-debug --data {in}/set --steps 3 --run {out}/run"),
            ]
        },
    ),
    "pretrained": Kind(_pretrained, {"*.*": [_checked], "whole/*": [_published]}),
    "tokenizer": Kind(
        _tokenizer,
        {
            "tokenizer.json": [
                command(f"{verb} stories --dataset-id {{in}}/a.txt --tokenizer {{in}}/tokenizer.json {TINY}{run}")
                for verb, run in (("train", " --run {out}/run"), ("plan", ""))
            ]
        },
    ),
    "run": Kind(_run, {"run/*.json*": RUN, "run/*.npy": RUN, "run/checkpoints/**/*.json": RUN}),
    "plan": Kind(
        _plan,
        {
            "plan.json": [
                command(f"train stories --dataset-id {{in}}/a.txt {STORIES} --plan {{in}}/plan.json --run {{out}}/run"),
                command("report --plan {in}/plan.json --out {out}/page.html"),
            ]
        },
    ),
    "recipe file": Kind(_recipe_file, {"mine.py": [command("plan {in}/mine.py --memory 900MiB")]}, is_code=True),
}
