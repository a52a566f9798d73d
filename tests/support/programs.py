"""Programs of Python in processes of their own."""

import os
import subprocess
import sys


def printed(program, *arguments, environment=None):
    """What a program printed that ended well, in a process that finds the modules that this one finds."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = (environment or os.environ) | path
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
