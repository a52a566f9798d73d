"""How far off beliefs of a search are (planner/belief.py): each source's error, beside the constant that stands for it.

    python benchmarks/beliefs.py [--pairs code:cpu code:h100 ...] [--count 10] [--seed 1] [--timed]

For each recipe and chip, combinations of the levers are drawn. Each is traced and compiled at two micro-batches; so is
one that is faster in one lever, and one that stores state or weights otherwise. With --timed they are timed, too, where
the chip is this machine's CPU. Errors are shares; of those for each doubling of the micro-batch, shares a doubling.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from training_process import SOURCE

sys.path.insert(0, str(SOURCE))

from plimsoll.api import plan as planning
from plimsoll.planner import belief
from plimsoll.planner.belief import Beliefs
from plimsoll.planner.estimate import interpolated, sample
from plimsoll.planner.prices import Prices
from plimsoll.planner.space import Combination, combinations
from plimsoll.planner.types import Analysis, Compiler, DoesNotCompile, Problem
from plimsoll.recipes.registry import preset
from plimsoll.types import Storage

PAIRS = ("code:cpu", "sudoku-4x4:cpu", "longcontext-nano:cpu", "recommend-debug:cpu", "code:h100", "stories:h100",
         "sudoku-mlp:h100", "longcontext-nano:rtx4090", "code:tpu-v5e-8")  # fmt: skip
CONSTANTS = {
    "UNSEEN": "compiled over traced bytes",
    "ALIKE": "the same, over the median of the model's",
    "DOUBLED": "the same, over that of another micro-batch, a doubling",
    "STRETCHED": "traced bytes over a line through others, a doubling",
    "ORDERED": "compiled bytes over those with a lever's earlier value, less 1",
    "STORED": "compiled bytes over those with other storage",
    "COMPILED_ALIKE": "seconds by rates, compiled over traced, over the median of the model's",
    "COMPILED_DOUBLED": "the same, over that of another micro-batch, a doubling",
    "UNTIMED": "seconds by the clock over those by the rates",
    "TIMED_ALIKE": "the same, over the median of the model's",
    "TIMED_DOUBLED": "the same, over that of another micro-batch, a doubling",
    "TIMED_STORED": "the same, over that with other storage",
}
Errors = dict[str, list[float]]


class Seen(Exception):
    """Ends a plan once its candidates have been looked at."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", nargs="*", default=PAIRS)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timed", action="store_true")
    options = parser.parse_args()
    together: Errors = defaultdict(list)
    for pair in options.pairs:
        name, _, chip = pair.partition(":")
        timed = options.timed and chip == "cpu"
        found = errors(name, chip, options.count, random.Random(options.seed), timed=timed)
        print(f"{pair}\n{shown(found)}\n", flush=True)
        for constant, values in found.items():
            together[constant] += values
    print(f"all\n{shown(together)}")
    out = Path("bench-out")
    out.mkdir(exist_ok=True)
    (out / "beliefs.json").write_text(json.dumps(together))
    return 0


def shown(found: Errors) -> str:
    lines = []
    for constant, words in CONSTANTS.items():
        values = sorted(found.get(constant, ()))
        if values:
            ends = values[0], statistics.median(values), values[math.ceil(0.95 * len(values)) - 1], values[-1]
            figures = "  ".join(f"{value:6.3f}" for value in ends)
            lines.append(f"  {constant:16} {getattr(belief, constant)!s:12} {figures}  ({len(values)})  {words}")
    return "\n".join([f"  {'constant':16} {'is':12} {'least':>6}  {'median':>6}  {'95 %':>6}  {'most':>6}", *lines])


def errors(name: str, chip: str, count: int, dice: random.Random, *, timed: bool) -> Errors:
    """Returns the errors seen for a recipe on a chip, by constant."""
    found: Errors = defaultdict(list)

    def look(problem: Problem, compiler: Compiler, *_: Any, **__: Any) -> None:
        found.update(Drawn(problem, compiler, dice, timed=timed).errors(count))
        raise Seen

    search, planning.search = planning.search, look
    memory = "20GiB" if chip == "cpu" else None
    try:
        with suppress(Seen):
            planning.plan(preset(name), name=name, chip=chip, memory=memory, measure=timed)
    finally:
        planning.search = search
    return found


