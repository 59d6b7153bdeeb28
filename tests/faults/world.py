"""A machine with four trainings in four phases, what follows them, and what became of each.

Every training writes its lines twice: to its log, and to a witness file of its own. The witness is compared with the
log in the end; it is what the child wrote.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert.key import Attempt, LaunchKey
from gpualert.outcome import Outcome
from gpualert.protocol import HostError
from gpualert.spec import LaunchSpec
from gpualert_provider.hooks.blocking import open_session
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.triggers.training import GpuTrainingTrigger
from tests.support.sessions import target_of
from tests.support.triggering import Log, Triggerer
from tests.support.waiting import wait_until
from tools.rig.machine import Machine

#: The phases in which a fault meets a training.
PHASES = ("during launch", "running, silent", "running, noisy", "at the end")
LAUNCHING, SILENT, NOISY, ENDING = PHASES
#: All trainings end by themselves with this status, unless something ends them.
EXIT_CODE = 3

_SAY = 'say() { echo "$1"; echo "$1" >> "$WITNESS"; }\n'
_WAIT = "while [ ! -e ~/gate ]; do sleep 0.1; done\n"
COMMANDS: Mapping[str, str] = {
    LAUNCHING: f"{_SAY}say begin\n{_WAIT}exit {EXIT_CODE}",
    SILENT: f"{_SAY}say begin\n{_WAIT}exit {EXIT_CODE}",
    NOISY: f"""{_SAY}n=0
while [ ! -e ~/gate ]; do n=$((n+1)); say "step $n {"." * 200}"; sleep 0.02; done
exit {EXIT_CODE}""",
    ENDING: f"{_SAY}say begin\nwhile [ ! -e ~/end ]; do sleep 0.05; done\nsay last\nexit {EXIT_CODE}",
}


@dataclass
class Training:
    """One training: its launch, and what was heard of it."""

    phase: str
    key: LaunchKey
    record: Mapping[str, Any] | None = None
    refused: GpuAlertError | None = None
    outcome: Outcome | None = None
    logs: list[Log] = field(default_factory=list)

    @property
    def launch_id(self) -> str:
        assert self.record is not None, f"{self.phase}: nothing was launched"
        return str(self.record["launch_id"])

    @property
    def run_directory(self) -> str:
        assert self.record is not None
        return str(self.record["run_directory"])


@dataclass
class World:
    """
    :param connect: names the machine under the connection ``gpu_box``.
    :param root: for run directories; None for the account's home.
    """

    machine: Machine
    connect: Callable[[Any], None]
    root: str | None = None
    patience_s: float = 120.0
    trainings: dict[str, Training] = field(default_factory=dict)
    triggerer: Triggerer | None = None
    running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    #: what each training had written when the fault began
    before: dict[str, bytes] = field(default_factory=dict)

    # ---- on the machine

    @property
    def home(self) -> Path:
        """The account's home, seen from outside."""
        return self.machine.folder / "home"

    def witness(self, phase: str) -> bytes:
        path = self.home / f"witness-{PHASES.index(phase)}"
        return path.read_bytes() if path.exists() else b""

    def log(self, phase: str) -> bytes | None:
        """What lies on the machine; None when it is gone."""
        return self.read(f"{self.trainings[phase].run_directory}/log")

    def read(self, path: str) -> bytes | None:
        try:
            return self.machine.enter("cat", path).encode()
        except RuntimeError:
            return None

    def there(self, training: Training, name: str) -> bool:
        return self.read(f"{training.run_directory}/{name}") is not None

    def pid(self, training: Training, who: str) -> int:
        """As the machine sees it: ``child``, ``supervisor``, ``guard`` or ``observer``."""
        name, file = ("observer", "observer/scan.json") if who == "observer" else (who, "started.json")

        def found() -> int | None:
            data = self.read(f"{training.run_directory}/{file}")
            identity = None if data is None else json.loads(data).get(name)
            return None if identity is None else int(identity["pid"])

        return int(wait_until(found, 30, f"{training.phase}: the {who} has said who it is"))

    def launches(self, phase: str) -> int:
        """How many launches of its key the machine knows, whatever root they lie in."""
        roots = {self.root, f"{self._inside_home}/.local/state/gpualert"} - {None}
        name = self.trainings[phase].key.directory_name
        folders = " ".join(f"{root}/launches/{name}" for root in roots)
        found = self.machine.enter("sh", "-c", f"ls {folders} 2>/dev/null | grep '[.]claim$' | sort -u | wc -l")
        return int(found.strip())

    def left(self, phase: str) -> int:
        """Processes of the training that are still there."""
        if self.trainings[phase].record is None:
            return 0
        tag = f"GPUALERT_LAUNCH_ID={self.trainings[phase].launch_id}"
        script = f"grep -lz '^{tag}$' /proc/[0-9]*/environ 2>/dev/null | wc -l"
        return int(self.machine.enter("sh", "-c", script).strip())

    @property
    def _inside_home(self) -> Path:
        return Path(f"~{self.machine.username}").expanduser()

    # ---- launching

    def request(self, training: Training, attempt: int = 1) -> dict[str, Any]:
        witness = f"{self._inside_home}/witness-{PHASES.index(training.phase)}"
        spec = LaunchSpec(
            command=COMMANDS[training.phase], env={"WITNESS": witness}, grace_period_s=2.0, root=self.root
        )
        return protocol.launch_request(training.key, Attempt(attempt, f"try-{attempt}"), spec)

    def launch(self, phase: str, deadline_s: float = 60.0) -> Training:
        """As a try does it: the same request again until the host has answered."""
        training = self.trainings[phase] = Training(phase, LaunchKey(["faults", secrets.token_hex(8), phase], "train"))
        until = time.monotonic() + deadline_s
        while True:
            try:
                with open_session(target_of(self.machine, conn_timeout=3), root=self.root, tries=1) as session:
                    training.record = session.call(self.request(training), timeout_s=20)["record"]
                return training
            except HostError as error:
                training.refused = error
                return training
            except TransportError as error:
                training.refused = error
                if time.monotonic() > until:
                    return training
            time.sleep(0.5)

    def launch_again(self, training: Training) -> str:
        """As the next try would ask for it; what the host answers."""
        with open_session(target_of(self.machine), root=self.root) as session:
            return str(session.call(self.request(training, 2))["type"])

    def stop(self, training: Training) -> None:
        with open_session(target_of(self.machine), root=self.root) as session:
            request = protocol.stop_request(launch_id=training.launch_id, reason="a user", who="test", wait_s=0.0)
            session.call(request)

    # ---- following

    def follow(self, phase: str) -> None:
        """A trigger, as the triggerer makes it from what was stored at the deferral."""
        training = self.trainings[phase]
        assert training.record is not None and self.triggerer is not None
        trigger = GpuTrainingTrigger(
            "gpu_box",
            "gpu-1",
            training.launch_id,
            machine_id=training.record["machine_id"],
            boot_id=training.record["boot_id"],
            hold_s=0.0,
            patience_s=self.patience_s,
            root=self.root,
            log_path=training.record["log_path"],
        )
        task, log = self.triggerer.start(trigger)
        training.logs.append(log)
        self.running[phase] = task

    async def heard(self) -> None:
        """Until every trigger has fired its event."""
        assert self.triggerer is not None
        async with asyncio.timeout(150):
            await asyncio.gather(*self.running.values())
        for event in self.triggerer.events():
            for training in self.trainings.values():
                if training.record is not None and training.launch_id == event["launch_id"]:
                    training.outcome = Outcome.from_json(event["outcome"])


