"""A board that threads share, as the processes of a run do the first one's (`training.distributed.Board`)."""

import json
import threading

PATIENCE = 60
"""Seconds after which a thread that waits for a value counts as stuck."""


class Told:
    """Values are JSON."""

    host = "127.0.0.1"

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def write(self, name, value):
        with self.changed:
            assert name not in self.values
            self.values[name] = json.dumps(value)
            self.changed.notify_all()

    def claim(self, name):
        with self.changed:
            claimed = name not in self.values
            self.values.setdefault(name, "true")
            return claimed

    def read(self, name):
        return self.read_first_of(name)[1]

    def read_first_of(self, *names):
        with self.changed:
            assert self.changed.wait_for(lambda: any(name in self.values for name in names), PATIENCE)
            name = next(name for name in names if name in self.values)
            return name, json.loads(self.values[name])