class Drawn:
    """Combinations of one problem, with what the compiler says of them."""

    def __init__(self, problem: Problem, compiler: Compiler, dice: random.Random, *, timed: bool) -> None:
        self.compiler, self.dice, self.timed = compiler, dice, timed
        static_of = cache(compiler.static)
        static_of(1, Storage())
        rates = compiler.rates()
        self.combinations = combinations(problem, rates, static_of)
        self.beliefs = Beliefs(self.combinations)
        self.prices = Prices(problem, rates, static_of, self.beliefs)

    def errors(self, count: int) -> Errors:
        drawn = self.dice.sample(self.combinations, min(count, len(self.combinations)))
        places = dict.fromkeys(place for each in drawn for place in self._beside(each))
        with ThreadPoolExecutor(self.compiler.workers) as pool:
            answers = dict(zip(places, pool.map(self._compiled, places), strict=True))
        for (combination, micro), analysis in answers.items():
            if analysis is not None:
                self.beliefs.known[combination].compiled[micro] = analysis
        self.beliefs.learned()
        found: Errors = defaultdict(list)
        for constant, error in [*self._of_bytes(), *self._of_seconds("COMPILED", self._by_rates())]:
            found[constant].append(error)
        if self.timed:
            for constant, error in self._of_seconds("TIMED", self._by_clock()):
                found[constant].append(error)
        return found

    def _beside(self, combination: Combination) -> Iterator[tuple[Combination, int]]:
        """Yields the combination at two micro-batches, and at one of them two that are like it."""
        micros = self.dice.sample(list(combination.plans), min(2, len(combination.plans)))
        yield from ((combination, micro) for micro in micros)
        stored = [each for each in self.combinations if each.family == combination.family and each is not combination]
        for like in (combination.parents, stored):
            also = [each for each in like if micros[0] in each.plans]
            if also:
                yield self.dice.choice(also), micros[0]

    def _compiled(self, place: tuple[Combination, int]) -> Analysis | None:
        """Returns what the compiler says, after the traces that a search would have asked for."""
        combination, micro = place
        known = self.beliefs.known[combination]
        try:
            for each in [*sample(sorted(combination.plans)), micro]:
                if each not in known.traced:
                    known.traced[each] = self.compiler.trace(combination.steps[each])
            return self.compiler.analyse(combination.steps[micro])
        except DoesNotCompile as problem:
            print(f"  {problem}"[:200])
            return None

    def _of_bytes(self) -> Iterator[tuple[str, float]]:
        ratios = {}
        for combination, known in self.beliefs.known.items():
            line = {micro: known.traced[micro] for micro in sample(sorted(combination.plans)) if micro in known.traced}
            for micro, analysis in known.compiled.items():
                expected = interpolated(micro, line).beyond_state_bytes
                traced = known.traced[micro].beyond_state_bytes
                if micro > max(line) or micro < min(line):
                    doublings = min(abs(math.log2(micro / each)) for each in line)
                    yield "STRETCHED", abs(traced / expected - 1) / doublings
                ratios[combination, micro] = analysis.beyond_state_bytes / max(1, expected)
            for parent in combination.parents:
                for micro in known.compiled.keys() & self.beliefs.known[parent].compiled.keys():
                    before = self.beliefs.known[parent].compiled[micro].beyond_state_bytes
                    yield "ORDERED", known.compiled[micro].beyond_state_bytes / before - 1
        yield from (("UNSEEN", ratio) for ratio in ratios.values())
        yield from self._relations(ratios, "ALIKE", "DOUBLED", "STORED")

    def _by_rates(self) -> dict[tuple[Combination, int], float]:
        return {
            (each, micro): self.prices.by_rates(each, micro, analysis)
            for each, known in self.beliefs.known.items()
            for micro, analysis in known.compiled.items()
        }

    def _by_clock(self) -> dict[tuple[Combination, int], float]:
        """Returns the seconds of each, timed beside the first one, as if that always took the same."""
        places, seconds = list(self._by_rates()), {}
        first: float | None = None
        for place in places:
            both = [each[0].steps[each[1]] for each in (places[0], place)]
            one, other = self.compiler.measure(both if place != places[0] else both * 2)
            first = first or one
            seconds[place] = other * first / one
        return seconds

    def _of_seconds(self, kind: str, seconds: dict[tuple[Combination, int], float]) -> Iterator[tuple[str, float]]:
        ratios = {}
        for (combination, micro), took in seconds.items():
            traced = self.prices._by_trace(combination, micro)
            ratios[combination, micro] = took / traced
            if kind == "TIMED":
                yield "UNTIMED", took / traced
        yield from self._relations(ratios, f"{kind}_ALIKE", f"{kind}_DOUBLED", f"{kind}_STORED")

    def _relations(
        self, ratios: dict[tuple[Combination, int], float], alike: str, doubled: str, stored: str
    ) -> Iterator[tuple[str, float]]:
        groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        for (combination, _), ratio in ratios.items():
            groups[combination.apart].append(ratio)
        for (combination, micro), ratio in ratios.items():
            yield alike, abs(ratio / statistics.median(groups[combination.apart]) - 1)
            for (other, at), of_other in ratios.items():
                if other is combination and at < micro:
                    yield doubled, abs(ratio / of_other - 1) / math.log2(micro / at)
                elif at == micro and other.family == combination.family and id(other) < id(combination):
                    yield stored, abs(ratio / of_other - 1)


if __name__ == "__main__":
    sys.exit(main())
