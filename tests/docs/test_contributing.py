"""CONTRIBUTING.md says where a change goes: in files that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted({*re.findall(r"`([\w/.]+\.(?:py|toml|json))`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))})
OF_A_RUN = {"ledger.json", "plan.json", "recipe.json"}


@pytest.mark.parametrize("path", NAMED)
def test_every_file_it_names_exists(path):
    places = (place for top in ("src", "tests", "benchmarks", "docs") for place in (ROOT / top).rglob(Path(path).name))
    assert path in OF_A_RUN or (ROOT / path).is_file() or any(str(place).endswith(f"/{path}") for place in places)


def test_it_names_many():
    assert len(NAMED) > 40
