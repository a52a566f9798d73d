"""Mutations of one line, drawn with a seed, and the nearest tests that notice them.

    python benchmarks/mutate.py --seed 1 --count 30

Each mutation changes one expression of one line: a comparison, a plus or minus, `min` or `max`, a whole number by one,
`and` or `or`, a `not` that is dropped, a call that is removed, two branches that are swapped. As many are drawn from
each of five groups: planner, levers, training, data, and metrics (what evaluates and ranks). Each is applied to a copy
of the tree, where the nearest test files run one after the other until one fails: the file that mirrors the module,
then those that import it, then a few of the group. A test that fails without the mutation too does not count.

Results are kept in a JSONL file as they come: the same command continues. Prints a table; the exit code is 1 where more
than --survivors survived. A survivor may change nothing that matters (a log's interval): that is for a reader to say.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/plimsoll"
GROUPS = {
    "planner": ("planner/**/*.py",),
    "levers": ("levers/*.py", "optimizers/*.py"),
    "training": ("training/*.py",),
    "data": ("data/**/*.py",),
    "metrics": (
        "recipes/recommend/ranking.py",
        "recipes/recommend/rank.py",
        "recipes/recommend/baselines.py",
        "recipes/puzzles/act.py",
        "recipes/puzzles/arc_votes.py",
        "recipes/puzzles/vote_counts.py",
        "recipes/control/closed_loop.py",
        "recipes/*/evaluation.py",
        "inference/evaluate.py",
        "report/metrics.py",
    ),
}
FALLBACK = {
    "planner": ("tests/planner/test_search.py", "tests/planner/test_estimate.py"),
    "levers": ("tests/contracts/test_levers.py",),
    "training": ("tests/training/test_loop.py", "tests/training/test_step.py", "tests/training/test_overruns.py"),
    "data": ("tests/contracts/test_sources.py",),
    "metrics": ("tests/training/test_loop.py", "tests/contracts/test_tasks.py"),
}
NOTHING_TO_RUN = 5
"""pytest's exit code where no test of a file is chosen."""
MOST_FILES = 6
"""Test files of one mutation, those of its group included."""

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
OTHERS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutation:
    """A replacement of `old` by `new` from `column` (in bytes) of a line on."""

    file: str
    line: int
    column: int
    kind: str
    old: str
    new: str

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        old, start = self.old.encode(), self.column
        assert line[start : start + len(old)] == old, self
        lines[self.line - 1] = (line[:start] + self.new.encode() + line[start + len(old) :]).decode()
        return "".join(lines)


def mutations(file: str, source: str) -> list[Mutation]:
    """Every mutation of a file, in the order of its lines. Some few would not parse: `drawn` leaves them out."""
    lines = [line.encode() for line in source.splitlines()]
    found = {}
    for node in _code(ast.parse(source)):
        for kind, line, column, old, new in _changes(node, lines):
            found[line, column, kind] = Mutation(file, line, column, kind, old, new)
    return [found[place] for place in sorted(found)]


