"""In a notebook: a plan shows itself, training is one bar, and its interrupt reaches the process that trains."""

import io
import json
import os
import re
import signal
import sys
import threading
import types

from plimsoll.api import notebook
from plimsoll.api.notebook import ShownPlan, bar_html, is_here, watched
from plimsoll.report.page.plans import plan_in_notebook
from plimsoll.report.progress import AS_JSON, PROGRESS_VARIABLE, progress
from reading_pages import Seen, text_of
from report_examples import PLANNED


def test_a_plan_shows_its_table_and_its_picture():
    html = ShownPlan(**vars(PLANNED))._repr_html_()
    said = text_of(html)
    assert "stories-small on cpu: 1.5 GiB of 2.0 GiB, predicted" in said
    assert "activations 640.0 MiB" in said
    assert "the fastest of 12 plans that fit" in said
    assert 'aria-label="A bar to scale: predicted peak 1.5 GiB, budget 2.0 GiB."' in html


def test_it_is_the_same_plan():
    shown = ShownPlan(**vars(PLANNED))
    assert shown.to_dict() == PLANNED.to_dict()
    assert str(shown).startswith("plan for stories-small on cpu: 1.5 GiB of 2.0 GiB")


def test_its_style_touches_nothing_else_of_the_notebook():
    style = plan_in_notebook(PLANNED.to_dict()).partition("<style>")[2].partition("</style>")[0]
    outside, rules = "", style
    while rules != outside:  # the innermost braces, again and again
        outside, rules = rules, re.sub(r"\{[^{}]*\}", ";", rules)
    assert [selector.strip() for selector in outside.split(";") if selector.strip()] == [".plimsoll", "@media print"]


def test_what_is_in_a_message_is_no_markup():
    html = bar_html(1, 2, "<b>", ["<script>alert(1)</script>"], ended=True)
    assert [tag for tag, _ in Seen(html).tags] == ["div", "progress", "p", "pre", "details", "summary", "pre"]


def test_a_run_tells_its_steps_and_messages_as_json(monkeypatch):
    monkeypatch.setenv(PROGRESS_VARIABLE, AS_JSON)
    stream = io.StringIO()
    shown = progress(10, stream=stream, clock=lambda: 0.0)
    shown.update(4, loss=1.5, rate=2000.0, rate_unit="tokens", resident_bytes=2**20)
    shown.message("two\nlines")
    shown.close()
    step, message = (json.loads(line)[PROGRESS_VARIABLE] for line in stream.getvalue().splitlines())
    assert (step["step"], step["total"]) == (4, 10)
    assert step["facts"].startswith("loss 1.5000  2,000 tokens/s  resident 1.0 MiB")
    assert message == {"message": "two\nlines"}


TELLS = f"""
import json, sys
print("plain words")
for step in (1, 2):
    print(json.dumps({{"{PROGRESS_VARIABLE}": {{"step": step, "total": 2, "facts": "loss 1"}}}}), file=sys.stderr)
print(json.dumps({{"{PROGRESS_VARIABLE}": {{"message": "measured peak 1 MiB"}}}}))
print(json.dumps([1]))
sys.exit(3)
"""


def run(program, shown):
    reader, writer = os.pipe()
    try:
        return watched([sys.executable, "-u", "-c", program], dict(os.environ), lock=reader, show=shown)
    finally:
        os.close(reader)
        os.close(writer)


def test_one_output_follows_the_run_to_its_end():
    shown = []
    assert run(TELLS, shown.append) == 3
    assert any('value="1" max="2"' in html for html in shown)
    assert 'value="2" max="2"' in shown[-1]
    said = text_of(shown[-1])
    assert "step 2 of 2 loss 1" in said
    assert "all that was said plain words measured peak 1 MiB [1]" in said


WAITS = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print("ready", flush=True)
signal.pause()
"""


def test_an_interrupt_of_the_notebook_is_the_runs():
    def show(html):
        if "ready" in html and threading.current_thread() is threading.main_thread() and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted = []
    assert run(WAITS, show) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_notebook_is_known_by_the_kernel_of_its_shell(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_here()
    shell = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not is_here()  # IPython in a terminal
    shell.kernel = object()
    assert is_here()


def test_the_output_is_one_that_changes(monkeypatch):
    updates = []
    handle = types.SimpleNamespace(update=updates.append)
    fake = types.ModuleType("IPython.display")
    fake.HTML = lambda html: ("html", html)
    fake.display = lambda what, display_id: handle
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    show = notebook.output()
    show("<p>1</p>")
    assert updates == [("html", "<p>1</p>")]
