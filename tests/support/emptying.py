"""Real processes that share a cache, while another one removes what is in it."""

import json
import os
import subprocess
import sys
import textwrap
import time

from plimsoll.processes import cache
from plimsoll.processes.environment import for_processes


def together(folder, program, *, processes=2, **arguments):
    """Starts a program several times at once, empties the cache until all have ended, and returns what they printed."""
    environment = for_processes("cpu") | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PLIMSOLL_CACHE": str(folder),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "ARGUMENTS": json.dumps(arguments),
    }
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) for _ in range(processes)
    ]
    emptied = 0
    while any(process.poll() is None for process in started):
        emptied += len(cache.empty(folder)[0])
        time.sleep(0.002)
    results = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * processes, results
    return emptied, [output for output, _ in results]
