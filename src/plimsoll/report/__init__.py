"""What people see of a plan and a run: tables, progress, summaries, metrics, trackers, pictures.

Names are loaded when they are first used, so that a run pays in memory for what it shows and no more. The
bar is `plimsoll.report.progress.progress`: here its name would be the function's or the module's, by the
order of imports.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.report.compared import compared_picture as compared_picture
    from plimsoll.report.compared import compared_table as compared_table
    from plimsoll.report.compared import settings_table as settings_table
    from plimsoll.report.ladder import ladder_picture as ladder_picture
    from plimsoll.report.ladder import ladder_table as ladder_table
    from plimsoll.report.metrics import LogFile as LogFile
    from plimsoll.report.metrics import MetricsLog as MetricsLog
    from plimsoll.report.metrics import read_rows as read_rows
    from plimsoll.report.picture import plan_picture as plan_picture
    from plimsoll.report.picture import require_picture as require_picture
    from plimsoll.report.summary import Epoch as Epoch
    from plimsoll.report.summary import Outcome as Outcome
    from plimsoll.report.summary import epoch_summary as epoch_summary
    from plimsoll.report.summary import final_summary as final_summary
    from plimsoll.report.tables import buffers_table as buffers_table
    from plimsoll.report.tables import ledger_table as ledger_table
    from plimsoll.report.tables import overrun_words as overrun_words
    from plimsoll.report.tables import plan_table as plan_table
    from plimsoll.report.tables import runs_table as runs_table
    from plimsoll.report.trackers import open_tracker as open_tracker
    from plimsoll.report.trackers import require_tracker as require_tracker

_MODULES = {
    "compared_picture": "compared",
    "compared_table": "compared",
    "LogFile": "metrics",
    "MetricsLog": "metrics",
    "read_rows": "metrics",
    "ladder_picture": "ladder",
    "ladder_table": "ladder",
    "plan_picture": "picture",
    "require_picture": "picture",
    "settings_table": "compared",
    "Epoch": "summary",
    "Outcome": "summary",
    "epoch_summary": "summary",
    "final_summary": "summary",
    "buffers_table": "tables",
    "ledger_table": "tables",
    "overrun_words": "tables",
    "plan_table": "tables",
    "runs_table": "tables",
    "open_tracker": "trackers",
    "require_tracker": "trackers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"plimsoll.report has no {name!r}")
    return getattr(importlib.import_module(f"plimsoll.report.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
