"""The verbs on real launches: what they print, what they end with, and that nobody is disturbed by being looked at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import DEADLINE_S, Gpualert, Terminal, gpualert, lives
from tools.rig.waiting import wait_until

__all__ = ["gpualert"]


def launch(gpualert: Gpualert, *words: str) -> str:
    """Launch, and give the launch id that was printed."""
    done = gpualert.run("launch", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def answer(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """The one JSON object printed, with its version."""
    value = json.loads(done.stdout)
    assert value["schema_version"] == 1
    return value


def until_go(tmp_path: Path, then: str = "exit 0") -> list[str]:
    """A command that says ``ready`` and waits for ``tmp_path/go``."""
    script = f"echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {then}"
    return ["--", "sh", "-c", script]


def log_of(gpualert: Gpualert, launch_id: str) -> Path:
    return Path(answer(gpualert.run("status", "--json", launch_id))["record"]["log_path"])


def ready(gpualert: Gpualert, launch_id: str) -> None:
    log = log_of(gpualert, launch_id)
    wait_until(lambda: b"ready" in log.read_bytes(), DEADLINE_S, "the command runs")


def test_a_launch_from_beginning_to_end(gpualert: Gpualert, tmp_path: Path) -> None:
    """Launched, listed, followed, ended, explained."""
    launch_id = launch(gpualert, "--label", "nightly run", *until_go(tmp_path, "echo 'MemoryError'; exit 3"))
    assert re.fullmatch(r"sh-[0-9a-f]{12}\.1", launch_id)
    ready(gpualert, launch_id)

    (running,) = answer(gpualert.run("list", "--running", "--json"))["launches"]
    assert (running["launch_id"], running["state"], running["label"]) == (launch_id, "RUNNING", "nightly run")
    assert b"RUNNING" in gpualert.run("status", launch_id).stdout

    following = subprocess.Popen(gpualert.argv("logs", "-f", "sh"), env=gpualert.environment, stdout=subprocess.PIPE)
    (tmp_path / "go").touch()
    out, _ = following.communicate(timeout=DEADLINE_S)
    assert out == b"ready\nMemoryError\n" and following.returncode == 0

    status = answer(gpualert.run("status", "--json", launch_id))
    assert status["record"]["state"] == "FAILED" and status["record"]["exit"]["code"] == 3
    assert status["outcome"]["failure_class"] == "ram_oom"
    shown = gpualert.run("status", launch_id).stdout.decode()
    assert "ram_oom" in shown and "MemoryError" in shown and "exit 3" in shown
    assert answer(gpualert.run("list", "--running", "--json"))["launches"] == []


def test_launch_tells_what_it_did_as_json(gpualert: Gpualert) -> None:
    value = answer(gpualert.run("launch", "--json", "--", "true"))
    assert value["result"] == "launched"
    assert value["record"]["launch_id"].startswith("true-")


def test_one_launch_of_a_name_at_a_time(gpualert: Gpualert, tmp_path: Path) -> None:
    """While it runs it is reported, not repeated; afterwards the next one is launched under the same key."""
    first = answer(gpualert.run("launch", "--json", "--name", "nightly", *until_go(tmp_path)))
    again = answer(gpualert.run("launch", "--json", "--name", "nightly", *until_go(tmp_path)))
    assert again["result"] == "existing"
    assert again["record"]["launch_id"] == first["record"]["launch_id"]

    (tmp_path / "go").touch()
    assert gpualert.run("attach", "-q", first["record"]["launch_id"]).returncode == 0
    third = answer(gpualert.run("launch", "--json", "--name", "nightly", "--", "true"))
    assert (third["result"], third["record"]["number"]) == ("launched", 2)


def test_stdout_of_a_launch_is_the_id_alone(gpualert: Gpualert, tmp_path: Path) -> None:
    """Also when the launch of that name exists already: scripts keep what is printed in a variable."""
    first = launch(gpualert, "--name", "nightly", *until_go(tmp_path))
    again = gpualert.run("launch", "--name", "nightly", *until_go(tmp_path))
    assert (again.returncode, again.stdout.decode()) == (0, first + "\n")
    assert b"RUNNING already" in again.stderr
    (tmp_path / "go").touch()
    assert gpualert.run("attach", first).returncode == 0


def test_an_empty_id_names_no_launch(gpualert: Gpualert, tmp_path: Path) -> None:
    """``gpualert stop "$id"`` with an unset variable must not stop the only launch there is."""
    launch_id = launch(gpualert, *until_go(tmp_path))
    for verb in ("status", "logs", "stop"):
        done = gpualert.run(verb, "")
        assert (done.returncode, done.stdout) == (2, b"") and b"found an empty text" in done.stderr
    assert gpualert.run("attach", "").returncode == 125
    assert answer(gpualert.run("status", "--json", launch_id))["record"]["state"] == "RUNNING"
    (tmp_path / "go").touch()
    assert gpualert.run("attach", launch_id).returncode == 0


def test_a_detached_launch_survives_its_terminal(gpualert: Gpualert, tmp_path: Path) -> None:
    """The window closes right after the launch."""
    words = [
        "launch",
        "--",
        "sh",
        "-c",
        f"echo $$ > {tmp_path}/pid; sleep 0.5; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done",
    ]
    with Terminal(gpualert.argv(*words), gpualert.environment) as terminal:
        assert terminal.wait() == 0
        terminal.hang_up()
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), DEADLINE_S, "the command runs")
    assert lives(int((tmp_path / "pid").read_text()))
    (tmp_path / "go").touch()
    assert gpualert.run("attach", "sh").returncode == 0


@pytest.mark.parametrize("code", [0, 1, 2, 3, 125, 126, 127, 255])
def test_attach_ends_with_the_commands_status(gpualert: Gpualert, code: int) -> None:
    launch_id = launch(gpualert, "--", "sh", "-c", f"echo words; exit {code}")
    done = gpualert.run("attach", "-q", "--from-start", launch_id)
    assert done.returncode == code
    assert done.stdout == b"words\n" and done.stderr == b""


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 15, 34])
def test_attach_tells_a_signals_death_as_a_shell_does(gpualert: Gpualert, number: int) -> None:
    """Also of a signal without a name."""
    launch_id = launch(gpualert, "--", sys.executable, "-S", "-c", f"import os; os.kill(os.getpid(), {number})")
    assert gpualert.run("attach", "-q", launch_id).returncode == 128 + number


def test_detaching_leaves_the_command_running(gpualert: Gpualert, tmp_path: Path) -> None:
    """Ctrl-C in attach is for attach."""
    launch_id = launch(gpualert, *until_go(tmp_path, "exit 4"))
    ready(gpualert, launch_id)
    with Terminal(gpualert.argv("attach", "--from-start", launch_id), gpualert.environment) as terminal:
        terminal.expect(b"ready")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
        assert b"detached" in terminal.seen
    assert answer(gpualert.run("status", "--json", launch_id))["record"]["state"] == "RUNNING"
    (tmp_path / "go").touch()
    assert gpualert.run("attach", "-q", launch_id).returncode == 4


def test_looking_takes_the_launch_from_nobody(gpualert: Gpualert, tmp_path: Path) -> None:
    """Attach, logs and status raise no epoch: whoever follows for Airflow goes on being the one who may stop."""
    launch_id = launch(gpualert, "--", "true")
    gpualert.run("attach", launch_id)
    gpualert.run("logs", "-f", launch_id)
    assert answer(gpualert.run("status", "--json", launch_id))["record"]["epoch"] == 0


def test_attach_as_json_is_one_object_a_line(gpualert: Gpualert) -> None:
    """Log, state and at last the outcome, each with its schema version."""
    launch_id = launch(gpualert, "--", "sh", "-c", "printf 'a\\nb\\377'; exit 1")
    done = gpualert.run("attach", "--json", "--from-start", launch_id)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert {message["schema_version"] for message in messages} == {1}
    text = "".join(message["text"] for message in messages if message["type"] == "log")
    assert text.encode("utf-8", "surrogateescape") == b"a\nb\xff"
    assert messages[-1]["type"] == "ended" and messages[-1]["outcome"]["exit_code"] == 1


def test_logs_are_the_commands_own_bytes(gpualert: Gpualert) -> None:
    """Without an option nothing is changed; with one, whole lines are."""
    launch_id = launch(gpualert, "--", "sh", "-c", "printf 'one\\r\\ntwo\\377\\000\\nthree'")
    gpualert.run("attach", launch_id)
    assert gpualert.run("logs", launch_id).stdout == b"one\r\ntwo\xff\x00\nthree"
    assert gpualert.run("logs", "-n", "2", launch_id).stdout == b"two\xff\x00\nthree"
    lines = [json.loads(line) for line in gpualert.run("logs", "--json", launch_id).stdout.splitlines()]
    assert [line["offset"] for line in lines] == [0, 5, 11]
    assert lines[2]["text"] == "three" and lines[0]["schema_version"] == 1


def test_logs_carry_the_time_of_writing(gpualert: Gpualert, tmp_path: Path) -> None:
    """As far as the observer saw it; a line that nobody saw in time has dashes, not a wrong time."""
    launch_id = launch(gpualert, *until_go(tmp_path))
    log = log_of(gpualert, launch_id)
    index = log.parent / "observer" / "index"
    wait_until(lambda: index.exists() and index.read_text(), DEADLINE_S, "the observer indexes")
    (tmp_path / "go").touch()
    gpualert.run("attach", launch_id)
    assert re.fullmatch(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d ready\n", gpualert.run("logs", "-t", launch_id).stdout)


def test_a_log_can_be_read_through_head(gpualert: Gpualert) -> None:
    """A pipe that closes is no error."""
    launch_id = launch(gpualert, "--", "sh", "-c", "yes | head -n 200000")
    gpualert.run("attach", "-q", launch_id)
    line = " ".join(gpualert.argv("logs", launch_id)) + " | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], env=gpualert.environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"y\n", b"")


def test_stop_ends_the_tree(gpualert: Gpualert, tmp_path: Path) -> None:
    """And the reason is kept; STOPPED also where the command makes a 0 of it."""
    script = f"trap 'exit 0' TERM; sleep 600 & echo $! > {tmp_path}/pid; echo ready; wait"
    launch_id = launch(gpualert, "--", "sh", "-c", script)
    ready(gpualert, launch_id)
    value = answer(gpualert.run("stop", "--json", "--reason", "wrong learning rate", launch_id))
    assert value["record"]["state"] == "STOPPED" and value["record"]["stop_reason"] == "wrong learning rate"
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not lives(pid), DEADLINE_S, "its child is gone")


def test_a_stop_that_takes_longer_than_the_wait_is_not_called_done(gpualert: Gpualert, tmp_path: Path) -> None:
    """Status 1; the request stands, and is carried out."""
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    launch_id = launch(gpualert, "--grace-period", "2", "--", "sh", "-c", script)
    ready(gpualert, launch_id)
    assert gpualert.run("stop", "--wait", "0", launch_id).returncode == 1
    assert gpualert.run("attach", "-q", launch_id).returncode == 128 + signal.SIGKILL


def test_clean_says_first_and_never_touches_what_runs(gpualert: Gpualert, tmp_path: Path) -> None:
    running = launch(gpualert, *until_go(tmp_path))
    ended = launch(gpualert, "--", "true")
    gpualert.run("attach", ended)

    plan = answer(gpualert.run("clean", "--older-than", "0", "--dry-run", "--json"))
    assert plan["dry_run"] is True and [item["launch_id"] for item in plan["removed"]] == [ended]
    assert len(answer(gpualert.run("list", "--json"))["launches"]) == 2
    assert b"1 launch(es)" in gpualert.run("clean", "--older-than", "0").stdout
    (left,) = answer(gpualert.run("list", "--json"))["launches"]
    assert left["launch_id"] == running
    (tmp_path / "go").touch()


def test_secrets_are_not_on_disk(gpualert: Gpualert, tmp_path: Path) -> None:
    """A value named by --secret-env reaches the command and no file of ours."""
    environment = {**gpualert.environment, "TOKEN": "hunter2-hunter2"}
    words = ["launch", "--secret-env", "TOKEN", "--", "sh", "-c", 'test "${#TOKEN}" = 15']
    done = gpualert.run(*words, env=environment)
    assert done.returncode == 0, done.stderr
    assert gpualert.run("attach", "-q", done.stdout.decode().strip()).returncode == 0
    for path in gpualert.root.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert b"not set here" in gpualert.run("launch", "--secret-env", "ABSENT", "--", "true").stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("status", "nosuch"), 2, b"nosuch"),
        (("stop", "nosuch"), 2, b"nosuch"),
        (("logs", "nosuch"), 2, b"nosuch"),
        (("attach", "nosuch"), 125, b"nosuch"),
        (("launch",), 2, b"command"),
        (("launch", "--cwd", "/nonexistent", "--", "true"), 2, b"/nonexistent"),
        (("launch", "--deadline", "0", "--", "true"), 2, b"deadline_s"),
        (("launch", "--stop-signal", "SIGKILL", "--", "true"), 2, b"stop_signal"),
        (("launch", "--env", "A B=1", "--", "true"), 2, b"env"),
        (("launch", "--environment", "pip:x", "--", "true"), 2, b"environment"),
        (("launch", "--spec", "/nonexistent.json"), 2, b"/nonexistent.json"),
        (("frobnicate",), 2, b"frobnicate"),
        ((), 2, b"VERB"),
        (("doctor", "gpu_box"), 2, b"airflow-provider-gpualert"),
        (("clean", "--older-than", "yesterday"), 2, b"duration"),
        (("logs", "-n", "-3", "x"), 2, b""),
    ],
)
def test_what_cannot_be_done_is_one_line_on_stderr(
    gpualert: Gpualert, words: tuple[str, ...], status: int, says: bytes
) -> None:
    done = gpualert.run(*words)
    assert done.returncode == status, done.stderr
    assert done.stdout == b""
    assert says in done.stderr and done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"gpualert: ")
    assert gpualert.run_directories() == []


def test_a_beginning_that_is_not_unique_names_the_candidates(gpualert: Gpualert) -> None:
    first, second = launch(gpualert, "--", "true"), launch(gpualert, "--", "true")
    done = gpualert.run("status", "true")
    assert done.returncode == 2
    assert first.encode() in done.stderr and second.encode() in done.stderr
    assert gpualert.run("status", first[:12]).returncode == 0


def test_doctor_examines_this_host(gpualert: Gpualert) -> None:
    value = answer(gpualert.run("doctor", "--json"))
    names = [finding["name"] for finding in value["findings"]]
    assert names[0] == "python" and "root" in names and "clock" in names
    assert value["worst"] in ("ok", "warning", "problem", "unknown")
    assert not gpualert.root.exists()


def test_any_encoding_of_the_terminal_will_do(gpualert: Gpualert) -> None:
    """What it cannot show is written as an escape."""
    environment = {**gpualert.environment, "PYTHONIOENCODING": "ascii"}
    launch_id = launch(gpualert, "--label", "größer", "--", "true")
    assert b"gr\\xf6\\xdfer" in gpualert.run("status", launch_id, env=environment).stdout
    assert gpualert.run("doctor", env=environment).stderr == b""


def test_an_observer_can_be_started_by_hand(gpualert: Gpualert) -> None:
    """For a launch whose own was killed for good."""
    launch_id = launch(gpualert, "--", "sh", "-c", "echo MemoryError; exit 1")
    gpualert.run("attach", "-q", launch_id)
    assert gpualert.run("observe", str(gpualert.run_directory())).returncode == 0
    verdict = json.loads((gpualert.run_directory() / "observer" / "verdict.json").read_text())
    assert verdict["failure_class"] == "ram_oom"


def test_classify_judges_any_log(gpualert: Gpualert, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    done = gpualert.run("classify", "--json", "--exit-code", "1", str(tmp_path / "train.log"))
    assert answer(done)["failure_class"] == "cuda_oom"


def test_the_version_is_told(gpualert: Gpualert) -> None:
    assert re.fullmatch(rb"gpualert \d+\.\d+\.\d+\S*\n", gpualert.run("--version").stdout)


def test_the_package_folder_can_be_executed(gpualert: Gpualert) -> None:
    """Isolated and without site-packages, as on a GPU host."""
    folder = Path(__file__).resolve().parents[2] / "gpualert"
    environment = {name: value for name, value in gpualert.environment.items() if name != "PYTHONPATH"}
    for words, status in ((("run", "-q", "--", "sh", "-c", "exit 9"), 9), (("list",), 0)):
        argv = [sys.executable, "-I", "-S", str(folder), *words]
        done = subprocess.run(argv, env=environment, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == status, done.stderr
    assert os.path.isdir(gpualert.root)


def test_a_threat_at_logout_stands_in_the_record(gpualert: Gpualert) -> None:
    """Where logind would take a training's shared memory and we may not prevent it, the launch says so."""
    code = (
        "import sys\n"
        "from gpualert import cli, survival\n"
        "survival.prepare = lambda: ['RemoveIPC: shared memory goes at logout']\n"
        "sys.exit(cli.main(['launch', '--', 'true']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=gpualert.environment, capture_output=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0
    assert done.stderr == b"gpualert: warning: RemoveIPC: shared memory goes at logout\n"
    record = answer(gpualert.run("status", "--json", "true"))["record"]
    assert record["warnings"] == ["RemoveIPC: shared memory goes at logout"]


def test_status_carries_out_what_dead_keepers_cannot(gpualert: Gpualert) -> None:
    """Supervisor and guard were killed, then the deadline passed: whoever looks stops the launch."""
    launch_id = launch(gpualert, "--deadline", "1h", "--", "sleep", "600")
    directory = log_of(gpualert, launch_id).parent
    started = json.loads((directory / "started.json").read_text())
    for keeper in ("guard", "supervisor"):
        os.kill(started[keeper]["pid"], signal.SIGKILL)
        wait_until(lambda: not lives(started[keeper]["pid"]), DEADLINE_S, "the keeper is dead")  # noqa: B023
    spec = directory / "spec.json"  # as if the hour were over
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "deadline_s": 0.01}))

    def state() -> str:
        return str(answer(gpualert.run("status", "--json", launch_id))["record"]["state"])

    wait_until(lambda: state() == "TIMED_OUT", DEADLINE_S, "the deadline was carried out")
    assert not lives(started["child"]["pid"])


