"""The kernel's lines are parsed in every dialect, bounded, and taken for ours only where the kernel says so."""

from __future__ import annotations

import pytest

from gpualert import probe_kernel
from gpualert.probe_kernel import Launch, Record, about, crashes, kills, parse_dated, parse_kmsg, printable, xids

KILLED = (
    "Memory cgroup out of memory: Killed process 13771 (python3) total-vm:221368kB, anon-rss:61056kB, "
    "file-rss:6664kB, shmem-rss:0kB, UID:1000 pgtables:184kB oom_score_adj:0"
)
OOM_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/jobs,"
    "task_memcg=/jobs/a,task=python3,pid=13771,uid=1000"
)

#: (what the line comes from, line, pid, task, uid)
KILL_LINES = [
    ("6.18", KILLED, 13771, "python3", 1000),
    (
        "5.4",
        "Memory cgroup out of memory: Killed process 2204 (python) total-vm:1kB, anon-rss:1kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0",
        2204,
        "python",
        0,
    ),
    (
        "5.10, global",
        "Out of memory: Killed process 77 (pt_main_thread) total-vm:100kB, anon-rss:9kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:1001 pgtables:3kB oom_score_adj:0",
        77,
        "pt_main_thread",
        1001,
    ),
    (
        "4.19",
        "Memory cgroup out of memory: Kill process 9119 (python) score 1980 or sacrifice child",
        9119,
        "python",
        None,
    ),
    ("3.10", "Out of memory: Kill process 4321 (java) score 911 or sacrifice child", 4321, "java", None),
    (
        "2.6.32",
        "Out of memory: Killed process 31113, UID 500, (python2.6) total-vm:8kB, anon-rss:4kB, file-rss:0kB",
        31113,
        "python2.6",
        500,
    ),
    (
        "a name with parentheses",
        "Out of memory: Killed process 5 (a) (b)) total-vm:1kB, anon-rss:1kB, UID:7 pgtables:1kB",
        5,
        "a) (b)",
        7,
    ),
]


def record(text: str, time_s: float = 100.0, sequence: int | None = None) -> Record:
    return Record(sequence, time_s, text)


@pytest.mark.parametrize(("kernel", "line", "pid", "task", "uid"), KILL_LINES)
def test_a_kill_is_read_from_every_kernels_line(kernel: str, line: str, pid: int, task: str, uid: int | None) -> None:
    (found,) = kills([record(line)])
    assert (found.pid, found.uid) == (pid, uid), kernel


def test_the_cgroup_is_taken_from_the_line_before() -> None:
    (found,) = kills([record(OOM_KILL), record(KILLED)])
    assert (found.group, found.uid) == ("/jobs/a", 1000)


@pytest.mark.parametrize(
    "line",
    [
        "oom_reaper: reaped process 13771 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "systemd[1]: Killed process 1 of nothing",
        "Out of memory: Killed process x (python) total-vm",
    ],
)
def test_other_lines_about_memory_name_nobody(line: str) -> None:
    assert kills([record(line)]) == []


@pytest.mark.parametrize(
    ("who", "ours"),
    [
        (Launch(pids=frozenset({13771})), True),
        (Launch(pids=frozenset({13772})), False),
        (Launch(groups=frozenset({"/jobs/a"}), killed=True), True),
        (Launch(groups=frozenset({"/jobs/a"}), killed=False), False),
        (Launch(groups=frozenset({"/jobs"}), killed=True), True),
        (Launch(groups=frozenset({"/job"}), killed=True), False),
        (Launch(groups=frozenset({"/"}), killed=True), False),
        (Launch(groups=frozenset({"/jobs/a"}), killed=True, killed_child=13771), True),
        (Launch(groups=frozenset({"/jobs/a"}), killed=True, killed_child=999), False),
        (Launch(groups=frozenset({"/jobs/a"}), killed=True, began_s=101.0), False),
        (Launch(pids=frozenset({13771}), began_s=101.0), True),
        (Launch(uid=1000, killed=True, ended_s=104.0), True),
        (Launch(uid=1000, killed=True, ended_s=111.0), False),
        (Launch(uid=1000, killed=False, ended_s=104.0), False),
        (Launch(uid=1001, killed=True, ended_s=104.0), False),
        (Launch(uid=1000, killed=True, killed_child=999, ended_s=104.0), False),
        (Launch(pids=frozenset({13771}), pid_namespace="pid:[4026532000]"), False),
        (Launch(), False),
    ],
)
def test_whose_kill_it_was(who: Launch, ours: bool) -> None:
    """By pid, by cgroup, or, with less to go by, by user and time; never by a pid of another namespace."""
    found = about([record(OOM_KILL), record(KILLED)], who)
    assert bool(found.kills) is ours
    assert (KILLED in found.context) is not ours


def test_in_a_container_the_kernel_names_our_containers_id() -> None:
    """Its pids are the host's, and its cgroups begin above what we see."""
    mark = "4f" * 32
    line = OOM_KILL.replace("task_memcg=/jobs/a", f"task_memcg=/docker/{mark}")
    who = Launch(groups=frozenset({"/"}), marks=frozenset({mark}), pid_namespace="pid:[4026532000]")
    assert about([record(line), record(KILLED)], who).kills == ()
    who = who._replace(killed=True)
    assert about([record(line), record(KILLED)], who).kills == (KILLED,)


@pytest.mark.parametrize(
    ("line", "pci", "number", "pid"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "0000:3b:00",
            79,
            None,
        ),
        ("NVRM: Xid (PCI:0000:C1:00): 31, pid=1234, name=python3, Ch 00000008, intr 00000000.", "0000:c1:00", 31, 1234),
        ("NVRM: Xid (PCI:0000:07:00): 48, pid='4321', name=python, DBE (double bit error)", "0000:07:00", 48, 4321),
        ("NVRM: Xid (0000:03:00): 13, Graphics Exception: ESR 0x404490=0x80000001", "0000:03:00", 13, None),
        ("[drm] NVRM: Xid (PCI:00000000:3B:00.0): 95, Uncontained ECC error", "0000:3b:00", 95, None),
    ],
)
def test_xids_of_several_drivers(line: str, pci: str, number: int, pid: int | None) -> None:
    (found,) = xids([record(line)])
    assert (found.pci, found.number, found.pid) == (pci, number, pid)


def test_an_xid_of_a_gpu_that_was_not_used_is_context() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
    used = frozenset({"0000:3b:00"})
    assert [one.number for one in about([record(line)], Launch(pci=used)).xids] == [79]
    assert about([record(line)], Launch(pci=frozenset({"0000:af:00"}))).xids == ()
    assert about([record(line)], Launch(pci=frozenset())).context == (line,)
    named = Launch(pci=frozenset(), pids=frozenset({1}))
    assert len(about([record(line)], named).xids) == 1


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        (
            "python3[1234]: segfault at 0 ip 00007f4b06785ad8 sp 00007ffd76085be8 error 4 "
            "in libc.so.6[167ad8,7f4b06644000+156000] likely on CPU 1 (core 1, socket 0)",
            1234,
        ),
        ("traps: python[77] general protection fault ip:7f00 sp:7ffd error:0 in libcuda.so.1[7f+1]", 77),
        ("traps: python3[9] trap invalid opcode ip:55 sp:7ff error:0 in libtorch_cpu.so[7f+1]", 9),
        ("traps: a[b][12] trap divide error ip:55 sp:7ff error:0 in a.out[55+1]", 12),
    ],
)
def test_crashes_name_their_process(line: str, pid: int) -> None:
    assert crashes([record(line)]) == [(pid, line)]
    assert about([record(line)], Launch(pids=frozenset({pid}))).crashes == (line,)
    assert about([record(line)], Launch(pids=frozenset({pid + 1}))).crashes == ()


def test_a_process_cannot_name_itself_into_a_kill() -> None:
    """A name is all that a process chooses; 15 bytes of it stand in a line of the kernel's."""
    forged = "Out of memory: Kille[13771]: segfault at 0 ip 0 sp 0 error 4"
    assert kills([record(forged), record("python: Out of memory: ")]) == []


