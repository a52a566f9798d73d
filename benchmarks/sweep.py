"""The chosen plan compared with an exhaustive sweep: how far from the fastest plan that fits is the planner's choice?

    python benchmarks/sweep.py --data FOLDER [--spaces code control]

Every plan of a space is compiled and timed. Then for each budget the search chooses by itself, from the same compiled
steps and with timings of its own, and its choice is timed in turn (A B C A B C) with the fastest of the sweep that
fit: the least of fifty times from different minutes is as much luck as speed. Neighbouring budgets are compared by the
times of the sweep. Goal: every choice at most 10 % slower, those of four spaces of six at most 5 %.

The folder has what `benchmarks/prediction.py --recipe all` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import ROOT, conditions, write
from training_process import MIB

from plimsoll.api.keywords import read_request
from plimsoll.api.messages import quiet
from plimsoll.api.planning.find import compilers, problem_of
from plimsoll.api.planning.place import place_of
from plimsoll.api.planning.question import Question
from plimsoll.planner.child import Answering
from plimsoll.planner.evidence import Evidence, Inquiry
from plimsoll.planner.objectives import Fastest
from plimsoll.planner.search import Desk, ask, begin, find_fastest
from plimsoll.planner.space import Candidate, Combination
from plimsoll.planner.types import Compiler, DoesNotCompile, Problem, Request

RIVALS = 4
"""Of the plans that fit, so many of the fastest are timed again beside the chosen one."""
ROUNDS = 3
BUDGETS = (0.1, 0.35, 0.7, 1.05)
"""Shares of the way from the smallest need of the sweep to that of its fastest plan."""
NEIGHBOURS = 24
"""Budgets on that way that are compared with the next."""
STATED = {"prefetch": 2, "async_save": True, "optimizer_bits": 32, "layerwise": 0}
"""Levers that are pinned in every space: they change no step time, or a space would have hundreds of plans."""
TEXT = {"vocab_size": 4096, "shuffle_buffer_size": 1000}
SPACES: dict[str, tuple[str, dict[str, Any]]] = {
    "short": ("stories", TEXT | {"width": 128, "layers": 4, "heads": 4, "seq_len": 128, "batch_size": 16}),
    "long": ("stories", TEXT | {"width": 192, "layers": 3, "heads": 6, "seq_len": 512, "batch_size": 8}),
    "code": ("code", {"batch_size": 16, "gradient_accumulation_steps": 1}),
    "control": ("control", {"width": 128, "layers": 4, "batch_size": 256}),
    "longcontext": ("longcontext", {"width": 128, "layers": 4, "seq_len": 1024, "batch_size": 4}),
    "puzzles": ("sudoku-mlp", {"width": 64, "layers": 1, "batch_size": 64}),
}
"""Names of the spaces, with preset and fields."""
MADE = {"control": "windows.h5", "sudoku-mlp": "sets", "longcontext": "packed"}


@dataclass
class Swept:
    """A space of which every plan was compiled and timed."""

    question: Question
    problem: Problem
    evidence: Evidence

    def within(self, budget: int) -> Fastest:
        """Returns what the sweep knows under a budget."""
        return Fastest(dataclasses.replace(self.evidence, problem=self.under(budget), cache={}))

    def under(self, budget: int) -> Problem:
        return dataclasses.replace(self.problem, budget_bytes=budget)

    def fastest(self, budget: int) -> list[Candidate]:
        """Returns the timed candidates that fit, the fastest first."""
        known = self.within(budget)
        fitting = [each for each in self.evidence.timed if known.chance(each) == 1]
        return sorted(fitting, key=self.evidence.timed.__getitem__)

    def candidate(self, levers: Mapping[str, Any]) -> Candidate:
        """Returns the candidate of a plan's levers."""
        for each in self.evidence.timed:
            own = each.plan.levers
            if all(own[name] == levers[name] for name in own if name not in ("prefetch", "async_save")):
                return each
        raise LookupError(f"no plan of the sweep has {dict(levers)}")


