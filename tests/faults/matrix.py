"""The faults, and what has to be true after each of them, phase by phase."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from tests.faults.world import ENDING, LAUNCHING, NOISY, PHASES, SILENT, Fault, World
from tests.support.waiting import wait_until

#: What the log must be: what the child wrote; the same up to the fault (the child's own later writes failed, or it
#: was killed while it wrote); what it wrote after the cut; gone with its folder.
WHOLE, BEGINNING, REST, GONE = "whole", "up to the fault", "from the cut on", "gone"


@dataclass(frozen=True)
class Expected:
    """
    :param state: as the event tells it; None: nothing was launched, and the try was told why.
    :param failure_class: of the outcome.
    :param left: processes of the training that live on when the event has come.
    :param refused: kind of the error that the launching try got.
    """

    state: str | None = "FAILED"
    failure_class: str | None = "unknown"
    log: str = WHOLE
    launches: int = 1
    left: int = 0
    refused: str | None = None

    def words(self) -> str:
        """For the table."""
        if self.state is None:
            return f"not launched: `{self.refused}`"
        said = f"{self.state}, {self.failure_class or 'no class'}; log {self.log}"
        return f"{said}; {self.left} left" if self.left else said


@dataclass(frozen=True)
class Row:
    """One fault: what it is called, how it is done, and what is expected in each phase."""

    fault: Fault
    expected: Mapping[str, Expected]


def everywhere(expected: Expected = Expected(), **phases: Expected) -> dict[str, Expected]:
    words = {"launching": LAUNCHING, "silent": SILENT, "noisy": NOISY, "ending": ENDING}
    return {**dict.fromkeys(PHASES, expected), **{words[name]: value for name, value in phases.items()}}


class Cable(Fault):
    def __init__(self, how: str, *arguments: int) -> None:
        self.how, self.arguments = how, arguments

    def begin(self, world: World) -> None:
        getattr(world.machine, self.how)(*self.arguments)

    def end(self, world: World) -> None:
        world.machine.heal()


class Away(Cable):
    """For longer than anybody is patient."""

    patience_s = 4.0
    lasts_s = 12.0

    def after(self, world: World) -> None:
        wait_until(lambda: not any(map(world.left, (SILENT, NOISY, ENDING))), 30, "the trainings end by themselves")


class Sshd(Fault):
    def begin(self, world: World) -> None:
        world.machine.enter("sh", "-c", "kill -9 $(pgrep -x sshd)")

    def end(self, world: World) -> None:
        world.machine.enter("/usr/sbin/sshd", "-f", f"{world.machine.folder}/sshd_config", "-E", str(world.machine.log))


class Reboot(Fault):
    lasts_s = 1.0

    def begin(self, world: World) -> None:
        world.machine.drop()

    def end(self, world: World) -> None:
        training = world.trainings[ENDING]
        wait_until(lambda: world.there(training, "observer/verdict.json"), 30, "the ended training was judged")
        world.machine.reboot()


class Freeze(Fault):
    lasts_s = 8.0
    ends_while_it_lasts = False

    def begin(self, world: World) -> None:
        world.machine.freeze()

    def end(self, world: World) -> None:
        world.machine.thaw()


class FullDisk(Fault):
    root_on_small_disk = True

    def begin(self, world: World) -> None:
        world.machine.fill_disk()


class ReadOnly(Fault):
    root_on_small_disk = True

    def begin(self, world: World) -> None:
        # A mount with files open for writing cannot be made read-only: one over it can, for all who come by its name.
        world.machine.enter("mount", "--bind", str(world.machine.disk), str(world.machine.disk))
        world.machine.enter("mount", "-o", "remount,ro,bind", str(world.machine.disk))

    def end(self, world: World) -> None:
        world.machine.enter("umount", str(world.machine.disk))


class Deleted(Fault):
    launches_while_it_lasts = False
    ends_while_it_lasts = False

    def begin(self, world: World) -> None:
        for training in world.trainings.values():
            folder = training.run_directory.rsplit("/", 1)[0]
            # Its observer and follower may make a file in it meanwhile.
            world.machine.enter("sh", "-c", f"rm -rf {folder} || rm -rf {folder} || rm -rf {folder}")

    def after(self, world: World) -> None:
        wait_until(lambda: not any(map(world.left, PHASES)), 30, "the trainings end by themselves")


class Truncated(Fault):
    launches_while_it_lasts = False
    ends_while_it_lasts = False

    def begin(self, world: World) -> None:
        for training in world.trainings.values():
            world.machine.enter("truncate", "-s", "0", f"{training.run_directory}/log")


class Killed(Fault):
    """Each of these, of every training, by SIGKILL, in this order."""

    launches_while_it_lasts = False
    lasts_s = 2.0

    def __init__(self, *who: str) -> None:
        self.who = who

    def begin(self, world: World) -> None:
        for training in world.trainings.values():
            pids = [str(world.pid(training, who)) for who in self.who]
            world.machine.enter("kill", "-9", *pids)


class OtherTriggerer(Fault):
    """The triggerer goes away in the middle, and another one has the triggers from what was stored."""

    ends_while_it_lasts = True

    def begin(self, world: World) -> None:
        loop = next(iter(world.running.values())).get_loop()

        async def gone() -> None:
            for task in world.running.values():
                task.cancel()
            await asyncio.gather(*world.running.values(), return_exceptions=True)
            world.running.clear()

        asyncio.run_coroutine_threadsafe(gone(), loop).result(30)
        self.loop = loop

    def end(self, world: World) -> None:
        async def again() -> None:
            for phase in (SILENT, NOISY, ENDING):
                world.follow(phase)

        asyncio.run_coroutine_threadsafe(again(), self.loop).result(30)


class Stopped(Fault):
    """Somebody asks for a stop."""

    launches_while_it_lasts = False
    ends_while_it_lasts = False
    lasts_s = 0.0

    def begin(self, world: World) -> None:
        for training in world.trainings.values():
            if training.phase != ENDING:
                world.stop(training)


class SecondTry(Fault):
    """Another try asks for the same training while the first one's lives."""

    lasts_s = 0.0
    launches_while_it_lasts = False
    ends_while_it_lasts = False

    def begin(self, world: World) -> None:
        for training in world.trainings.values():
            assert world.launch_again(training) == "existing"


