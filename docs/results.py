"""Writes the page of results, docs/results.md, from the result files in docs/results.

    python docs/results.py             writes the page
    python docs/results.py --check     fails where the page is not what the files say
    python docs/results.py --keep bench-out/trm.json --commit 1a2b3c4d --command "python benchmarks/trm.py --rounds 5"

The last one keeps a new result and writes the page. A result file is what a benchmark program wrote; its `conditions`
name the command, the commit with its day, and where the program noted them the cores and the processor.
docs/results.toml says which figures of a file stand in its tables.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FOLDER = DOCS / "results"
PAGE = DOCS / "results.md"
INTRODUCTION = """# Results

What benchmarks measured: a section for each file in `docs/results`, written by `python docs/results.py`.
A figure belongs to its commit and its machine. Programs and options of a command may have left since.
What was tried on the way, failures included, is in `notes/` of the repository.
"""
LONGEST_LIST = 100
"""Longer lists, like curves of losses, are not kept: no table shows them."""


class ResultError(Exception):
    """A result that cannot be shown or kept. Its message names the file and what to do."""


def number(value: Any) -> str:
    """Returns a text as it is, a whole number with its thousands apart, and five digits of any other number."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value).replace("|", "\\|")


UNITS: dict[str, Callable[[Any], str]] = {
    "MiB": lambda size: f"{size / 2**20:,.1f}",
    "GiB": lambda size: f"{size / 2**30:,.2f}",
    "GB": lambda size: f"{size / 1e9:,.2f}",
    "kB": lambda size: f"{size / 1e3:,.1f}",
    "ms": lambda seconds: number(1000 * seconds),
    "min": lambda seconds: f"{seconds / 60:.1f}",
    "%": lambda share: f"{100 * share:.1f}",
}
"""How a figure is written under a head that ends in ", UNIT". Bytes, seconds and shares are plain in the files."""

REDUCERS: dict[str, Callable[[Any], Any]] = {
    "max": max,
    "median": statistics.median,
    "sum": lambda counts: sum(counts.values()),
}
"""What the last word of a path may do with a list, or with a dictionary of counts."""


def figure(row: Any, path: str) -> Any:
    """Returns what is under the keys of a path, joined by "/"; of "a|b" the first that is there, or None."""
    for alternative in path.split("|"):
        value = row
        for key in filter(None, alternative.split("/")):
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif key in REDUCERS and value:
                value = REDUCERS[key](value)
            else:
                value = None
        if value is not None and not isinstance(value, dict | list):
            return value
    return None