def test_records_of_the_device() -> None:
    """Priority, sequence, microseconds; then text, then lines that carry keys."""
    one = parse_kmsg(b"3,1467,22673885642,-;Out of memory: x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
    assert one == Record(1467, 22673.885642, "Out of memory: x")
    assert parse_kmsg(b"6,1,2,-,caller=T1;with a caller\n") == Record(1, 2e-6, "with a caller")
    for damaged in (b"", b";", b"6;x", b"6,1;x", b"a,b,c,d;x", b"\xff\xfe\x00"):
        assert parse_kmsg(damaged) is None


def test_dated_lines_of_dmesg_and_journalctl() -> None:
    text = (
        "[    0.000000] Linux version 6.1\n"
        "<3>[12345.678901] Out of memory: a\n"
        "[12345.678902][ T1234] with a thread\n"
        "not dated: Out of memory: Killed process 1 (x)\n"
        "[no] number\n"
    )
    assert [one.time_s for one in parse_dated(text, probe_kernel._DMESG)] == [0.0, 12345.678901, 12345.678902]
    journal = "[ 5.123456] host7 kernel: Out of memory: a\n-- No entries --\n[ 5.2] host7 sshd[1]: hello\n"
    assert parse_dated(journal, probe_kernel._JOURNAL) == [Record(None, 5.123456, "Out of memory: a")]


@pytest.mark.parametrize(
    "said", ["", "-- No entries --\n", "\x00\xff", "Hint: You are currently not seeing messages\n"]
)
def test_a_tool_that_shows_nothing_has_not_looked(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """A user outside of the journal's groups gets status 0 and no line; a kernel always has lines."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(probe_kernel, "_read_kmsg", refuse)
    monkeypatch.setattr(probe_kernel, "output_of", lambda *_: said)
    assert probe_kernel.look(0.0, None) == {
        "not_seen": "/dev/kmsg: Operation not permitted; dmesg: showed no dated line; journalctl: showed no dated line"
    }


def test_text_is_bounded_and_printable() -> None:
    assert printable("a\x1b[31mb\x00\n\x7fc") == "a?[31mb?c"
    assert len(printable("x" * 100_000)) == probe_kernel.MAX_LINE_CHARS
    piece = b"6,1,2,-;" + b"\xff\xc3" * 50_000
    found = parse_kmsg(piece)
    assert found is not None and len(found.text) <= 4 * probe_kernel.MAX_LINE_CHARS


def test_an_earlier_look_hides_what_it_had_seen() -> None:
    """By the kernel's own count where there is one, for clocks of virtual machines jump."""
    records = [record("a", 10.0, 5), record("b", 3.0, 6), record("c", 11.0, 7)]
    assert [one.text for one in probe_kernel.after(records, {"last_sequence": 5, "last_time_s": 10.0})] == ["b", "c"]
    undated = [one._replace(sequence=None) for one in records]
    assert [one.text for one in probe_kernel.after(undated, {"last_sequence": None, "last_time_s": 10.0})] == ["c"]
    assert probe_kernel.after(records, {}) == records


def test_a_log_of_nothing_but_damage_is_survived() -> None:
    found = probe_kernel.records_of([[1, 2.0, "x"], [None, "3", "y"], ["a"], None, 7, [1, None, "z"], {}])  # type: ignore[list-item]
    assert [one.text for one in found] == ["x", "y"]
    noise = [record(text) for text in ("", "oom-kill:", "NVRM: Xid (", "[1]: segfault at", "\ufffd" * 300)]
    assert about(noise, Launch()).kills == ()


def test_a_hostile_line_is_short_and_proves_nothing() -> None:
    """A line of 400 characters is all that a pattern ever sees."""
    for part in (
        "oom-kill:constraint=",
        ",task_memcg=",
        "Out of memory: Killed process 1 (",
        "NVRM: Xid (PCI:0000:",
        "a[",
    ):
        text = printable(part * 400)
        assert len(text) <= 400
        assert about([record(text)] * 200, Launch(pids=frozenset({1}))).kills == ()
