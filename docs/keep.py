"""Keeps what a benchmark wrote, so that pages can show its figures: `python docs/keep.py bench-out/trm.json`.

Into docs/results/, under the same name; the rows of a .jsonl file become one list. What names a path on the machine is
left out, and so are lists of more than a hundred numbers (curves of losses), which no page shows; everything else stays
as it was measured. Of a program that writes no `conditions`, --commit says what was measured.
"""

import argparse
import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
LONGEST = 100


def kept(value: Any) -> Any:
    """Without absolute paths and long lists, at any depth."""
    if isinstance(value, dict):
        return {key: kept(part) for key, part in value.items() if not is_left_out(part)}
    if isinstance(value, list):
        return [kept(part) for part in value if not is_left_out(part)]
    return value


def is_left_out(value: Any) -> bool:
    if isinstance(value, str):
        return any(word.startswith("/") for word in value.split())
    return isinstance(value, list) and len(value) > LONGEST


def read(source: Path) -> Any:
    text = source.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()] if source.suffix == ".jsonl" else json.loads(text)


def with_conditions(result: Any, commit: str | None) -> dict[str, Any]:
    """A list becomes `rows`; the commit is its rows', or the one that is given."""
    whole = result if isinstance(result, dict) else {"rows": result}
    if "conditions" in whole:
        return whole
    commit = commit or next((row["commit"] for row in whole.get("rows", ()) if "commit" in row), None)
    if commit is None:
        raise SystemExit("the result does not say at which commit it was measured: --commit")
    return {"conditions": {"commit": commit}} | whole


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("files", nargs="+", type=Path)
    options.add_argument("--commit")
    given = options.parse_args()
    for source in given.files:
        target = (RESULTS / source.name).with_suffix(".json")
        target.write_text(json.dumps(kept(with_conditions(read(source), given.commit)), indent=1) + "\n", "utf-8")
        print(target)
