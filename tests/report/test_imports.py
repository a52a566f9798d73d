"""A training process imports report/ for its log, so what it weighs counts towards the budget."""

import os
import subprocess
import sys

from report_examples import SOURCES


def test_importing_every_module_of_report_loads_nothing_heavy():
    code = (
        "import importlib, pkgutil, sys; from plimsoll import report;"
        "names = [module.name for module in pkgutil.walk_packages(report.__path__, 'plimsoll.report.')];"
        "assert 'plimsoll.report.progress' in names and 'plimsoll.report.page.run' in names;"
        "[importlib.import_module(name) for name in names];"
        "heavy = {'jax', 'numpy', 'tqdm', 'tensorboardX', 'wandb', 'matplotlib', 'jinja2'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCES})
    assert done.returncode == 0
