"""Makes the benchmark's recipe known to every process plimsoll starts: Python imports this file by itself.

Only where `benchmarks/ours` is on PYTHONPATH, which ours_text.py sees to. A package would name it in its entry points
(docs/your-own.md); this folder is none.
"""

from plimsoll.recipes import registry

registry.KINDS["given-text"] = "given_text:GivenText"
