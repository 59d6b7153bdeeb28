"""A process's memory cgroup is found in every layout of hierarchies, and its counters are read for what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpualert import probe_memory
from gpualert.probe_memory import Group, compare, container_marks, counters, group_of, host_memory

V2_MOUNTS = "25 30 0:23 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
DOCKER_V1_MOUNTS = (
    "700 690 0:31 /docker/abc /sys/fs/cgroup/memory ro,nosuid,relatime master:17 - cgroup memory rw,memory\n"
)

LAYOUTS = [
    (
        "v2, systemd session",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        V2_MOUNTS,
        Group(
            2,
            "/user.slice/user-1000.slice/session-3.scope",
            "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope",
            "/sys/fs/cgroup",
        ),
    ),
    ("v2, root", "0::/\n", V2_MOUNTS, Group(2, "/", "/sys/fs/cgroup", "/sys/fs/cgroup")),
    (
        "v1, own group",
        "9:name=systemd:/\n4:memory:/jobs/a\n0::/\n",
        V1_MOUNTS,
        Group(1, "/jobs/a", "/sys/fs/cgroup/memory/jobs/a", "/sys/fs/cgroup/memory"),
    ),
    (
        "v1, several controllers on one line",
        "7:cpuset,memory,blkio:/slurm/uid_1/job_2/step_0\n",
        V1_MOUNTS.replace("rw,memory", "rw,cpuset,memory,blkio"),
        Group(
            1, "/slurm/uid_1/job_2/step_0", "/sys/fs/cgroup/memory/slurm/uid_1/job_2/step_0", "/sys/fs/cgroup/memory"
        ),
    ),
    (
        "v1, docker without a namespace",
        "4:memory:/docker/abc\n0::/docker/abc\n",
        DOCKER_V1_MOUNTS,
        Group(1, "/docker/abc", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory"),
    ),
    (
        "v2, container with a cgroup namespace",
        "0::/\n",
        "812 811 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n",
        Group(2, "/", "/sys/fs/cgroup", "/sys/fs/cgroup"),
    ),
    (
        "v2, namespace made after the mount",
        "0::/\n",
        "812 811 0:26 /kubepods/pod1/c1 /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
        Group(2, "/", "/sys/fs/cgroup", "/sys/fs/cgroup"),
    ),
    ("v2, outside of our namespace", "0::/../other\n", V2_MOUNTS, Group(2, "/../other", None, None)),
    ("v2, not mounted", "0::/a\n", "22 1 0:20 / /proc rw - proc proc rw\n", Group(2, "/a", None, None)),
    (
        "a mount point with a blank",
        "0::/a\n",
        "25 30 0:23 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw\n",
        Group(2, "/a", "/mnt/my groups/a", "/mnt/my groups"),
    ),
    ("none at all", "", V2_MOUNTS, None),
    ("v1 without the memory controller", "3:cpu:/a\n", V1_MOUNTS, None),
    ("garbage", "\x00\xff::::\n0\nmemory", "\x00 - - -\n- cgroup2\n", None),
]


@pytest.mark.parametrize(("layout", "cgroup", "mounts", "expected"), LAYOUTS, ids=[one[0] for one in LAYOUTS])
def test_the_group_of_a_process(layout: str, cgroup: str, mounts: str, expected: Group | None) -> None:
    assert group_of(cgroup, mounts) == expected


def v2(folder: Path, oom_kill: int | None, maximum: str, peak: str | None = "5000") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if oom_kill is not None:
        (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {oom_kill}\noom_group_kill 0\n")
    (folder / "memory.max").write_text(maximum + "\n")
    (folder / "memory.current").write_text("4000\n")
    if peak is not None:
        (folder / "memory.peak").write_text(peak + "\n")


def test_counters_of_v2_with_what_holds_from_above(tmp_path: Path) -> None:
    """The smallest limit on the way up is the one that kills."""
    v2(tmp_path / "a" / "b", 2, "max")
    v2(tmp_path / "a", 7, "9000")
    found = counters(Group(2, "/a/b", str(tmp_path / "a" / "b"), str(tmp_path)))
    assert (found["oom"], found["oom_kill"], found["peak_bytes"], found["limit_bytes"]) == (3, 2, 5000, 9000)
    assert found["ancestors"] == [{"name": "/a", "oom_kill": 7}, {"name": "/", "oom_kill": None}]


def test_what_an_older_kernel_does_not_have_is_not_known(tmp_path: Path) -> None:
    """memory.peak came with 5.19, oom_kill in memory.oom_control with 4.13; zero would say that nothing was killed."""
    v2(tmp_path / "a", 0, "max", peak=None)
    found = counters(Group(2, "/a", str(tmp_path / "a"), str(tmp_path)))
    assert (found["peak_bytes"], found["limit_bytes"], found["oom_kill"]) == (None, None, 0)
    old = tmp_path / "old"
    old.mkdir()
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (old / "memory.failcnt").write_text("53\n")
    found = counters(Group(1, "/old", str(old), str(tmp_path)))
    assert (found["oom_kill"], found["limit_bytes"], found["failures"]) == (None, None, 53)


def test_counters_of_v1(tmp_path: Path) -> None:
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    (tmp_path / "memory.limit_in_bytes").write_text("62914560\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("62914560\n")
    found = counters(Group(1, "/", str(tmp_path), str(tmp_path)))
    assert (found["oom_kill"], found["limit_bytes"], found["peak_bytes"]) == (4, 62914560, 62914560)


@pytest.mark.parametrize("text", ["", "\x00\xff", "oom_kill\n", "oom_kill many\n", "oom_kill -3\n", "x" * 100_000])
def test_damaged_counters_are_not_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert counters(Group(2, "/", str(tmp_path), str(tmp_path)))["oom_kill"] is None


def look(oom_kill: int | None, name: str = "/a", above: int | None = 0, host: int | None = 0) -> dict[str, object]:
    return {
        "group": {"name": name, "oom_kill": oom_kill, "ancestors": [{"name": "/", "oom_kill": above}]},
        "host_oom_kills": host,
    }


@pytest.mark.parametrize(
    ("before", "after", "own", "shared", "host"),
    [
        (look(3), look(5), 2, None, 0),
        (look(3), look(3), 0, None, 0),
        (look(None, above=4), look(None, above=6, host=2), None, 2, 2),
        (look(5), look(3), None, 0, 0),  # another group of the same name
        (look(3), look(9, name="/b"), None, None, 0),
        (None, look(0), 0, None, None),
        (None, look(2), None, None, None),
        (look(3), None, None, None, None),
        (look(3), {"group": None}, None, None, None),
    ],
)
def test_what_grew(
    before: dict[str, object] | None, after: dict[str, object] | None, own: object, shared: object, host: object
) -> None:
    """A kill in the own group; else in the nearest above it; what was not read twice is not known."""
    found = compare(before, after)
    assert (found["oom_kills"], found["shared_oom_kills"], found["host_oom_kills"]) == (own, shared, host)


def test_host_memory() -> None:
    text = "MemTotal:       24684084 kB\nMemFree:        23142860 kB\nMemAvailable:   24140740 kB\n"
    assert host_memory(text) == (24140740 * 1024, 24684084 * 1024)
    assert host_memory("MemTotal: 1 kB\n") == (None, 1024)  # before Linux 3.14
    assert host_memory("MemAvailable:\nMemTotal: x kB\n\x00") == (None, None)


def test_only_our_own_container_marks_us() -> None:
    """A host's mounts show the ids of every container on it, and none is its own."""
    mark, other = "ab" * 32, "cd" * 32
    inside = f"1 2 8:1 /var/lib/docker/containers/{mark}/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
    outside = f"9 2 0:5 / /var/lib/docker/containers/{other}/mounts/shm rw - tmpfs shm rw\n"
    pod = "0a1b2c3d-0000-1111-2222-333344445555"
    kube = f"1 2 8:1 /var/lib/kubelet/pods/{pod}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n"
    assert container_marks(outside + inside) == [mark]
    assert container_marks(outside) == []
    assert container_marks(kube) == [pod, pod.replace("-", "_")]


def test_this_very_process() -> None:
    """Whatever this machine is, the look answers, and says why where there is no counter."""
    seen = probe_memory.look()["seen"]
    assert seen["host_total_bytes"] > 0
    assert seen["group"] is None or seen["group"]["oom_kill"] is not None or seen["why_no_group"]