class Fault:
    """
    Something that goes wrong. ``begin`` and ``end`` run beside the followers; ``end`` puts right what can be.

    :ivar ends_while_it_lasts: the ending training can end, and is waited for, before the fault is over.
    :ivar launches_while_it_lasts: a launch is tried in the moment in which the fault begins; else right before it.
    """

    ends_while_it_lasts = True
    launches_while_it_lasts = True
    lasts_s = 4.0
    patience_s = 120.0
    root_on_small_disk = False

    def begin(self, world: World) -> None:
        raise NotImplementedError

    def end(self, world: World) -> None:
        """Nothing to put right."""

    def after(self, world: World) -> None:
        """When every event has come."""


def run_through(world: World, fault: Fault) -> None:
    """All four trainings, the fault, and what is heard of each in the end."""
    world.patience_s = fault.patience_s
    if fault.root_on_small_disk:
        world.root = f"{world.machine.disk}/root"
    world.connect(world.machine)
    for phase in (SILENT, NOISY, ENDING):
        assert world.launch(phase).record is not None, world.trainings[phase].refused
    asyncio.run(_story(world, fault))


async def _story(world: World, fault: Fault) -> None:
    world.triggerer = Triggerer()
    for phase in (SILENT, NOISY, ENDING):
        world.follow(phase)
    followed = lambda: all(t.logs[-1].training_lines for t in world.trainings.values() if t.logs)  # noqa: E731
    await asyncio.to_thread(wait_until, followed, 60, "all trainings are followed")
    await asyncio.to_thread(_strike, world, fault)
    if world.trainings[LAUNCHING].record is not None:
        world.follow(LAUNCHING)
    await asyncio.to_thread((world.home / "gate").touch)
    await world.heard()
    await asyncio.to_thread(fault.after, world)


def _strike(world: World, fault: Fault) -> None:
    if not fault.launches_while_it_lasts:
        world.launch(LAUNCHING)
    if not fault.ends_while_it_lasts:
        (world.home / "end").touch()
    # The last line may stand in the witness and not yet in the log, or the other way round.
    world.before = {phase: world.witness(phase)[:-400] for phase in PHASES}
    fault.begin(world)
    launcher = threading.Thread(target=world.launch, args=(LAUNCHING, 60.0 if fault.patience_s > 30 else 8.0))
    if fault.launches_while_it_lasts:
        launcher.start()
    (world.home / "end").touch()
    if fault.ends_while_it_lasts:
        wait_until(lambda: b"last\n" in world.witness(ENDING), 30, "the ending training has said its last word")
    time.sleep(fault.lasts_s)  # so long does the fault last: it is what is tested, not a wait for something
    fault.end(world)
    if fault.launches_while_it_lasts:
        launcher.join(90)
        assert not launcher.is_alive(), "the launch was neither made nor given up"
