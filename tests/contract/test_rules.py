"""Rules of the author's own travel with a launch and decide its verdict, whoever gives it; they never hurt it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpualert import observer, procfs, protocol, report
from gpualert.key import Attempt, LaunchKey
from gpualert.records import RunRecord, RunState
from gpualert.rundir import RunDirectory
from gpualert.spec import LaunchSpec
from tests.support.launching import Host, host
from tests.support.talk import Talk
from tests.support.terminal import Gpualert, gpualert
from tests.support.waiting import wait_until

__all__ = ["gpualert", "host"]

DEADLINE_S = 60.0
LINE = "labfs gateway lab-7 went away"
RULES: dict[str, Any] = {
    "format_version": 1,
    "rules": [
        {
            "name": "lab.gateway",
            "words": ["labfs gateway"],
            "pattern": r"labfs gateway \S{1,60} went away",
            "class": "storage_io",
            "domain": "network",
            "advice": "The next try finds the other gateway.",
            "no_retry": True,
        }
    ],
    "silence": [],
}


def waiting(tmp_path: Path) -> str:
    """It says the line, waits for ``tmp_path/go``, and fails."""
    return f"echo '{LINE}'; while [ ! -e '{tmp_path}/go' ]; do sleep 0.02; done; exit 3"


def watched(record: RunRecord) -> procfs.ProcessIdentity:
    """The observer, once it has read the line and saved its state."""

    def state() -> Any:
        found = observer.load_scan(RunDirectory(record.run_directory))
        return found if found is not None and found["offset"] > 0 else None

    return procfs.ProcessIdentity.from_json(wait_until(state, DEADLINE_S, "the observer reads")["observer"])


def written_verdict(record: RunRecord) -> dict[str, Any]:
    path = Path(RunDirectory(record.run_directory).verdict_path)
    return dict(json.loads(wait_until(lambda: path.exists() and path.read_text(), DEADLINE_S, "the verdict")))


def told(outcome: Any) -> tuple[Any, ...]:
    return outcome.failure_class, outcome.domain, outcome.evidence[0]["rule"], outcome.advice


EXPECTED = ("storage_io", "network", "lab.gateway", "The next try finds the other gateway.")


def test_the_observer_judges_by_them(host: Host, tmp_path: Path) -> None:
    """Once, in a file of their own that nobody else can read; a change to the author's mapping changes nothing."""
    mine = json.loads(json.dumps(RULES))
    record = host.launch(waiting(tmp_path), rules=mine)
    mine["rules"].clear()
    stored = Path(record.run_directory) / "rules.json"
    assert json.loads(stored.read_text()) == RULES
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert "rules" not in json.loads((Path(record.run_directory) / "spec.json").read_text())
    watched(record)
    (tmp_path / "go").touch()
    host.end(record)

    assert written_verdict(record)["failure_class"] == "storage_io"
    outcome = report.build(record.run_directory)
    assert told(outcome) == EXPECTED
    assert outcome.retry_outlook == {"same_host": "no", "other_host": "no"}
    assert outcome.warnings == ()


def test_an_observer_that_is_started_again_judges_by_them(host: Host, tmp_path: Path) -> None:
    """It goes on from what the killed one saved, and that was scanned by the same rules."""
    record = host.launch(waiting(tmp_path), rules=RULES)
    first = watched(record)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: procfs.alive(first) is False, DEADLINE_S, "the observer is gone")
    (tmp_path / "go").touch()
    host.end(record)
    assert written_verdict(record)["evidence"][0]["rule"] == "lab.gateway"


