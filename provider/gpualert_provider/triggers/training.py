"""What watches a training from the triggerer: follow one launch, print its log, and say once how it ended.

Nothing that happens here can hurt the training: it runs on its host whether somebody watches or not. So every trouble
with
the link is patience, not failure; and because Airflow calls ``on_kill`` also when it merely moves a trigger to another
triggerer, the task's own state is asked before the host is told to stop anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import os
import random
import time
import traceback
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from gpualert import protocol
from gpualert.errors import GpuAlertError
from gpualert.outcome import Outcome
from gpualert.protocol import Frame, HostError
from gpualert.records import RunState
from gpualert_provider.hooks import connections
from gpualert_provider.hooks.errors import TransportError
from gpualert_provider.hooks.streaming import StreamingSession
from gpualert_provider.hooks.target import SshTarget
from gpualert_provider.redaction import Redactor
from gpualert_provider.tasklog import CEILING_BYTES, RECORD_BYTES, Position, Record, TaskLogWriter, log_budget
from gpualert_provider.triggers.link_watch import LinkWatch
from gpualert_provider.triggers.press import press
from gpualert_provider.triggers.undisturbed import undisturbed
from gpualert_provider.unseen import unseen_outcome

#: Airflow gives ``on_kill`` 30 s by default.
ON_KILL_BUDGET_S = 25.0
#: How long the host may take to stop the training before it answers "stopping"; the stop itself is durable.
_STOP_WAIT_S = 5.0
_TICK_S = 0.5
#: How long an acknowledgement may keep a session from being closed.
_LAST_WORD_S = 2.0
#: Another machine, or one with another boot id that does not know the launch: wait so long for the right one, since one
#: name may lead to several machines, and clones of an image may even share a machine id.
_DOUBT_S = 600.0
#: A worker's and a triggerer's clock may differ by so much.
_CLOCK_SKEW_S = 120.0
#: Errors of our own making are tried again this often before they are shown to Airflow.
_OWN_FAULTS = 5
#: States in which nobody else will look after the launch: it must be stopped. Not "deferred" (the trigger only moved),
#: and not what follows a clear (the new try deals with the launch).
_GIVEN_UP = frozenset({"failed", "success", "skipped", "removed", "upstream_failed"})


class GpuTrainingTrigger(BaseTrigger):
    """
    Follows one launch and fires one event: ``{"outcome", "launch_id", "epoch"}``.

    All arguments are plain values, and none is secret: Airflow stores them in clear text.

    :param conn_id: the ``ssh`` connection of the host.
    :param host_name: what people call the host; stands in the outcome.
    :param launch_id: which launch.
    :param machine_id: the host's, as of the launch; another machine that answers is not asked.
    :param boot_id: the host's, as of the launch; another one means that it was rebooted.
    :param epoch: of the last follower before this one; lets ``on_kill`` stop a launch that this trigger never reached.
    :param deferred_at: unix time of the deferral, on the worker's clock.
    :param hold_s: no event earlier than this after the deferral, since Airflow 3.3 can fail a task that is resumed
        sooner.
    :param patience_s: how long the host may stay unreachable before the event says UNREACHABLE.
    :param root: configured root for run directories on the host.
    :param remote_python: the first Python to try there.
    :param log_path: the log's path on the host, for messages.
    :param run_directory: the run directory on the host, for messages.
    :param secret_env: variable name to the *id* of the Airflow connection or variable with its value; the values are
        fetched in the triggerer, to be masked in the log.
    :param ceiling_bytes: how much of the log's head and end is printed, besides a few lines of its middle now and then;
        None for all of it.
    """

    def __init__(
        self,
        conn_id: str,
        host_name: str,
        launch_id: str,
        machine_id: str | None = None,
        boot_id: str | None = None,
        epoch: int | None = None,
        deferred_at: float | None = None,
        hold_s: float = 10.0,
        patience_s: float = 86_400.0,
        root: str | None = None,
        remote_python: str | None = None,
        log_path: str | None = None,
        run_directory: str | None = None,
        secret_env: Mapping[str, str] | None = None,
        ceiling_bytes: int | None = CEILING_BYTES,
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.host_name = host_name
        self.launch_id = launch_id
        self.machine_id = machine_id
        self.boot_id = boot_id
        self.epoch = epoch
        self.deferred_at = deferred_at
        self.hold_s = hold_s
        self.patience_s = patience_s
        self.root = root
        self.remote_python = remote_python
        self.log_path = log_path
        self.run_directory = run_directory
        self.secret_env = dict(secret_env or {})
        self.ceiling_bytes = ceiling_bytes
        self._session: StreamingSession | None = None
        self._stopping = False
        self._writer: TaskLogWriter | None = None
        self._redactor: Redactor | None = None
        self._secret_values: tuple[str, ...] | None = None
        self._masked: tuple[str, ...] = ()
        self._held_epoch: int | None = None
        self._told: set[str] = set()
        self._rebooted = False
        self._ended = False
        self._acknowledged: Position | None = None
        self._print_trouble: Exception | None = None
        self._context = contextvars.Context()
        self._out_of_sight: str | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Only what the constructor takes; nothing that was learnt on the way."""
        names = (
            "conn_id host_name launch_id machine_id boot_id epoch deferred_at hold_s patience_s root remote_python "
            "log_path run_directory secret_env ceiling_bytes"
        ).split()
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {name: getattr(self, name) for name in names},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, whatever became of the training and of the link."""
        began_at = time.monotonic()
        self._context = contextvars.copy_context()  # the one in which a line is this task's
        press().joins(self)
        try:
            outcome = await self._watch()
        finally:
            press().leaves(self)
            await self.cleanup()
        await asyncio.sleep(self._hold_left_s(began_at))
        await press().read()  # Airflow closes the task log when it hears of the event
        assert self._redactor is not None
        yield TriggerEvent(
            {
                "outcome": self._redactor.value(outcome.to_json()),
                "launch_id": self.launch_id,
                "epoch": self._held_epoch,
            }
        )

    async def cleanup(self) -> None:
        """Close the connection. The training goes on."""
        if not self._stopping:  # Airflow cleans up beside an ``on_kill`` that it has cancelled
            await self._close()

    async def _close(self) -> None:
        try:
            if self._writer is not None and self._writer.position != self._acknowledged:
                # Printed in the last moment: whoever follows next need not print it again.
                await connections.within(self._acknowledge(), _LAST_WORD_S)
        except (TimeoutError, GpuAlertError):
            pass
        finally:
            session, self._session = self._session, None
            if session is not None:
                await session.close()

    async def on_kill(self) -> None:
        """
        Stop the training if the task was really given up, in less than 30 seconds.

        A trigger that was only moved, and a task that was cleared, leave the launch alone: the other triggerer follows
        it, and the new try stops or adopts it.
        """
        self._stopping = True
        await undisturbed(self._stop_in_time())

    async def _stop_in_time(self) -> None:
        try:
            await connections.within(self._stop_if_given_up(), ON_KILL_BUDGET_S)
        except TimeoutError:
            self.log.warning("The stop did not reach %s in %g s. %s", self.host_name, ON_KILL_BUDGET_S, self._by_hand())
        except GpuAlertError as error:
            self.log.warning("The stop was not delivered: %s %s", self._shown(error), self._by_hand())
        finally:
            self._stopping = False
            await self._close()

    # -- watching

    async def _watch(self) -> Outcome:
        watch = LinkWatch(self.patience_s)
        own_faults = 0
        await self._learn_secrets(())
        while True:
            try:
                return await self._follow_once(watch)
            except _Doubtful as error:
                watch.failed(str(error), lasting=True)
                if watch.lost_for_s >= min(_DOUBT_S, self.patience_s):
                    return self._gone(error.reason, str(error))
            except HostError as error:
                if error.kind == "unknown_launch" and not self._rebooted:
                    return self._gone("run_directory_gone", f"the host no longer knows the launch: {error}")
                watch.failed(self._shown(error), lasting=True)
                if error.kind == "unknown_launch" and watch.lost_for_s >= min(_DOUBT_S, self.patience_s):
                    return self._gone("rebooted", f"the host was rebooted, and knows the launch no more: {error}")
            except GpuAlertError as error:
                watch.failed(self._shown(error), lasting=not getattr(error, "transient", False))
            except Exception as error:
                own_faults += 1
                if own_faults >= _OWN_FAULTS:
                    raise
                self.log.error("Unexpected while following the training:\n%s", self._shown(traceback.format_exc()))
                watch.failed(f"{type(error).__name__}: {self._shown(error)}", lasting=True)
            await self.cleanup()
            if watch.exhausted:
                return self._unreachable(watch)
            self._speak(watch)
            await asyncio.sleep(watch.next_wait_s(random.random()))

    async def _follow_once(self, watch: LinkWatch) -> Outcome:
        target = await SshTarget.from_connection_async(self.conn_id)
        await self._learn_secrets(target.secrets)
        for warning in target.warnings:
            self._tell_once(warning)
        self._session = await StreamingSession.open(target, root=self.root, remote_python=self.remote_python)
        self._check_machine(target, self._session.hello)
        where: str | dict[str, int] = "ack"
        if self._writer is not None:
            # What was fed and not yet printed is still here: go on exactly behind it.
            where = {
                "generation": self._writer.end.generation,
                "offset": self._writer.end.offset_bytes,
            }
        self._acknowledged = None
        self._ended = False
        budget = log_budget(press().ceiling_bytes(self.ceiling_bytes))
        frames = self._session.follow(
            self.launch_id, where, attach=True, who=self._who(), tick_s=_TICK_S, budget=budget
        )
        async for frame in frames:
            if frame.type == "ended":
                return await self._heard_the_end(frame)
            if frame.type == "skipped" and self._writer is not None and self._writer.waiting_bytes > RECORD_BYTES:
                # What came before a part that is left out goes out before the word about it, and not all at once.
                await press().finish(self, self._print_some, self._context)
            self._take(frame)
            if self._out_of_sight is not None:
                watch.failed(self._out_of_sight, lasting=True)
                if self._rebooted:
                    return self._gone("rebooted", f"the host was rebooted: {self._out_of_sight}")
                if watch.exhausted:
                    return self._unreachable(watch)
                self._speak(watch)
            elif frame.type != "tick":
                for message in watch.succeeded():
                    self.log.info("%s: %s", self.host_name, message)
            self._print_soon()
        raise TransportError("protocol", f"{target.peer}: expected the outcome as the last word, found none")

    def _take(self, frame: Frame) -> None:
        header = frame.header
        if frame.type == "attached":
            self._held_epoch = header.get("epoch")
            self._note(header["record"])
        elif frame.type == "state":
            self._note(header["record"])
        elif frame.type == "log":
            writer = self._writer_from(Position(header["generation"], header["offset"]))
            writer.feed(header["generation"], header["offset"], frame.payload, header.get("time"))
        elif frame.type == "skipped":
            begin, to = (Position(header[name]["generation"], header[name]["offset"]) for name in ("from", "to"))
            self._writer_from(begin).skip(to, header["lines"], header["at_least"])

    def _writer_from(self, start: Position) -> TaskLogWriter:
        if self._writer is None:
            path = f"{self.log_path or self.launch_id} on {self.host_name}"
            self._writer = TaskLogWriter(self._print, self._redactor, log_path=path, start=start)
        return self._writer

    def _speak(self, watch: LinkWatch) -> None:
        for message in watch.due():
            self.log.warning(
                "%s cannot be reached; the training goes on there as far as anybody knows. %s", self.host_name, message
            )

    def _note(self, record: Mapping[str, Any]) -> None:
        # The host answers, but the launch runs on another machine with the same disk (or did), and is silent there.
        away = record.get("state") == RunState.UNREACHABLE.value
        self._out_of_sight = (
            f"The launch is not seen from there: {record.get('note') or 'no reason given'}." if away else None
        )
        self.log_path = record.get("log_path") or self.log_path
        self.run_directory = record.get("run_directory") or self.run_directory
        if record.get("stop_requested"):
            reason = record.get("stop_reason")
            self._tell_once(f"The training is being stopped{f': {reason}' if reason else ''}. The host carries it out.")
        if record.get("supervised") is False and record.get("state") == "RUNNING":
            self._tell_once(
                "The processes that keep watch over the training on its host are gone; the training itself goes on. "
                "Its exact exit status may not be known at the end."
            )

    def _print_soon(self) -> None:
        """Ask for a turn to print."""
        if self._print_trouble is not None:
            trouble, self._print_trouble = self._print_trouble, None
            raise trouble
        if self._writer is None:
            return
        self._writer.drop_beyond(press().may_wait(self, self._writer.waiting_bytes))
        if self._writer.waiting_bytes:
            press().ask(self, self._print_some, self._context)

    def _print_some(self) -> tuple[int, bool]:
        """A turn at the press: one record, or none yet. What is printed is acknowledged in the same moment."""
        try:
            assert self._writer is not None
            before = self._writer.end.offset_bytes - self._writer.waiting_bytes
            self._writer.flush(time.monotonic(), self._ended, RECORD_BYTES)
            after = self._writer.end.offset_bytes - self._writer.waiting_bytes
            position = self._writer.position
            if position != self._acknowledged and self._session is not None and not self._ended:
                with contextlib.suppress(TransportError):  # whoever follows the link next acknowledges it
                    self._session.note_ack(position.generation, position.offset_bytes)
                    self._acknowledged = position
            return max(0, after - before), self._writer.more
        except Exception as error:  # it belongs to this trigger, and the press to all
            self._print_trouble = error
            return 0, False

    async def _acknowledge(self, ended: bool = False) -> None:
        if self._session is not None and (self._writer is not None or ended):
            # Nothing came, and the end is known: the host keeps what was acknowledged before.
            position = Position(0, 0) if self._writer is None else self._writer.position
            await self._session.send_ack(position.generation, position.offset_bytes, ended)
            self._acknowledged = position

    async def _heard_the_end(self, frame: Frame) -> Outcome:
        if self._writer is not None:
            self._ended = True
            self._writer.drop_beyond(press().may_wait(self, self._writer.waiting_bytes))
            await press().finish(self, self._print_some, self._context)
            if self._print_trouble is not None:
                raise self._print_trouble
            replaced = self._writer.replaced_characters
            if replaced:
                self._tell_once(f"{replaced} place(s) of the log are no valid UTF-8; they are shown as \ufffd.")
        try:
            # The event can still be lost with this triggerer: the host keeps what ended a moment ago.
            await self._acknowledge(ended=True)
        except TransportError:
            pass  # the outcome is here; at worst the last lines are printed once more
        outcome = Outcome.from_json(frame.header["outcome"])
        return dataclasses.replace(outcome, host={**outcome.host, "name": self.host_name})

    # -- whom we talk to

    def _check_machine(self, target: SshTarget, hello: Mapping[str, Any]) -> None:
        found = hello.get("machine_id")
        if self.machine_id and found and found != self.machine_id:
            raise _Doubtful(
                "other_machine",
                f"{target.peer}: expected the machine that runs {self.launch_id} (machine id {self.machine_id}), found "
                f"another one ({found}, {hello.get('hostname')}). Does the name lead to several machines, or was "
                "the host installed anew?",
            )
        boot = hello.get("boot_id")
        self._rebooted = bool(self.boot_id and boot and boot != self.boot_id)
        if self._rebooted:
            self._tell_once(f"{self.host_name} has been rebooted since the launch.")

    # -- outcomes of our own

    def _gone(self, reason: str, detail: str) -> Outcome:
        return self._own_outcome(RunState.LOST, reason, detail)

    def _unreachable(self, watch: LinkWatch) -> Outcome:
        detail = f"nothing was heard of the host for {watch.lost_for_s:.0f} s; last: {watch.last_problem}"
        self.log.error(
            "%s cannot be reached, and the patience of %g s is over. %s", self.host_name, self.patience_s, detail
        )
        return self._own_outcome(RunState.UNREACHABLE, "unreachable", detail)

    def _own_outcome(self, state: RunState, reason: str, detail: str) -> Outcome:
        return unseen_outcome(
            state,
            reason,
            detail,
            launch_id=self.launch_id,
            host={"name": self.host_name, "machine_id": self.machine_id, "boot_id": self.boot_id},
            run_directory=self.run_directory,
            log_path=self.log_path,
        )

    # -- stopping

    async def _stop_if_given_up(self) -> None:
        state = await self._state()
        if state is None:
            return
        if self._held_epoch is None and self.epoch is None:
            # Without an epoch a stop could hit a launch that a new try has adopted meanwhile: take one, and ask again.
            session = await self._open()
            async for frame in session.follow(self.launch_id, "ack", attach=True, who=self._who()):
                if frame.type == "attached":
                    self._held_epoch = frame.header.get("epoch")
                    break
            await session.detach()
            if await self._state() is None:
                return
        session = self._session or await self._open()
        epoch = self._held_epoch if self._held_epoch is not None else self.epoch
        request = protocol.stop_request(
            launch_id=self.launch_id,
            epoch=epoch,
            reason=f"the task was {state}" if state == "deleted" else f"the task was marked {state}",
            who=self._who(),
            wait_s=_STOP_WAIT_S,
        )
        try:
            reply = await session.call(request)
        except HostError as error:
            if error.kind == "stale_epoch":
                self.log.info("Not stopped: somebody else follows the training by now. %s", self._shown(error))
                return
            if error.kind == "unknown_launch":
                self.log.info("Nothing to stop: %s", self._shown(error))
                return
            raise
        done = "has been stopped" if reply["type"] == "stopped" else "is being stopped by its host"
        self.log.info("The task was given up (%s): the training %s.", state, done)

    async def _open(self) -> StreamingSession:
        await self._close()
        target = await SshTarget.from_connection_async(self.conn_id)
        self._session = await StreamingSession.open(
            target, root=self.root, remote_python=self.remote_python, insist=True
        )
        self._check_machine(target, self._session.hello)
        return self._session

    async def _state(self) -> str | None:
        """
        The task's state if it was given up, ``deleted`` if Airflow no longer has it; None when the launch is to live
        on.
        """
        for left in (2, 1, 0):
            try:
                known, state = await self._ask_state()
            except Exception as error:  # any trouble between triggerer and API server
                if not left:
                    self.log.warning(
                        "The task's state could not be asked (%s): the training is left running. %s",
                        self._shown(error),
                        self._by_hand(),
                    )
                    return None
                await asyncio.sleep(1.0)
                continue
            if not known:
                self.log.info("Airflow no longer has this task instance: its run was deleted.")
                return "deleted"
            if state in _GIVEN_UP:
                return state
            self.log.info(
                "This trigger was cancelled while the task is %s: the training goes on, and whoever has the task now "
                "deals with it.",
                state or "cleared",
            )
            return None
        return None

    async def _ask_state(self) -> tuple[bool, str | None]:
        """Whether Airflow knows the task instance, and its state (None right after a clear)."""
        from airflow.sdk.execution_time import task_runner
        from airflow.sdk.execution_time.comms import ErrorResponse, GetTaskStates, TaskStatesResult

        ti: Any = self.task_instance
        map_index = -1 if ti.map_index is None else ti.map_index
        request = GetTaskStates(dag_id=ti.dag_id, map_index=map_index, task_ids=[ti.task_id], run_ids=[ti.run_id])
        reply = await task_runner.SUPERVISOR_COMMS.asend(request)
        if isinstance(reply, ErrorResponse) or not isinstance(reply, TaskStatesResult):
            raise RuntimeError(f"expected the task's state, found {reply!r:.200}")
        states = (reply.task_states or {}).get(ti.run_id) or {}
        # The Execution API adds the index to the name of a mapped task.
        name = ti.task_id if map_index < 0 else f"{ti.task_id}_{map_index}"
        if name in states:
            state = states[name]
            return True, None if state is None else str(getattr(state, "value", state))
        # An empty answer alone is no ground for stopping a training.
        if await self._run_exists():
            raise RuntimeError(
                f"the run {ti.run_id} exists, and its task {name} was not in the answer: {sorted(states)}"
            )
        return False, None

    async def _run_exists(self) -> bool:
        from airflow.sdk.exceptions import AirflowRuntimeError
        from airflow.sdk.execution_time import task_runner
        from airflow.sdk.execution_time.comms import GetDagRunState

        ti: Any = self.task_instance
        try:
            await task_runner.SUPERVISOR_COMMS.asend(GetDagRunState(dag_id=ti.dag_id, run_id=ti.run_id))
        except AirflowRuntimeError as error:
            if (error.error.detail or {}).get("status_code") == 404:
                return False
            raise
        return True

    # -- small things

    async def _learn_secrets(self, more: tuple[str, ...]) -> None:
        if self._secret_values is None:
            self._secret_values = ()
            if self.secret_env:
                from gpualert_provider.operators.secrets import resolve_what_is_there

                found = await asyncio.to_thread(resolve_what_is_there, self.secret_env)
                self._secret_values = tuple(found.values())
        values = (*self._secret_values, *more)
        # The writer keeps the redactor that it began with; and each new one would warn again of values that are too
        # short.
        if self._redactor is None or (self._writer is None and values != self._masked):
            self._masked = values
            self._redactor = Redactor(values)

    def _print(self, record: Record) -> None:
        if record.time is None:
            self.log.info(record.text)
        else:
            moment = datetime.fromtimestamp(record.time, timezone.utc).isoformat(timespec="microseconds")
            self.log.info(record.text, timestamp=moment)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.log.warning("%s", self._shown(text))

    def _shown(self, error: object) -> str:
        return (self._redactor or Redactor()).text(str(error))

    def _hold_left_s(self, began_at: float) -> float:
        """
        From our own start, which is after the deferral by any clock; the worker's clock only says that it is long past.
        """
        if self.deferred_at is not None and time.time() - self.deferred_at > self.hold_s + _CLOCK_SKEW_S:
            return 0.0
        return max(0.0, began_at + self.hold_s - time.monotonic())

    def _who(self) -> str:
        ti: Any = self.task_instance
        task = "" if ti is None else f", task {ti.dag_id}.{ti.task_id}, run {ti.run_id}, try {ti.try_number}"
        return f"airflow triggerer on {os.uname().nodename}{task}"

    def _by_hand(self) -> str:
        return f"To stop it by hand, run `gpualert stop {self.launch_id}` on {self.host_name}."


class _Doubtful(TransportError):
    """
    Whether this is the launch's machine is in doubt.

    :param reason: the outcome's ``lost_reason`` if the doubt stays.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__("protocol", message)
        self.reason = reason