def rows_of(value: Any, keys: Sequence[str], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the rows under these keys. A "*" is each key of a dictionary, which names the row, or each of a list."""
    if not keys:
        yield name, value
        return

    first, *others = keys
    if first != "*":
        yield from rows_of(value[first], others, name)
    elif isinstance(value, list):
        for part in value:
            yield from rows_of(part, others, name)
    else:
        for key, part in value.items():
            yield from rows_of(part, others, f"{name}, {key}" if name else key)


def errors_of_draw(result: Any) -> list[dict[str, Any]]:
    """Returns one row for configurations that benchmarks/prediction.py drew: how far predictions were off."""
    measured = [row for row in result["rows"] if row.get("peaks")]
    refused = [row for row in measured if row["outcome"] == "refused"]
    errors = [row["predicted"] - max(row["peaks"]) for row in measured]
    return [
        {
            "drawn": len(result["rows"]),
            "measured": len(measured),
            "median": statistics.median(abs(error) for error in errors),
            "worst": max(abs(error) for error in errors),
            "below": sum(error < 0 for error in errors),
            "over": sum(max(row["peaks"]) > row["memory"] for row in measured),
            "refused": len(refused),
            "within": sum(max(row["peaks"]) <= row["budget"] for row in refused),
        }
    ]


def table(result: Any, description: dict[str, Any]) -> str:
    """Returns a table of a result; rows and columns without a figure are left out."""
    if description["rows"] == "errors of a draw":
        rows = [("", row) for row in errors_of_draw(result)]
    else:
        rows = list(rows_of(result, [key for key in description["rows"].split("/") if key]))

    # A column is "head: path", and the head ends in the unit, if there is one.
    heads = [""]
    columns = [[name for name, _ in rows]]
    for column in description["columns"]:
        head, _, path = column.partition(": ")
        written = UNITS.get(head.rpartition(", ")[2], number)
        values = [figure(row, path) for _, row in rows]
        heads.append(head)
        columns.append(["" if value is None else written(value) for value in values])

    shown = [(head, cells) for head, cells in zip(heads, columns, strict=True) if any(cells)]
    lines = [[head for head, _ in shown], ["---"] * len(shown)]
    for at, (name, _) in enumerate(rows):
        cells = [column[at] for _, column in shown]
        if any(cells[1:] if name else cells):
            lines.append(cells)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def section(path: Path, descriptions: dict[str, list[dict[str, Any]]]) -> str:
    """Returns the section of a result file: what it is, under which conditions, and its tables."""
    result = json.loads(path.read_text("utf-8"))
    tables = next((tables for name, tables in descriptions.items() if fnmatch.fnmatch(path.stem, name)), None)
    if tables is None:
        raise ResultError(f"{path.name} has no table: describe one in docs/results.toml, or remove the file")

    conditions = result["conditions"]
    place = ""
    if "cpu" in conditions:
        place = f", {conditions['cores']} cores of an {conditions['cpu']}"
    if "chip" in conditions:
        place = f", {conditions['chip']}"
    commit = re.sub(r"\b([0-9a-f]{8})[0-9a-f]+\b", r"\1", conditions["commit"])
    source = f"[{path.name}](results/{path.name}): `{conditions['command']}`"
    parts = [
        f"## {path.stem}\n",
        f"{tables[0]['about']}\n",
        f"{source} at {commit} ({conditions['date']}){place}.\n",
        *(table(result, description) for description in tables),
    ]
    return "\n".join(parts)


def page() -> str:
    """Returns the page that the result files make."""
    descriptions = tomllib.loads(DOCS.joinpath("results.toml").read_text("utf-8"))
    sections = [section(path, descriptions) for path in sorted(FOLDER.glob("*.json"))]
    return "\n".join([INTRODUCTION, *sections])


def without_places(value: Any) -> Any:
    """Returns a result without absolute paths and long lists, at any depth."""
    if isinstance(value, dict):
        return {key: without_places(part) for key, part in value.items() if not is_left_out(part)}
    if isinstance(value, list):
        return [without_places(part) for part in value if not is_left_out(part)]
    return value


def is_left_out(value: Any) -> bool:
    if isinstance(value, str):
        return any(word.startswith("/") for word in value.split())
    return isinstance(value, list) and len(value) > LONGEST_LIST


def keep(source: Path, *, commit: str | None, command: str | None) -> Path:
    """Writes a result into docs/results, with its conditions complete, and returns its file there.

    Args:
        source: What a benchmark wrote: JSON, or lines of JSON, which become `rows`.
        commit: What was measured, where the result does not say it. One that git does not know is refused.
        command: What was typed, where the result does not say it.
    """
    text = source.read_text("utf-8")
    if source.suffix == ".jsonl":
        result = {"rows": [json.loads(line) for line in text.splitlines()]}
    else:
        result = json.loads(text)

    conditions = result.setdefault("conditions", {})
    for name, value in (("commit", commit), ("command", command)):
        if value is not None:
            conditions[name] = value
        if not conditions.get(name):
            raise ResultError(f"{source} does not say its {name}: --{name}")
    revision = conditions["commit"].split(",")[0] + "^{commit}"
    day = ["git", "-C", str(DOCS), "show", "--no-patch", "--format=%cs", revision]
    known = subprocess.run(day, capture_output=True, text=True)
    if known.returncode:
        raise ResultError(f"{source}: {conditions['commit']} is no commit of this history: nobody could check it out")
    conditions["date"] = known.stdout.strip()

    target = (FOLDER / source.name).with_suffix(".json")
    target.write_text(json.dumps(without_places(result), indent=1) + "\n", "utf-8")
    return target


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--check", action="store_true", help="write nothing; fail where the page is another")
    options.add_argument("--keep", type=Path, metavar="FILE", help="a result to copy into docs/results")
    options.add_argument("--commit", help="the commit that FILE was measured at, where it does not say it")
    options.add_argument("--command", help="the command that wrote FILE, where it does not say it")
    chosen = options.parse_args(arguments)

    try:
        if chosen.keep is not None:
            print(keep(chosen.keep, commit=chosen.commit, command=chosen.command))
        text = page()
    except ResultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    if not chosen.check:
        PAGE.write_text(text, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != text:
        print("docs/results.md is not what the files say: `python docs/results.py` writes it anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
