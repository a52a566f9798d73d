"""Signals to a process that saves before it ends: one request is heard once, however often it is sent at first."""

import signal
import subprocess
import sys
import time

import pytest

from plimsoll.processes.interruption import ONE_REQUEST_SECONDS

WAITS = """
import signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
from plimsoll.processes.interruption import Interruption
with Interruption() as interruption:
    print("ready", flush=True)
    while interruption.signal is None:
        time.sleep(0.01)
    print("heard", flush=True)
    time.sleep({saving})
    print("saved", interruption.signal, flush=True)
"""


def waiting(saving):
    process = subprocess.Popen([sys.executable, "-c", WAITS.format(saving=saving)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_comes_from_two_at_once_is_one_request(number):
    """As under Slurm, which signals every process of a step, and a supervisor forwards it."""
    process = waiting(saving=0.2)
    process.send_signal(number)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(number)
    assert process.communicate(timeout=60)[0] == f"saved {int(number)}\n"
    assert process.returncode == 0


def test_a_signal_that_comes_later_ends_the_process():
    process = waiting(saving=60)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "heard\n"
    time.sleep(ONE_REQUEST_SECONDS + 0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM
