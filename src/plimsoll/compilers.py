import os
from pathlib import Path


def python_for(platform):
    p = Path("/tmp/tpuenv/bin/python") if platform == "tpu" else None
    return p if p and p.exists() and not os.environ.get("NOENV") else None