def _parses(mutation: Mutation, root: Path) -> bool:
    try:
        ast.parse(mutation.applied((root / PACKAGE / mutation.file).read_text("utf-8")))
    except SyntaxError:
        return False
    return True


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """All that is computed: no annotations, no messages, no decorators, nothing for type checkers alone."""
    yield node
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(node, ast.Subscript) and name == "slice" and ast.unparse(node.value).endswith("Literal"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


Change = tuple[str, int, int, str, str]
"""Kind, line, column, old text and new text."""


def _changes(node: ast.AST, lines: Sequence[bytes]) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield from _operator("comparison", node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])], lines)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        signs = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        )
        if not text:
            yield from _operator("sign", node.left, node.right, *signs, lines)
    elif isinstance(node, ast.BoolOp):
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:  # of three, one word alone would group them anew
            yield from _operator("and/or", node.values[0], node.values[1], *words, lines)
    elif isinstance(node, ast.Call) and _last_name(node.func) in OTHERS:
        name = _last_name(node.func)
        assert node.func.end_col_offset is not None
        yield "min/max", node.func.end_lineno or 0, node.func.end_col_offset - len(name), name, OTHERS[name]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        old = _text(node, lines)
        if old is not None and old.isdigit():
            yield "constant", node.lineno, node.col_offset, old, str(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not dropped", node.lineno, node.col_offset, "not ", ""
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        old = _text(node, lines)
        if old is not None:
            yield "call removed", node.lineno, node.col_offset, old, "pass"
    elif isinstance(node, ast.IfExp):
        body, test, other = (_text(part, lines) for part in (node.body, node.test, node.orelse))
        old = _text(node, lines)
        if old is not None and None not in (body, test, other):
            yield "branches swapped", node.lineno, node.col_offset, old, f"{other} if {test} else {body}"
    elif isinstance(node, ast.If) and node.orelse:
        test = _text(node.test, lines)
        if test is not None:
            yield "branches swapped", node.test.lineno, node.test.col_offset, test, f"not ({test})"


def _operator(
    kind: str, left: ast.expr, right: ast.expr, old: str, new: str, lines: Sequence[bytes]
) -> Iterator[Change]:
    """Between two operands of one line."""
    if left.end_lineno == right.lineno and left.end_col_offset is not None:
        between = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
        if between.count(old.encode()) == 1:
            yield kind, right.lineno, left.end_col_offset + between.index(old.encode()), old, new


def _text(node: ast.expr | ast.stmt, lines: Sequence[bytes]) -> str | None:
    """None where it is longer than a line."""
    if node.lineno != node.end_lineno:
        return None
    return lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()


def _last_name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def drawn(root: Path, groups: Sequence[str], seed: int, count: int) -> list[tuple[str, Mutation]]:
    """Returns as many of each group, in turn; of a group, each place is as likely as any other."""
    dice = random.Random(seed)
    piles = []
    for group in groups:
        paths = sorted({path for pattern in GROUPS[group] for path in (root / PACKAGE).glob(pattern)})
        places = [
            (group, one)
            for path in paths
            for one in mutations(str(path.relative_to(root / PACKAGE)), path.read_text("utf-8"))
        ]
        dice.shuffle(places)  # all of them: the first ten of a larger draw are those of a draw of ten
        parsing = ((group, one) for group, one in places if _parses(one, root))
        piles.append(itertools.islice(parsing, count))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*piles))
    return [one for one in in_turn if one is not None][:count]


def tests_of(root: Path, group: str, file: str) -> list[str]:
    """The nearest test files, the nearest first: those with the module's name, those that import it (of its room
    first), those with the name of a module that imports it; then those of the group."""
    path, tests = Path(file), sorted((root / "tests").rglob("test_*.py"))
    named = _importing(tests, path)
    named.sort(key=lambda test: (path.parts[0] not in test.relative_to(root).parts, "cli" in test.parts))
    users = {f"test_{user.name}" for user in _importing((root / PACKAGE).rglob("*.py"), path)}
    nearest = [
        *(test for test in tests if test.name == f"test_{path.name}"),
        *named,
        *(test for test in tests if test.name in users),
    ]
    fallback = [root / name for name in FALLBACK[group] if (root / name).is_file()]
    near = list(dict.fromkeys(nearest))[: MOST_FILES - len(fallback)]
    return [str(test.relative_to(root)) for test in dict.fromkeys([*near, *fallback])]


def _importing(paths: Iterable[Path], module: Path) -> list[Path]:
    """Returns those of the files that import a module of the package, which is named by its path in it."""
    *rooms, name = module.parent.parts if module.stem == "__init__" else module.with_suffix("").parts
    package = ".".join(("plimsoll", *rooms))
    forms = (rf"from {package}\.{name} import", rf"import {package}\.{name}\b", rf"from {package} import .*\b{name}\b")
    pattern = re.compile("|".join(forms))
    return sorted(path for path in paths if pattern.search(path.read_text("utf-8")))


