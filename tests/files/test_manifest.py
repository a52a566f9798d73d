"""A folder with a manifest is as it was written, or says what is wrong."""

import json

import pytest

from plimsoll.files.manifest import MANIFEST, checksums, damage, finish, is_finished


@pytest.fixture
def finished(tmp_path):
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    (folder / "a").write_bytes(b"one")
    (folder / "inside/b").write_bytes(bytes(1000))
    finish(folder)
    return folder


def test_a_finished_folder_has_the_checksums_of_all_its_files(finished):
    assert is_finished(finished)
    assert damage(finished) is None
    assert json.loads((finished / MANIFEST).read_text()) == checksums(finished)
    assert list(checksums(finished)) == ["a", "inside/b"]
    assert checksums(finished)["a"] == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"


@pytest.mark.parametrize("name", ["a", "inside/b"])
def test_what_changed_is_named(finished, name):
    path = finished / name
    whole = path.read_bytes()
    for changed in (whole[:-1], whole + b"!", bytes([whole[0] ^ 1]) + whole[1:]):
        path.write_bytes(changed)
        assert damage(finished) == f"{name} has changed since it was written"
    path.unlink()
    assert damage(finished) == f"{name} is missing"
    path.write_bytes(whole)
    assert damage(finished) is None


@pytest.mark.parametrize("text", ["", "{", "3", "null", '["a", "b"]', b"\xff\xfe"])
def test_a_manifest_that_cannot_be_read_is_said(finished, text):
    (finished / MANIFEST).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert damage(finished) == f"{MANIFEST} cannot be read"
