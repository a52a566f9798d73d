"""Small files under the names that pages use, for docs/pages.py, which types the commands of the pages."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

from chat_files import byte_tokenizer
from control_files import write_control
from packed_files import write_packed
from page_commands import ROOT
from recipe_packages import installed_into
from small_runs import write_text
from tuning_files import SHAPE, write_chats, write_model


def furnish(place: Path) -> None:
    """Writes small files under the names that pages use."""
    # Text and records.
    for name in ("my-texts", "books", "org/name", "HuggingFaceFW/fineweb-edu", "skeskinen/TinyStories-Instruct-hf"):
        (place / name).mkdir(parents=True)
        write_text(place / name / "text.txt")
    shutil.copy(place / "my-texts/text.txt", place / "book.txt")
    (place / "text.jsonl").write_text('{"text": "once there was a ship"}\n' * 400)
    write_chats(place / "chats.jsonl", 600)

    # Published models, and GPT-2's tokenizer.
    for name in ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-3B"):
        write_model(place / name, replace(SHAPE, positions=131_072))
    for name in ("Llama-3.2-1B", "gemma-2b", "models/llama"):
        write_model(place / name)
    (place / "gpt2").mkdir()
    vocabulary = byte_tokenizer().get_vocab()
    (place / "gpt2/vocab.json").write_text(json.dumps(vocabulary))
    (place / "gpt2/merges.txt").write_text("#version: 0.2\n")

    # Interactions.
    dice = random.Random(0)
    random_rows = [(dice.randrange(1, 25), dice.choice((12, 88, 401, *range(20, 40)))) for _ in range(600)]
    for name in ("ml-1m", "ml-latest-small"):
        (place / name).mkdir()
    rows = [f"{user}::{item}::5::{time}" for time, (user, item) in enumerate(random_rows)]
    (place / "ml-1m/ratings.dat").write_text("\n".join(rows))
    rows = [f"{user},{item},5,{time}" for time, (user, item) in enumerate(random_rows)]
    (place / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]))
    shutil.copy(place / "ratings.csv", place / "ml-latest-small/ratings.csv")
    (place / "log.csv").write_text("\n".join(["customer,item,grade,bought_at", *rows]).replace("item", "product"))
    (place / "toys.txt").write_text("\n".join(f"{user} {item}" for user, item in random_rows))

    # Puzzles: digits of one solution, renamed, with blanks.
    (place / "sapientinc/sudoku-extreme").mkdir(parents=True)
    for split in ("train", "test"):
        lines = ["source,question,answer,rating"]
        for _ in range(30):
            digits = dice.sample("123456789", 9)
            answer = "".join(digits[(3 * row + row // 3 + column) % 9] for row in range(9) for column in range(9))
            question = "".join(dice.choice((digit, digit, ".")) for digit in answer)
            lines.append(f"drawn,{question},{answer},1")
        (place / f"sapientinc/sudoku-extreme/{split}.csv").write_text("\n".join(lines))

    # Packed text, windows of control, and the package of your-own.md.
    write_packed(place / "packed", [*range(1, 250), 256] * 40, validation=[*range(1, 250), 256] * 4)
    write_control(place / "windows.h5")
    write_control(place / "w400.h5")
    installed_into(place / "site")
    for name in ("docs", "benchmarks"):
        (place / name).symlink_to(ROOT / name)
