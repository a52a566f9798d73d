"""A notebook is known by its kernel."""

import sys
import types

from plimsoll.api.notebook import is_here


def test_a_notebook_is_known_by_the_kernel_of_its_shell(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_here()
    shell = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not is_here()  # IPython in a terminal
    shell.kernel = object()
    assert is_here()
