"""Plans again for a run that went over its budget, then becomes the process that trains: `worker.py` starts it."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

from plimsoll.processes.interruption import release


def plan_again(asked: dict[str, Any]) -> int:
    """Plans with the margin that the run has learned, and becomes the next process that trains."""
    from plimsoll.api.train import TrainOptions, prepare_run
    from plimsoll.errors import PlimsollError
    from plimsoll.processes.handover import become
    from plimsoll.recipes.saved import from_dict
    from plimsoll.runs.folder import RunFolder

    say = (lambda text: None) if asked["quiet"] else (lambda text: print(text, flush=True))
    lock = asked.pop("lock")
    try:
        signal.signal(signal.SIGTERM, _stop)
        release()
        recipe = from_dict(RunFolder(asked["run"]).read("recipe.json"))
        become(prepare_run(recipe, TrainOptions(**asked), say, lock=lock))
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted while planning again: what was saved is whole", flush=True)
        return 130
    raise AssertionError("exec returned")


def _stop(_number: int, _frame: Any) -> NoReturn:
    print("terminated while planning again: what was saved is whole", flush=True)
    raise SystemExit(143)