class Copy:
    """A copy of the tree, with a cache of its own, in which tests run against a mutated source."""

    def __init__(self, folder: Path, *, marks: str) -> None:
        """`marks` chooses among the tests of a file, as pytest's -m does."""
        self.root, self.marks = folder / "tree", marks
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, names):
            source, target = ROOT / name, self.root / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self.environment = os.environ | {
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PLIMSOLL_CACHE": str(folder / "cache"),
            "PLIMSOLL_CALIBRATION": "off",
        }
        self.folder = folder
        self.broken: list[str] = []
        """Tests that fail here without a mutation: left out from then on."""

    def failing(self, tests: Sequence[str], seconds: float) -> str | None:
        """The first test that fails, or None; TimeoutError where they take longer than `seconds`."""
        program = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-x",
            "-q",
            "-rfE",
            "--hypothesis-seed=0",
            "-m",
            self.marks,
        ]
        keeping = ["-p", "no:cacheprovider", "--basetemp", str(self.folder / "temporary")]
        left_out = [f"--deselect={test}" for test in self.broken]
        with subprocess.Popen(
            [*program, *keeping, *left_out, *tests],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise TimeoutError from None
        if process.returncode in (0, NOTHING_TO_RUN):
            return None
        summary = [line.split(" - ")[0] for line in printed.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return summary[0].split(" ", 1)[1] if summary else f"{' '.join(tests)} (exit code {process.returncode})"


def outcome(copy: Copy, mutation: Mutation, tests: Iterable[str], seconds: float) -> dict[str, str]:
    """Returns what became of one mutation: `killed`, `survived`, or `too slow` where no test failed within its time."""
    slow = []
    for test in tests:
        try:
            if (killer := _killer(copy, mutation, test, seconds)) is not None:
                return {"outcome": "killed", "by": killer}
        except TimeoutError:
            slow.append(test)
    return {"outcome": "too slow" if slow else "survived", "by": ", ".join(slow)}


def _killer(copy: Copy, mutation: Mutation, test: str, seconds: float) -> str | None:
    """The first test of a file that fails with the mutation, and passes without it."""
    path = copy.root / PACKAGE / mutation.file
    source = path.read_text("utf-8")
    while True:
        path.write_text(mutation.applied(source), "utf-8")
        try:
            failed = copy.failing([test], seconds)
        finally:
            path.write_text(source, "utf-8")
        if failed is None or failed in copy.broken:
            return None
        whole_file = "::" not in failed  # it cannot even be imported, which without the mutation it can
        if whole_file or copy.failing([failed], seconds) is None:
            return failed
        copy.broken.append(failed)


def table(rows: Sequence[dict[str, str]]) -> str:
    lines = ["| | where | change | what | by |", "|--|--|--|--|--|"]
    for number, row in enumerate(rows, 1):
        change = f"{row['old']} -> {row['new'] or 'nothing'}".replace("|", "\\|")
        lines.append(
            f"| {number} | {row['file']}:{row['line']} | {row['kind']}: `{change}` | {row['outcome']} | {row['by']} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=150, help="for each test file")
    parser.add_argument("--slow", action="store_true", help="with the tests that `make test` leaves out")
    parser.add_argument("--survivors", type=int, default=3, help="more of them, and the exit code is 1")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/mutations.jsonl")
    parser.add_argument("--list", action="store_true", help="print what would be mutated, and by which tests")
    options = parser.parse_args()
    chosen = drawn(ROOT, options.groups, options.seed, options.count)
    if options.list:
        for group, mutation in chosen:
            print(group, mutation, *tests_of(ROOT, group, mutation.file))
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    rows = []
    with tempfile.TemporaryDirectory(prefix="plimsoll-mutate-") as folder:
        copy = Copy(Path(folder), marks="" if options.slow else "not slow")
        for group, mutation in chosen:
            key = asdict(mutation)
            row = next((one for one in kept if key.items() <= one.items()), None)
            if row is None:
                start = time.monotonic()
                row = {"group": group, **key}
                row |= outcome(copy, mutation, tests_of(copy.root, group, mutation.file), options.seconds)
                row["seconds"] = round(time.monotonic() - start, 1)
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            rows.append(row)
            print(f"{len(rows)}/{len(chosen)} {row['file']}:{row['line']} {row['outcome']} {row['by']}", flush=True)
    print(table(rows))
    survived = sum(row["outcome"] != "killed" for row in rows)
    print(f"\n{len(rows) - survived} of {len(rows)} killed")
    return 1 if survived > options.survivors else 0


if __name__ == "__main__":
    sys.exit(main())