def test_a_report_without_an_observer_judges_by_them(host: Host, tmp_path: Path) -> None:
    """The guard is gone too, so that nobody starts another."""
    record = host.launch(waiting(tmp_path), rules=RULES)
    watching = watched(record)
    host.kill(record, "guard")
    os.kill(watching.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    host.end(record)
    assert not os.path.exists(RunDirectory(record.run_directory).verdict_path)
    assert told(report.build(record.run_directory)) == EXPECTED


@pytest.mark.parametrize(
    "rules",
    [{**RULES, "format_version": 2}, {**RULES, "rules": [{**RULES["rules"][0], "class": "gremlin"}]}],
    ids=["newer", "unknown-class"],
)
def test_rules_that_the_host_does_not_understand_hurt_nobody(host: Host, tmp_path: Path, rules: dict[str, Any]) -> None:
    """The training runs, the built-in rules judge it, and the outcome says so."""
    record = host.launch(f"echo '{LINE}'; while [ ! -e '{tmp_path}/go' ]; do sleep 0.02; done; false", rules=rules)
    watched(record)
    (tmp_path / "go").touch()
    host.end(record)
    written_verdict(record)
    outcome = report.build(record.run_directory)
    assert (outcome.state, outcome.exit_code) == (RunState.FAILED, 1)
    assert [warning for warning in outcome.warnings if "built-in rules alone" in warning]
    assert all(item["rule"] != "lab.gateway" for item in outcome.evidence)


def test_a_report_says_that_they_are_damaged(host: Host, tmp_path: Path) -> None:
    """Nobody judged before the disk took them: the built-in rules do, with a warning."""
    record = host.launch(f"{waiting(tmp_path).replace('exit 3', 'echo MemoryError')}; exit 1", rules=RULES)
    watching = watched(record)
    host.kill(record, "guard")
    os.kill(watching.pid, signal.SIGKILL)
    Path(RunDirectory(record.run_directory).rules_path).write_text("{")
    (tmp_path / "go").touch()
    host.end(record)
    outcome = report.build(record.run_directory)
    assert (outcome.state, outcome.failure_class) == (RunState.FAILED, "ram_oom")
    assert [warning for warning in outcome.warnings if "built-in rules alone" in warning]


def test_they_cross_in_the_launch_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the bootstrap, to a host that knows nothing of them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    key = LaunchKey([os.urandom(8).hex()], "task")
    with Talk.over_shell(root=str(tmp_path / "root")) as talk:
        talk.hello()
        request = protocol.launch_request(
            key, Attempt(1, "11111111"), LaunchSpec(f"echo '{LINE}'; exit 3", rules=RULES)
        )
        record = talk.ask(request, "launched").header["record"]
        _, ended = talk.follow_to_end(protocol.follow_request(record["launch_id"]))
    outcome = ended.header["outcome"]
    assert (outcome["failure_class"], outcome["evidence"][0]["rule"]) == ("storage_io", "lab.gateway")


# ---- the command line


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    found = tmp_path / "lab.rules.json"
    found.write_text(json.dumps(RULES))
    return found


def test_run_takes_them(gpualert: Gpualert, rules_file: Path) -> None:
    done = gpualert.run("run", "--rules", str(rules_file), "--", "sh", "-c", f"echo '{LINE}'; exit 3")
    assert done.returncode == 3 and done.stdout.decode() == LINE + "\n"
    assert b"storage_io" in done.stderr and b"other gateway" in done.stderr


def test_launch_takes_them(gpualert: Gpualert, rules_file: Path) -> None:
    launched = gpualert.run("launch", "--rules", str(rules_file), "--", "sh", "-c", f"echo '{LINE}'; exit 3")
    launch_id = launched.stdout.decode().strip()
    assert gpualert.run("attach", "-q", launch_id).returncode == 3
    outcome = json.loads(gpualert.run("status", "--json", launch_id).stdout)["outcome"]
    assert outcome["failure_class"] == "storage_io"


@pytest.mark.parametrize(("verb", "status"), [("run", 125), ("launch", 2)])
def test_a_fault_is_told_before_anything_is_started(gpualert: Gpualert, tmp_path: Path, verb: str, status: int) -> None:
    """In one line, with file, rule and fault."""
    (tmp_path / "bad.json").write_text(json.dumps({**RULES, "rules": [{**RULES["rules"][0], "pattern": "(a+)+"}]}))
    done = gpualert.run(verb, "--rules", str(tmp_path / "bad.json"), "--", "touch", str(tmp_path / "started"))
    assert done.returncode == status and done.stdout == b""
    assert len(done.stderr.splitlines()) == 1 and b"bad.json: rule 1 (lab.gateway): pattern" in done.stderr
    assert not (tmp_path / "started").exists() and gpualert.run_directories() == []


def test_a_run_without_rules_pays_nothing_for_them(gpualert: Gpualert) -> None:
    """None of what reads rules is imported on the way to the child's start."""
    code = (
        "import sys\n"
        "from gpualert import cli, foreground\n"
        "started = []\n"
        "real = foreground.run\n"
        "def run(start, **options):\n"
        "    def begin(stdin):\n"
        "        found = start(stdin)\n"
        "        started.extend(sorted(sys.modules))\n"
        "        return found\n"
        "    return real(begin, **options)\n"
        "foreground.run = run\n"
        "status = cli.main(['run', '-q', '--', 'true'])\n"
        "slow = {'gpualert.userrules', 'gpualert.signature', 'gpualert.launch_rules', 'gpualert.scan'}\n"
        "print(status, bool(started), sorted(slow.intersection(started)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=gpualert.environment, capture_output=True, timeout=DEADLINE_S
    )
    assert done.stdout.decode() == "0 True []\n", done.stderr
