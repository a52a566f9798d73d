"""The files for clusters in docs/examples against the schemas of who reads them.

    python benchmarks/cluster_files.py

In an environment of its own (`.venv-peer-clusters`) with the models that Kubeflow's trainer generates from JobSet's and
Kubernetes' API, with SkyPilot and its JSON schemas, and with the messages of Google's client of Cloud TPU. A model may
drop a field that it does not know: what it writes again must be the file. So that a check that sees nothing is noticed,
each file is checked once more with a field misspelt at every depth, and each must be refused. Nothing is started;
prints a line a file, ends with 1 where one is not as its schema says.
"""

from __future__ import annotations

import json
import subprocess
import sys

from peers.environment import ROOT, peer_python

EXAMPLES = ROOT / "docs/examples"
REQUIREMENTS = ("kubeflow-trainer-api==2.3.0", "skypilot==0.14.1", "google-cloud-tpu==1.28.0", "pyyaml", "jsonschema")
CHECK = """
import copy, json, sys
import jsonschema, yaml
from google.cloud.tpu_v2alpha1 import types as tpu
from google.protobuf import json_format
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
from sky.utils import schemas

def of_jobset(content):
    if JobsetV1alpha2JobSet.from_dict(content).to_dict() != content:
        raise ValueError("a field is not in the schema")

def of_skypilot(content):
    jsonschema.validate(content, schemas.get_task_schema())
    jsonschema.validate(content["resources"], schemas.get_resources_schema())

def of_cloud_tpu(content):
    message = tpu.QueuedResource.pb()()
    json_format.ParseDict(content, message)
    if json_format.MessageToDict(message) != content:
        raise ValueError("a value is not read as it is written")

def places(content, path=()):
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        if isinstance(content, dict):
            yield (*path, key)
        yield from places(value, (*path, key))

def misspelt(content, path):
    changed = copy.deepcopy(content)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[f"{path[-1]}s"] = inside.pop(path[-1])
    return changed

free = [tuple(path) for path in json.loads(sys.argv[2])]
files = {"jobset.yaml": of_jobset, "skypilot.yaml": of_skypilot, "cloud-tpu.json": of_cloud_tpu}
for name, check in files.items():
    content = yaml.safe_load(open(f"{sys.argv[1]}/{name}", encoding="utf-8"))
    check(content)
    paths = [path for path in places(content) if not any(path[: len(one)] == one and path != one for one in free)]
    for path in paths:
        try:
            check(misspelt(content, path))
        except (ValueError, jsonschema.ValidationError, json_format.ParseError):
            continue
        raise SystemExit(f"{name}: {'.'.join(map(str, path))} misspelt is not seen")
    print(f"{name}: as its schema says; each of {len(paths)} names misspelt is refused")
"""
FREE = [
    ["spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0, "resources", "limits"],
    ["file_mounts"],
    ["resources", "job_recovery"],
    ["tpu", "nodeSpec", 0, "node", "metadata"],
]
"""Fields whose names inside are the user's own, or, in the last, left open by the schema."""


def main() -> int:
    python = peer_python(ROOT / ".venv-peer-clusters", REQUIREMENTS)
    return subprocess.run([str(python), "-c", CHECK, str(EXAMPLES), json.dumps(FREE)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
