"""Limits of control groups, on trees built here: both versions, nested, and files that cannot be read."""

import pytest

from plimsoll.planner.host import NO_LIMIT, available_bytes, cgroup_room, margin_bytes
from plimsoll.units import GIB, MIB

V1_UNLIMITED = 9223372036854771712


def write_group(folder, *, limit, used, inactive=0, version=2):
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    names = names if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {inactive}\nfile 7\n")


def belong_to(root, *lines):
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text("".join(line + "\n" for line in lines))


MOUNT = "sys/fs/cgroup"


def test_what_is_left_is_the_room_and_reclaimable_pages_count_as_free(tmp_path):
    belong_to(tmp_path, "0::/user/run")
    write_group(tmp_path / MOUNT / "user/run", limit=GIB, used=300 * MIB, inactive=100 * MIB)
    assert cgroup_room(tmp_path) == GIB - 200 * MIB


def test_version_1_is_read_under_its_own_names(tmp_path):
    belong_to(tmp_path, "5:cpu,cpuacct:/elsewhere", "4:memory:/jobs/7", "1:name=systemd:/x")
    write_group(tmp_path / MOUNT / "memory/jobs/7", limit=2 * GIB, used=GIB, inactive=MIB, version=1)
    write_group(tmp_path / MOUNT / "memory", limit=V1_UNLIMITED, used=40 * GIB, version=1)
    assert cgroup_room(tmp_path) == GIB + MIB


def test_the_tightest_limit_on_the_way_up_counts(tmp_path):
    belong_to(tmp_path, "0::/a/b/c")
    mount = tmp_path / "sys/fs/cgroup"
    write_group(mount / "a", limit=500 * MIB, used=450 * MIB)
    write_group(mount / "a/b", limit=GIB, used=400 * MIB)
    write_group(mount / "a/b/c", limit="max", used=300 * MIB)
    assert cgroup_room(tmp_path) == 50 * MIB


@pytest.mark.parametrize(
    ("group", "limit", "used", "room"),
    [
        ("/", 100 * MIB, 101 * MIB, 0),  # over its limit: no room rather than less
        ("/host/path/not/here", GIB, 0, GIB),  # which a container hides: the mount's
    ],
)
def test_a_group_over_its_limit_and_one_that_cannot_be_seen(tmp_path, group, limit, used, room):
    belong_to(tmp_path, f"0::{group}")
    write_group(tmp_path / MOUNT, limit=limit, used=used)
    assert cgroup_room(tmp_path) == room
    assert available_bytes(tmp_path) <= room


@pytest.mark.parametrize("version", [1, 2])
def test_no_limit_is_no_limit(tmp_path, version):
    belong_to(tmp_path, "0::/" if version == 2 else "3:memory:/")
    mount = tmp_path / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory")
    write_group(mount, limit="max" if version == 2 else V1_UNLIMITED, used=MIB, version=version)
    assert cgroup_room(tmp_path) == NO_LIMIT


def test_a_machine_without_control_groups_has_no_limit(tmp_path):
    assert cgroup_room(tmp_path) == NO_LIMIT
    assert 0 < available_bytes(tmp_path) < NO_LIMIT


@pytest.mark.parametrize(("available", "margin"), [(GIB, 256 * MIB), (10 * GIB, GIB), (100 * GIB, 2 * GIB)])
def test_a_tenth_is_left_to_others_between_two_bounds(available, margin):
    assert margin_bytes(available) == margin