@pytest.mark.parametrize("words", [("classify", "-"), ("launch", "--spec", "-")])
def test_a_closed_standard_input_is_named(gpualert: Gpualert, words: tuple[str, ...]) -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *gpualert.argv(*words)]
    done = subprocess.run(closed, env=gpualert.environment, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and b"standard input, found it closed" in done.stderr


def test_a_place_that_was_passed_over_is_told(gpualert: Gpualert, tmp_path: Path) -> None:
    """Once, whatever becomes of the command: its log is not where it was asked to be."""
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    for script in ("exit 0", "exit 3"):
        done = gpualert.run("run", "--root", str(tmp_path / "open"), "--", "sh", "-c", script)
        assert done.stderr.count(b"passed over") == 1 and b"expected mode 0700, found 0755" in done.stderr
        assert gpualert.run("run", "-q", "--root", str(tmp_path / "open"), "--", "sh", "-c", script).stderr == b""
    record = json.loads(gpualert.run("list", "--json").stdout)["launches"][-1]
    assert any("passed over" in warning for warning in record["warnings"])


@pytest.mark.parametrize("verb", ["run", "launch"])
def test_a_deleted_working_directory_is_named(gpualert: Gpualert, tmp_path: Path, verb: str) -> None:
    gone = ["sh", "-c", f'mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$@"', "sh"]
    words = [*gone, *gpualert.argv(verb, "--", "true")]
    done = subprocess.run(words, env=gpualert.environment, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == (125 if verb == "run" else 2)
    assert b"cwd: expected a folder, found that the current one was deleted" in done.stderr


def test_what_a_test_leaves_running_is_ended(gpualert: Gpualert, tmp_path: Path) -> None:
    """The fixture's own promise: a failed test leaves no training behind."""
    launch(gpualert, "--", "sh", "-c", f"trap '' TERM; echo $$ > {tmp_path}/pid; sleep 600 & sleep 600; wait")
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), DEADLINE_S, "the command runs")
    gpualert.end_all()

    wait_until(lambda: not lives(int((tmp_path / "pid").read_text())), DEADLINE_S, "the command is gone")
