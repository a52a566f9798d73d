"""An S3 of our own, moto's, over HTTP in this process. It comes with `pip install 'plimsoll-jax[test-buckets]'`."""

import contextlib
import os
import urllib.request
from unittest import mock

import pytest

WHY = "the tests against S3 need `pip install 'plimsoll-jax[test-buckets]'`"


@contextlib.contextmanager
def s3_server():
    """The address of an empty bucket; this process and those that it starts find the server by their environment."""
    pytest.importorskip("s3fs", reason=WHY)
    server = pytest.importorskip("moto.server", reason=WHY).ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    where = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        with mock.patch.dict(os.environ, where):
            import s3fs

            s3fs.S3FileSystem(skip_instance_cache=True).mkdir("plimsoll")
            yield "s3://plimsoll"
    finally:
        server.stop()


@contextlib.contextmanager
def forbidding():
    """The server asks for permissions, which nobody has."""
    _after(0)
    try:
        yield
    finally:
        _after("inf")


def _after(requests):
    where = f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    asked = urllib.request.Request(where, data=str(requests).encode(), headers={"Content-Type": "text/plain"})
    urllib.request.urlopen(asked).read()