def question_of(space: str, data: Path, text: str) -> Question:
    preset, fields = SPACES[space]
    if preset == "stories":
        fields = fields | {"dataset_id": text}
    elif preset in MADE:
        fields = fields | {"data": str(data / MADE[preset])}
    if preset == "sudoku-mlp":
        about, *_ = sorted(data.glob("sets/*/train/dataset.json"))
        shape = json.loads(about.read_text())
        fields |= {"data": str(about.parents[1]), "seq_len": shape["seq_len"], "vocab_size": shape["vocab_size"]}
    request = read_request(preset, fields | {"steps": 2000}, verb="plan")
    return Question(recipe=request.recipe, name=space, memory="8GiB", pins=STATED, measure=True)


@contextmanager
def compiler_of(question: Question, cache: str) -> Iterator[tuple[Problem, Any]]:
    """Gives the problem and who answers, with answers kept in `cache`; what was timed is timed anew."""
    os.environ["PLIMSOLL_CACHE"] = cache
    for timed in Path(cache, "answers").glob("measure-*"):
        timed.unlink()
    place = place_of(question)
    with compilers(question, place, None, quiet) as compiler:
        yield dataclasses.replace(problem_of(question, place, None), prepares="trace"), compiler


def sweep(question: Question, cache: str) -> Swept:
    """Compiles and times every plan; what cannot be is left out."""
    with compiler_of(question, cache) as (problem, compiler):
        desk = Desk(compiler)
        evidence = begin(problem, desk)
        for combination in evidence.space:
            sweep_combination(combination, evidence, desk)
    return Swept(question, problem, evidence)


def sweep_combination(combination: Combination, evidence: Evidence, desk: Desk) -> None:
    first, *_ = combination.candidates
    trace = Inquiry("trace", first)
    try:
        evidence.learn(trace, ask(trace, evidence, desk))
        for candidate in combination.candidates:
            inquiry = Inquiry("compile", candidate)
            evidence.learn(inquiry, ask(inquiry, evidence, desk))
            (seconds,) = desk.compiler.measure([candidate.step])
            evidence.learn(Inquiry("time", candidate), seconds)
    except DoesNotCompile as failure:
        print(f"  left out: {failure}", flush=True)


def budgets(swept: Swept, shares: Sequence[float]) -> list[int]:
    """Returns budgets in whole MiB on the way from the smallest need to that of the fastest plan."""
    needs = {each: swept.evidence.needed(each).likely for each in swept.evidence.timed}
    least = min(needs.values())
    fastest, *_ = swept.fastest(2**50)
    most = max(needs[fastest], least)
    return sorted({-(-round(least + share * (most - least)) // MIB) * MIB for share in shares})


def compare(swept: Swept, budget: int, cache: str) -> dict[str, Any]:
    """Returns the chosen plan of a budget beside the fastest that fit."""
    with compiler_of(swept.question, cache) as (_, compiler):
        planned = find_fastest(swept.under(budget), Desk(compiler))
        chosen = swept.candidate(planned.plan.levers)
        fastest = swept.fastest(budget)
        rivals = [chosen, *(each for each in fastest[:RIVALS] if each != chosen)]
        seconds = timed_in_turn(rivals, compiler)
    best = min(range(len(rivals)), key=seconds.__getitem__)
    return {
        "budget": budget,
        "fitting": len(fastest),
        "chosen": chosen.words,
        "chosen_seconds": seconds[0],
        "fastest": rivals[best].words,
        "fastest_seconds": seconds[best],
        "ratio": seconds[0] / seconds[best],
        "ratio_by_sweep": swept.evidence.timed[chosen] / swept.evidence.timed[fastest[0]],
    }


def told(row: Mapping[str, Any]) -> str:
    """Returns a row of the table."""
    slower = f"{row['ratio'] - 1:+.1%} ({row['ratio_by_sweep'] - 1:+.1%} by the sweep)"
    fitting = f"{row['budget'] // MIB:5} MiB, {row['fitting']:3} fit"
    return f"  {fitting}: {slower}; chosen {row['chosen']}, fastest {row['fastest']}"


def timed_in_turn(candidates: Sequence[Candidate], compiler: Compiler) -> list[float]:
    """Returns the median seconds of each. An answer is kept for its question, so every round has another order."""
    rounds = []
    for number in range(ROUNDS):
        turned = [*candidates[number:], *candidates[:number]]
        seconds = compiler.measure([each.step for each in turned])
        by_candidate = dict(zip(turned, seconds, strict=True))
        rounds.append([by_candidate[each] for each in candidates])
    return [statistics.median(of_one) for of_one in zip(*rounds, strict=True)]


def neighbours(swept: Swept, cache: str) -> float:
    """Returns by which share a choice was slower than that of the budget before it, at most."""
    worst = 0.0
    before = None
    shares = [number / NEIGHBOURS for number in range(1, NEIGHBOURS + 1)]
    for budget in budgets(swept, shares):
        with compiler_of(swept.question, cache) as (_, compiler):
            planned = find_fastest(swept.under(budget), Desk(Replayed(swept, compiler)))
        seconds = swept.evidence.timed[swept.candidate(planned.plan.levers)]
        if before is not None:
            worst = max(worst, seconds / before - 1)
        before = seconds
    return worst


class Replayed(Answering):
    """A compiler whose timings are those of the sweep."""

    workers = 1
    compiles = 0
    doing = "compiling"

    def __init__(self, swept: Swept, compiler: Answering) -> None:
        self.swept = swept
        self.compiler = compiler

    def answer(self, request: Request) -> Any:
        return self.compiler.answer(request)

    def measure(self, plans: Sequence[Any]) -> list[float]:
        return [self.swept.evidence.timed[self.swept.candidate(plan.levers)] for plan in plans]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(os.environ.get("PLIMSOLL_SHARED", "../shared"))
    parser.add_argument("--text", default=str(shared / "data/text/tinystories_train.txt"))
    parser.add_argument("--data", default="bench-out/data", help="folder with windows.h5, sets and packed")
    parser.add_argument("--spaces", nargs="*", default=list(SPACES), choices=SPACES)
    parser.add_argument("--no-neighbours", action="store_true", help="leave neighbouring budgets out")
    options = parser.parse_args()

    rows = []
    steps: dict[str, float] = {}
    traced: dict[str, list[float]] = {}
    for space in options.spaces:
        question = question_of(space, Path(options.data), options.text)
        with tempfile.TemporaryDirectory() as cache:
            swept = sweep(question, cache)
            times = sorted(swept.evidence.timed.values())
            print(f"{space}: {len(times)} plans, {times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f} ms a step")
            traced[space] = sorted(1 / ratio for ratio in swept.evidence.byte_ratios().values())
            print(f"  traced over compiled bytes {traced[space][0]:.2f} to {traced[space][-1]:.2f}", flush=True)
            for budget in budgets(swept, BUDGETS):
                row = compare(swept, budget, cache)
                rows.append({"space": space} | row)
                print(told(row), flush=True)
            if not options.no_neighbours:
                steps[space] = neighbours(swept, cache)
                print(f"  a larger budget's choice is slower by {steps[space]:.1%} at most", flush=True)
    result = {"conditions": conditions(options), "rows": rows, "neighbours": steps, "traced": traced}
    write(ROOT / "bench-out/sweep.json", result)

    worst = [max(row["ratio"] for row in rows if row["space"] == space) - 1 for space in options.spaces]
    shares = ", ".join(f"{share:.1%}" for share in sorted(worst))
    print(f"slower than the fastest that fits, worst of each space: {shares}")
    return 0 if max(worst) <= 0.1 and sum(each <= 0.05 for each in worst) >= 4 else 1


if __name__ == "__main__":
    sys.exit(main())
