import os
import subprocess
import sys

import pytest

from plimsoll import report
from report_examples import SOURCES


def test_every_name_at_the_door_can_be_used():
    assert {name for name in dir(report) if callable(getattr(report, name))} == set(dir(report))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="plan_tabel"):
        _ = report.plan_tabel


def test_using_every_name_loads_nothing_heavy():
    code = (
        "import sys; from plimsoll import report; [getattr(report, name) for name in dir(report)];"
        "import plimsoll.report.progress;"
        "heavy = {'jax', 'numpy', 'rich', 'tensorboardX', 'wandb', 'matplotlib'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCES})
    assert done.returncode == 0
