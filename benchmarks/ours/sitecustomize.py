"""Makes the benchmark's recipe known to every process plimsoll starts: Python imports this file by itself.

Only where `benchmarks/ours` is on PYTHONPATH, which ours_text.py sees to. It goes when recipes can be named by
file (`plimsoll train file.py:name`): then that is the door.
"""

from plimsoll.recipes import registry

registry.KINDS["given-text"] = ("given_text", "GivenText")
