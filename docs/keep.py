"""Keeps what a benchmark wrote, so that pages can show its figures: `python docs/keep.py bench-out/trm.json`.

Into docs/results/, under the same name; the rows of a .jsonl file become one list. What names a path on the machine is
left out, and so are lists of more than a hundred numbers (curves of losses), which no page shows; everything else stays
as it was measured. Of a program that writes no `conditions`, --commit says what was measured. A commit that is not in
the history of this checkout is refused: nobody could check that version out. `--check` looks for one in every file that
was kept.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
LONGEST = 100
COMMIT = re.compile(r"\b[0-9a-f]{7,40}\b")


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


def history() -> list[str] | str:
    """Returns the commits of this checkout's history, or why nobody can say which there are."""
    git = ["git", "-C", str(RESULTS)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.returncode:
        return "git has no history here"
    if shallow.stdout.strip() == "true":
        return "this clone is shallow (`git fetch --unshallow` gets the rest)"
    return subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True, check=True).stdout.split()


def named(value: Any, *, under: str = "") -> Iterator[str]:
    """Yields the commits that a result names, under `commit` or `commits`, at any depth."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from named(part, under=under if under == "commits" else key)
    elif isinstance(value, list):
        for part in value:
            yield from named(part, under=under)
    elif under in ("commit", "commits"):
        yield from COMMIT.findall(str(value)) or [str(value)]


def unknown(result: Any, commits: Collection[str]) -> list[str]:
    """Returns the commits that a result names and that are none of these."""
    return sorted({name for name in named(result) if not any(commit.startswith(name) for commit in commits)})


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("files", nargs="*", type=Path)
    options.add_argument("--commit")
    options.add_argument("--check", action="store_true", help="keep nothing: look for commits that are not there")
    given = options.parse_args(arguments)
    commits = history()
    if isinstance(commits, str):
        print(f"commits were not looked for: {commits}")
    wrong = 0
    for source in sorted(RESULTS.glob("*.json")) if given.check else given.files:
        result = kept(with_conditions(read(source), given.commit))
        if isinstance(commits, list) and (lost := unknown(result, commits)):
            print(
                f"{source}: {', '.join(lost)} is no commit of this history, so nobody could check it out",
                file=sys.stderr,
            )
            wrong += 1
        elif not given.check:
            target = (RESULTS / source.name).with_suffix(".json")
            target.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            print(target)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
