"""A plan shows itself as its table, and a notebook is known by its kernel."""

import sys
import types

from plimsoll.api.notebook import ShownPlan, is_here
from report_examples import PLANNED


def test_it_is_the_same_plan():
    shown = ShownPlan(**vars(PLANNED))
    assert shown.to_dict() == PLANNED.to_dict()
    assert str(shown).startswith("plan for stories-small on cpu: 1.5 GiB of 2.0 GiB")


def test_a_notebook_is_known_by_the_kernel_of_its_shell(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_here()
    shell = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not is_here()  # IPython in a terminal
    shell.kernel = object()
    assert is_here()