LOST_BY_KEEPERS = Expected("LOST", "unknown")
MATRIX: dict[str, Row] = {
    "cable pulled and plugged in again": Row(Cable("cut"), everywhere()),
    "packets vanish for a while": Row(Cable("drop"), everywhere()),
    "connections are reset for a while": Row(Cable("refuse"), everywhere()),
    "every tenth packet is lost": Row(Cable("lose", 10), everywhere()),
    "host away for longer than patience": Row(
        Away("drop"),
        everywhere(
            Expected("UNREACHABLE", None),
            launching=Expected(None, refused="timeout", launches=0),
        ),
    ),
    "sshd killed and started again": Row(Sshd(), everywhere()),
    "host rebooted": Row(
        Reboot(),
        everywhere(
            Expected("LOST", "node_failure"),
            launching=Expected(),
            noisy=Expected("LOST", "node_failure", BEGINNING),
            ending=Expected(),
        ),
    ),
    "host frozen and thawed": Row(Freeze(), everywhere()),
    "disk full": Row(
        FullDisk(),
        everywhere(
            noisy=Expected(log=BEGINNING),
            launching=Expected(None, refused="disk", launches=0),
        ),
    ),
    "disk read-only for a while": Row(ReadOnly(), everywhere()),
    "run directory deleted": Row(Deleted(), everywhere(Expected("LOST", "unknown", GONE, launches=0))),
    "log truncated": Row(Truncated(), everywhere(Expected(log=REST))),
    "another triggerer takes over": Row(OtherTriggerer(), everywhere()),
    "stop asked for": Row(Stopped(), everywhere(Expected("STOPPED", "interrupted", BEGINNING), ending=Expected())),
    "second try while the first one's training lives": Row(SecondTry(), everywhere()),
}
for _many in range(1, 4):
    for _who in itertools.combinations(("guard", "supervisor", "observer"), _many):
        _blind = "guard" in _who and "supervisor" in _who
        MATRIX[f"{', '.join(_who)} killed"] = Row(Killed(*_who), everywhere(LOST_BY_KEEPERS if _blind else Expected()))
