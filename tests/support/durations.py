"""CPU seconds of every test and of every shared fixture, their processes included: measured, kept, and asked for.

A pytest plug-in (`tests/conftest.py` registers it): `--record-durations` writes what was measured into
tests/durations.json. CPU seconds, because they are nearly the same whoever else uses the machine. What a fixture of a
module or of the session costs is its own entry, and no part of the test that happened to come first.
"""

import json
import resource
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "durations.json"
LIMIT_OF_A_TEST, LIMIT_OF_ALL = 5.0, 1200.0
"""CPU seconds that a test without the mark `slow` may take, and all of them together."""
LIMIT_OF_QUICK = 0.15
"""CPU seconds up to which a test is one of `make test-quick`, the fixtures that it shares with others included."""
UNNOTICED = 0.01
"""CPU seconds below which a test is not worth a line of the file: it is recorded as one of many."""
COLLECTED = pytest.StashKey[list]()
"""Every test that was collected, those that `-m` leaves out included."""
OWN, WITHOUT = "cpu_seconds", "cpu_seconds_of_fixtures"


def cpu_seconds() -> float:
    """Returns what this process has used since it started, with all of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def read() -> dict:
    """Returns the record: `tests` and `fixtures` by name, `quickest` names, and `total` of the whole run."""
    return json.loads(FILE.read_text())


def fixture_name(definition) -> str:
    """Returns a name that no other fixture has: where it is defined, and what it is called there."""
    return f"{definition.baseid}::{definition.argname}"


def shared_fixtures(item) -> list[str]:
    """Returns the fixtures of a test that are set up once for several tests."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return [fixture_name(one[-1]) for one in definitions if one and one[-1].scope != "function"]


def mark_quick(items) -> None:
    """Adds the mark `quick` to tests that took little; to those that nobody has recorded yet, too."""
    record = read()
    for item in items:
        if item.get_closest_marker("slow") is None:
            fixtures = (record["fixtures"].get(name, 0.0) for name in shared_fixtures(item))
            if record["tests"].get(item.nodeid, 0.0) + sum(fixtures) <= LIMIT_OF_QUICK:
                item.add_marker("quick")


class Recorder:
    """Measures every test in the process that runs it; the process that started them all writes the file."""

    def __init__(self, config) -> None:
        self.config = config
        self.tests: dict[str, float] = {}
        self.fixtures: dict[str, float] = {}
        self.total = 0.0
        self._open: list[float] = []  # of fixtures being set up: what others inside them took

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope == "function":
            return (yield)
        started = cpu_seconds()
        self._open.append(0.0)
        try:
            return (yield)
        finally:
            whole = cpu_seconds() - started
            own = whole - self._open.pop()
            if self._open:
                self._open[-1] += whole
            else:
                self._of_fixtures += whole
            self._set_up.append((fixture_name(fixturedef), own))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self._started, self._of_fixtures, self._set_up = cpu_seconds(), 0.0, []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            own = cpu_seconds() - self._started - self._of_fixtures
            report.user_properties += [(OWN, round(own, 3)), (WITHOUT, self._set_up)]
        return report

    def pytest_runtest_logreport(self, report):
        """Also called in the process that started the others, with their reports."""
        if report.when != "teardown" or hasattr(self.config, "workerinput"):
            return
        properties = dict(report.user_properties)
        self.tests[report.nodeid] = properties[OWN]
        for name, seconds in properties[WITHOUT]:
            self.fixtures[name] = self.fixtures.get(name, 0.0) + seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        self.total += node.workeroutput[OWN]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if hasattr(self.config, "workerinput"):
            self.config.workeroutput[OWN] = cpu_seconds()
        else:
            self.write(self.total or cpu_seconds())

    def write(self, total: float) -> None:
        """Writes the record anew; where paths were named, only what was run changes in it."""
        tests = {name: round(seconds, 2) for name, seconds in self.tests.items()}
        fixtures = {name: round(seconds, 2) for name, seconds in self.fixtures.items()}
        note = {}
        if self.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
            before = read()
            note = {"note": before["note"]} if "note" in before else {}
            before["tests"] |= dict.fromkeys(before["quickest"], 0.0)
            of_before = sum(before["tests"].get(name, 0.0) for name in tests)
            of_before += sum(before["fixtures"].get(name, 0.0) for name in fixtures)
            total = before["total"] - of_before + sum(tests.values()) + sum(fixtures.values())
            tests, fixtures = before["tests"] | tests, before["fixtures"] | fixtures
        record = note | {
            "total": round(total, 1),
            "fixtures": {name: seconds for name, seconds in sorted(fixtures.items()) if seconds >= UNNOTICED},
            "tests": {name: seconds for name, seconds in sorted(tests.items()) if seconds >= UNNOTICED},
            "quickest": [name for name, seconds in sorted(tests.items()) if seconds < UNNOTICED],
        }
        FILE.write_text(json.dumps(record, indent=0, ensure_ascii=False) + "\n")
