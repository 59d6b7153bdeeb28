"""Two hundred trainings with random ends, while links are cut, sshds restarted and triggerers killed at random.

Bounded and seeded: GPUALERT_TEST_SEED runs one of them again. What is random is when things happen; what must be
true in the end is not.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpualert_provider.hooks.blocking import open_session
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.triggers.training import GpuTrainingTrigger
from tests.support.sessions import launch_request, target_of
from tests.support.sshd import SshHost
from tests.support.waiting import wait_until
from tools.rig import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]
ROOT = Path(__file__).resolve().parents[2]
TRAININGS = 200
AT_ONCE = 40
BOUND_S = 540
#: A triggerer process takes some seconds to import; shorter lives than that prove nothing.
LIFE_S = (8.0, 20.0)
#: What was printed so long before a triggerer's death may be printed again by the next: it had not been acknowledged,
#: or the link was cut on which it was, and there was no other one yet.
UNSURE_S = 10.0


@dataclass(frozen=True)
class Plan:
    """How one training goes, by its own will."""

    number: int
    host: int
    lines: int
    pause_s: float
    end: str

    @property
    def command(self) -> str:
        loop = f'for i in $(seq 1 {self.lines}); do echo "{self.number} line $i"; sleep {self.pause_s}; done'
        return f"{loop}; {self.end}" if self.lines else f"sleep {self.pause_s * 10}; {self.end}"

    @property
    def log(self) -> str:
        return "".join(f"{self.number} line {i}\n" for i in range(1, self.lines + 1))


def plans(chance: random.Random) -> list[Plan]:
    ends = [*(f"exit {code}" for code in (0, 0, 0, 1, 3, 137, 255)), "kill -KILL $$", "kill -SEGV $$", "kill -ABRT $$"]
    return [
        Plan(
            number,
            chance.randrange(2),
            chance.choice((0, 0, 1, 10, 50, 100, 1000)),
            chance.choice((0.0, 0.01, 0.05, 0.1)) if number % 7 else 0.2,
            f"ulimit -c 0; {chance.choice(ends)}",
        )
        for number in range(TRAININGS)
    ]


class World:
    """Two hosts, one folder of stored triggers, and one triggerer process at a time."""

    def __init__(self, hosts: list[SshHost], folder: Path, chance: random.Random) -> None:
        self.hosts, self.folder, self.chance = hosts, folder, chance
        self.stored: dict[str, dict[str, object]] = {}
        self.by_id: dict[str, Plan] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths: dict[int, float] = {}
        self.cuts = self.restarts = 0
        for name in ("lines", "events"):
            (folder / name).mkdir()

    def launch(self, plan: Plan) -> None:
        """As a try does it, again and again with the same request."""
        request = launch_request(plan.command, f"job{plan.number}")

        def launched() -> dict[str, object] | None:
            with open_session(target_of(self.hosts[plan.host], conn_timeout=5), tries=1) as session:
                return dict(session.call(request)["record"])

        record = wait_until(launched, 60, f"{plan.number} is launched", ignore=(TransportError,), interval_s=0.3)
        launch_id = str(record["launch_id"])
        self.by_id[launch_id] = plan
        _, self.stored[launch_id] = GpuTrainingTrigger(
            f"host{plan.host}",
            f"host{plan.host}",
            launch_id,
            machine_id=record["machine_id"],
            boot_id=record["boot_id"],
            hold_s=0.0,
            log_path=record["log_path"],
        ).serialize()

    def start_triggerer(self) -> None:
        (self.folder / "triggers.json").write_text(json.dumps(self.stored))
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'provider'}"}
        for number, host in enumerate(self.hosts):
            value = host.airflow_connection_json(look_for_keys=False, conn_timeout=5, keepalive_interval=2)
            environment[f"AIRFLOW_CONN_HOST{number}"] = value
        command = [sys.executable, "-m", "tests.faults.triggerer_process", str(self.folder)]
        log = self.folder / "triggerer.log"
        self.process = processes.start(command, log, env=environment, cwd=ROOT)

    def kill_triggerer(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.deaths[self.process.pid] = time.time()

    @property
    def heard(self) -> dict[str, dict[str, object]]:
        paths = [path for path in (self.folder / "events").iterdir() if not path.name.startswith(".")]
        return {path.name: json.loads(path.read_text()) for path in paths}

    def trouble(self) -> None:
        """Something goes wrong with one of the links."""
        host = self.chance.choice(self.hosts)
        if self.chance.random() < 0.7:
            self.cuts += bool(host.kill_sessions())
        else:
            host.stop()
            time.sleep(self.chance.random())
            host.start()
            self.restarts += 1


@pytest.fixture
def world(ssh_host: SshHost, ssh_host_with: Callable[..., SshHost], tmp_path: Path) -> Iterator[World]:
    seed = int(os.environ.get("GPUALERT_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"GPUALERT_TEST_SEED={seed}")
    world = World([ssh_host, ssh_host_with(username=ssh_host.username)], tmp_path, random.Random(seed))
    yield world
    world.kill_triggerer()


def test_what_is_told_in_the_end_is_true(world: World) -> None:
    """Every end is told as it was, every training ran once, every line is in a task log, and nothing is left."""
    waiting = plans(world.chance)
    until = time.monotonic() + BOUND_S
    while waiting or len(world.heard) < len(world.stored):
        assert time.monotonic() < until, f"{len(world.heard)} of {TRAININGS} ends were heard: {last_words(world)}"
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        with ThreadPoolExecutor(4) as pool:
            launched = [pool.submit(world.launch, plan) for plan in batch]
            time.sleep(world.chance.random())
            if batch:
                world.trouble()  # in the middle of the launches
            for future in launched:
                future.result()
        world.start_triggerer()
        assert world.process is not None
        life_ends = time.monotonic() + world.chance.uniform(*LIFE_S)
        while time.monotonic() < life_ends and world.process.poll() is None:
            time.sleep(world.chance.uniform(0.5, 2.5))
            if waiting or batch:  # in the end there is peace, or it would never end
                world.trouble()
        if waiting or batch:
            world.kill_triggerer()
        else:
            world.process.wait(max(1.0, until - time.monotonic()))

    assert len(world.deaths) >= 3 and world.cuts >= 3, (
        f"too little went wrong: {len(world.deaths)} deaths, {world.cuts} cuts"
    )
    wrong = {plan.number: why for launch_id, plan in world.by_id.items() if (why := fault_of(world, launch_id, plan))}
    assert wrong == {}
    silent = [launch_id for launch_id in world.by_id if not end_acknowledged(world, launch_id)]
    # The last word may be lost with its link or its triggerer; each takes along what was on its way.
    assert len(silent) <= TRAININGS // 10, f"{len(silent)} ends were not acknowledged"
    assert len(world.by_id) == TRAININGS


def fault_of(world: World, launch_id: str, plan: Plan) -> str | None:
    """What is not as it has to be with one training."""
    outcome = world.heard[launch_id]["outcome"]
    assert isinstance(outcome, dict)
    expected = expected_end(plan)
    if (outcome["exit_code"], outcome["signal"]) != expected:
        return f"{plan.end}: expected {expected}, found {outcome['state']} {outcome['exit_code']} {outcome['signal']}"
    if Path(outcome["log_path"]).read_text() != plan.log:
        return "its log is not what it wrote"
    if len(list(Path(outcome["run_directory"]).parent.glob("*.claim"))) != 1:
        return "it was launched more than once"
    if any(launch_id in path.read_bytes().decode(errors="replace") for path in environments()):
        return "a process of it is left"
    return fault_of_lines(world, launch_id, plan)


def end_acknowledged(world: World, launch_id: str) -> bool:
    outcome = world.heard[launch_id]["outcome"]
    assert isinstance(outcome, dict)
    ack = Path(outcome["run_directory"]) / "ack.json"
    return ack.exists() and bool(json.loads(ack.read_text())["ended"])


def fault_of_lines(world: World, launch_id: str, plan: Plan) -> str | None:
    """Over all triggerers every line at least once, in order, and repeated only around a triggerer's death."""
    printed: dict[int, tuple[float, int]] = {}  # line: when it was last printed, and by whom
    for path in sorted((world.folder / "lines").glob(f"{launch_id}.*"), key=lambda path: path.stat().st_mtime):
        pid = int(path.suffix[1:])
        found = re.findall(rf"^([\d.]+)\t{plan.number} line (\d+)$", path.read_text(), re.M)
        numbers = [int(number) for _, number in found]
        if numbers != sorted(set(numbers)):
            return f"{path.name}: one triggerer printed a line twice, or out of order"
        for number in numbers:
            if number in printed:
                at, by = printed[number]
                if (before := world.deaths[by] - at) > UNSURE_S:
                    return f"line {number} was repeated, though printed {before:.1f} s before its triggerer's death"
        printed.update((int(number), (float(at), pid)) for at, number in found)
    missing = set(range(1, plan.lines + 1)) - printed.keys()
    return f"lines are in no task log: {sorted(missing)[:10]}" if missing else None


def expected_end(plan: Plan) -> tuple[int | None, str | None]:
    kind, value = plan.end.rsplit("; ", 1)[1].split(" ")[:2]
    return (int(value), None) if kind == "exit" else (None, f"SIG{value.removeprefix('-')}")


def environments() -> Iterator[Path]:
    for entry in filter(str.isdigit, os.listdir("/proc")):
        path = Path(f"/proc/{entry}/environ")
        try:
            path.read_bytes()
        except OSError:
            continue
        yield path


def last_words(world: World) -> str:
    path = world.folder / "triggerer.log"
    return path.read_text(errors="replace")[-1500:] if path.exists() else "the triggerer said nothing"
