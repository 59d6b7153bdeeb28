"""One try of a training from the worker's side: ask about earlier launches, launch or adopt, follow, stop.

The order is what makes a worker's death harmless: the ledger is written before the launch, the launch is idempotent on
the host for one try, and everything that is delivered is acknowledged only after it stands in the task log.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gpualert import protocol
from gpualert.key import Attempt, LaunchKey
from gpualert.outcome import Outcome
from gpualert.protocol import Frame, HostError
from gpualert.records import RunRecord, RunState
from gpualert.spec import LaunchSpec
from gpualert_provider import ledger as ledgers
from gpualert_provider.decide import Adopt, Decision, Launch, Report, Sighting, StopAndRelaunch, TryFacts, decide
from gpualert_provider.exceptions import InvalidRequest, LaunchRefused, LedgerError
from gpualert_provider.hooks import blocking
from gpualert_provider.hooks.blocking import BlockingSession, Target
from gpualert_provider.hooks.errors import InvalidConnection, TransportError
from gpualert_provider.hooks.target import SshTarget
from gpualert_provider.ledger import MAX_ATTEMPTS, EntryStatus, Ledger, LedgerEntry, StateStore
from gpualert_provider.redaction import Redactor
from gpualert_provider.tasklog import CEILING_BYTES, Position, Record, TaskLogWriter, log_budget
from gpualert_provider.unseen import unseen_outcome

#: Airflow gives a worker's ``on_kill`` 5 s before it kills the process.
ON_KILL_BUDGET_S = 4.5
#: How often a launch or an inspection is repeated over a new connection when the old one drops.
CALL_TRIES = 3
#: Rounds of deciding before we give up on a host whose answers keep changing.
_ROUNDS = 6
#: On top of the grace period: the host repeats SIGKILL for 5 s and writes down who survived.
_STOP_SLACK_S = 30.0
#: How long after a leader's end the host may still be ending the rest of its tree: TERM, at most 10 s, KILL, 5 s.
_TREE_S = 20.0
_TICK_S = 0.5
_FLUSH_EVERY_S = 1.0
_RECONNECT_S = (1.0, 2.0, 5.0, 10.0, 30.0)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class How:
    """
    What a try needs to know besides the spec; all of it comes from the operator's arguments and Airflow's context.
    """

    facts: TryFacts
    key_ids: tuple[str, ...]
    who: str
    label: str
    root: str | None = None
    remote_python: str | None = None
    allow_unfenced_retry: bool = False
    patience_s: float = 86_400.0


class TrainingTry:
    """
    One try. Use it from one thread; only :meth:`stop` may come from elsewhere (a signal handler).

    :param target: where to launch.
    :param store: the task's state store.
    :param deployment_id: used only when the task has no ledger yet.
    :param emit: puts one record of the training's log into the task log.
    :param resolve: finds the target of an earlier launch by its connection id (None: this machine).
    """

    def __init__(
        self,
        *,
        target: Target,
        spec: LaunchSpec,
        secrets: Mapping[str, str],
        store: StateStore,
        deployment_id: Callable[[], str],
        how: How,
        emit: Callable[[Record], None],
        redactor: Redactor,
        resolve: Callable[[str | None], Target],
        open_session: Callable[..., BlockingSession] = blocking.open_session,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self._wanted_target = target  # `target` is the earlier launch's host while that is dealt with
        self.record: RunRecord | None = None
        self.epoch: int | None = None
        self._spec = spec
        self._secrets = secrets
        self._store = store
        self._deployment_id = deployment_id
        self._how = how
        self._emit = emit
        self.redactor = redactor
        self._resolve = resolve
        self._open_session = open_session
        self._clock = clock
        self._key: LaunchKey | None = None
        self._session: BlockingSession | None = None
        self._writer: TaskLogWriter | None = None
        self._stopped = threading.Event()
        self._courier: threading.Thread | None = None
        #: Clear while an attach of ours is on its way, whose epoch we do not know yet.
        self._epoch_settled = threading.Event()
        self._epoch_settled.set()
        self._warned: set[str] = set()

    # ---- before

    def begin(self) -> None:
        """
        Launch, or take over what is there: afterwards ``record`` names the launch to follow, and ``target`` its host.

        :raises LaunchRefused: nothing was launched, and why.
        :raises LedgerError: nothing may be launched without it.
        :raises TransportError: the host cannot be reached.
        :raises InvalidSpec: the spec is too large to be sent.
        """
        try:
            self._begin()
        except HostError as error:
            raise LaunchRefused(str(error), error.kind) from error

    def _begin(self) -> None:
        ledger = ledgers.load(self._store) or Ledger(self._deployment_id())
        self._key = LaunchKey((ledger.deployment_id, *self._how.key_ids), self._how.label)
        if self._stopped.is_set():
            # Asked before there was a key to name: what an earlier try left running has to stop as well.
            self._deliver_stop("killed by Airflow", ON_KILL_BUDGET_S)
            self._raise_if_stopped()
        seen = self._sight(ledger.last)
        for _ in range(_ROUNDS):
            decision = decide(ledger, seen, self._how.facts, allow_unfenced_retry=self._how.allow_unfenced_retry)
            self._tell(decision)
            if isinstance(decision, (Adopt, Report)):
                self._take_over(ledger, decision.entry, decision.record)
                return
            if isinstance(decision, StopAndRelaunch):
                ledger, seen = self._stop_earlier(ledger, decision)
            elif isinstance(decision, Launch):
                found = self._launch(ledger, decision, seen)
                if found is None:
                    return
                seen = found
            else:
                raise LaunchRefused(decision.reason, decision.kind)
        raise LaunchRefused(f"{self.target.peer}: its answers about this task's launches keep changing", "refused")

    def _sight(self, last: LedgerEntry | None) -> Sighting:
        if last is None:
            # The launch itself tells: the host answers `existing` when it knows of one.
            return Sighting(answered=False)
        try:
            if last.conn_id != self.target.conn_id:
                # Everything about the earlier launch is between us and its own host.
                self.target = self._resolve(last.conn_id)
            return self._inspect()
        except (TransportError, InvalidConnection, InvalidRequest, HostError) as error:
            if last.conn_id == self._wanted_target.conn_id:
                raise
            log.warning("The host of the earlier launch cannot be asked: %s", error)
            self._to_wanted_target()
            return Sighting(answered=False)

    def _inspect(self) -> Sighting:
        assert self._key is not None
        reply = self._call(protocol.inspect_request(key=self._key))
        assert self._session is not None
        hello = self._session.hello
        record = RunRecord.from_json(reply["record"]) if reply["type"] == "record" else None
        return Sighting(True, record, hello.get("machine_id"), hello.get("boot_id"))

    def _take_over(self, ledger: Ledger, entry: LedgerEntry, record: RunRecord) -> None:
        ours = self._how.facts.attempt
        first, *later = entry.attempts  # the first launched it: a host's record is recognised by it
        attempts = entry.attempts if entry.knows(ours) else (first, *[*later, ours][1 - MAX_ATTEMPTS :])
        changed = self._facts_of(record) | {
            "attempts": attempts,
            "max_tries": self._how.facts.max_tries,
            "status": EntryStatus.LAUNCHED if entry.status is EntryStatus.MAYBE_LAUNCHED else entry.status,
        }
        ledgers.save(self._store, ledger.with_changed(entry, **changed))
        self.record = record

    def _stop_earlier(self, ledger: Ledger, decision: StopAndRelaunch) -> tuple[Ledger, Sighting]:
        entry, record = decision.entry, decision.record
        if not entry.stop_asked:
            changed = dataclasses.replace(entry, stop_asked=True)
            ledger = ledger.with_changed(entry, stop_asked=True)
            ledgers.save(self._store, ledger)
            entry = changed
        deadline = self._clock() + self._spec.grace_period_s + _STOP_SLACK_S
        while not record.state.ended:
            self._raise_if_stopped()
            if self._clock() >= deadline:
                raise LaunchRefused(
                    f"launch {record.launch_id} was asked to stop and is still {record.state}", "survivors"
                )
            record = self._stop_call(record, decision.reason)
        assert self._session is not None
        hello = self._session.hello
        return ledger, Sighting(True, record, hello.get("machine_id"), hello.get("boot_id"))

    def _see_dead(self, record: RunRecord) -> None:
        """
        A stopped launch's leader may be dead before the rest of its tree is, and that rest holds the GPU.

        :raises LaunchRefused: kind ``survivors``: processes that no signal ends.
        """
        deadline = self._clock() + _TREE_S
        while record.survivors is None and self._clock() < deadline:
            self._raise_if_stopped()
            time.sleep(_TICK_S)
            reply = self._call(protocol.inspect_request(launch_id=record.launch_id))
            record = RunRecord.from_json(reply["record"]) if reply["type"] == "record" else record
        if record.survivors is None:
            log.warning(
                "What launch %s left running after its stop is not known; its leader is dead.", record.launch_id
            )
        elif record.survivors and not self._how.allow_unfenced_retry:
            raise LaunchRefused(
                f"launch {record.launch_id} was stopped, and {len(record.survivors)} of its processes cannot be killed "
                f"(the first: {dict(record.survivors[0])})",
                "survivors",
            )

    def _stop_call(self, record: RunRecord, reason: str) -> RunRecord:
        request = protocol.stop_request(
            launch_id=record.launch_id, epoch=record.epoch, reason=f"relaunch: {reason}", who=self._how.who, wait_s=10.0
        )
        try:
            reply = self._call(request)
        except HostError as error:
            if error.kind != "stale_epoch":
                raise
            # Its old follower moved to another triggerer meanwhile; our word is newer than that.
            reply = self._call(protocol.inspect_request(launch_id=record.launch_id))
        return RunRecord.from_json(reply["record"])

    def _launch(self, ledger: Ledger, decision: Launch, seen: Sighting) -> Sighting | None:
        """None when it runs; what the host knows instead when it does not."""
        after = decision.after
        if seen.record is not None and seen.record.state in (RunState.STOPPED, RunState.TIMED_OUT):
            self._see_dead(seen.record)
        if self.target is not self._wanted_target:
            self._leave_tombstone(ledger.last, seen)
            self._to_wanted_target()
            numbers = [e.number for e in ledger.entries if e.conn_id == self.target.conn_id and e.launch_id is not None]
            after = max(numbers, default=0)
        assert self._key is not None
        entry = LedgerEntry(
            number=after + 1,
            attempts=(self._how.facts.attempt,),
            conn_id=self.target.conn_id,
            host_name=self.target.host_name,
            max_tries=self._how.facts.max_tries,
            at=datetime.now(tz=timezone.utc).isoformat(timespec="seconds"),
        )
        ledgers.save(self._store, ledger.with_new(entry))
        request = protocol.launch_request(
            self._key, self._how.facts.attempt, self._spec, after=after, secrets=self._secrets
        )
        self._raise_if_stopped()
        # When this fails, the entry stays "maybe": the next try asks the host, whatever the failure was.
        reply = self._call(request)
        record = RunRecord.from_json(reply["record"])
        assert self._session is not None
        hello = self._session.hello
        if reply["type"] == "launched" or record.attempt.id == self._how.facts.attempt.id:
            changed = self._facts_of(record) | {"number": record.number, "status": EntryStatus.LAUNCHED}
            ledgers.save(self._store, ledger.with_new(dataclasses.replace(entry, **changed)))
            self.record = record
            log.info("Launch %s on %s; log: %s", record.launch_id, self.target.peer, record.log_path)
            return None
        ledgers.save(self._store, ledger)
        return Sighting(True, record, hello.get("machine_id"), hello.get("boot_id"))

    def _leave_tombstone(self, last: LedgerEntry | None, seen: Sighting) -> None:
        """On a host that we leave behind: a worker taken for dead may still be about to launch there."""
        if last is None or last.status is not EntryStatus.MAYBE_LAUNCHED or not seen.answered:
            return
        assert self._key is not None
        self._call(
            protocol.stop_request(
                key=self._key, attempt=last.attempt, reason="the task is launched on another host", who=self._how.who
            )
        )

    def _facts_of(self, record: RunRecord) -> dict[str, Any]:
        return {
            "launch_id": record.launch_id,
            "machine_id": record.machine_id,
            "boot_id": record.boot_id,
            "conn_id": self.target.conn_id,
            "host_name": self.target.host_name,
        }

    def _tell(self, decision: Decision) -> None:
        if isinstance(decision, Launch) and decision.after == 0 and decision.reason == "first launch":
            return
        name = type(decision).__name__
        log.info("Earlier launches: %s: %s.", name, decision.reason)

    # ---- during

    def follow(self, for_s: float | None = None) -> Outcome | None:
        """
        Print the training's log until its end.

        :param for_s: stop following after so many seconds; None: never.
        :return: the outcome; None when the time was over first. With ``for_s`` None it is an outcome with state
            UNREACHABLE when nothing was heard of the host for longer than the patience.
        """
        assert self.record is not None
        end = None if for_s is None else self._clock() + for_s
        silent_since: float | None = None
        failures = 0
        while True:
            try:
                for outcome in self._follow_once(end):
                    silent_since, failures = None, 0
                    if outcome is not None:
                        return self._with_host(outcome)
                return None
            except TransportError as error:
                self.close()
                now = self._clock()
                if end is not None:
                    log.warning("The link to the host was lost; the training goes on. %s", error)
                    return None
                silent_since = now if silent_since is None else silent_since
                if now - silent_since >= self._how.patience_s:
                    return self._unreachable(error)
                wait_s = _RECONNECT_S[min(failures, len(_RECONNECT_S) - 1)]
                failures += 1
                log.warning(
                    "The link to the host was lost; the training goes on. Trying again in %g s. %s", wait_s, error
                )
                self._stopped.wait(min(wait_s, max(0.0, silent_since + self._how.patience_s - now)))
                if self._stopped.is_set():
                    time.sleep(0.2)  # a wait that returns at once would spin

    def _follow_once(self, end: float | None) -> Iterator[Outcome | None]:
        """Yields None whenever the host gave a sign of life, and the outcome as the last thing."""
        assert self.record is not None
        session = self._connected()
        self._check_machine(session)
        self._check_still_ours()
        where: str | Mapping[str, int] = "ack"
        if self._writer is not None:
            # What was fed and not yet printed is still in the writer: go on behind it.
            where = {"generation": self._writer.end.generation, "offset": self._writer.end.offset_bytes}
        self._epoch_settled.clear()
        budget = log_budget(CEILING_BYTES)
        frames = session.follow(
            self.record.launch_id, where, attach=True, who=self._how.who, tick_s=_TICK_S, budget=budget
        )
        flushed_at = self._clock()
        try:
            for frame in frames:
                now = self._clock()
                if frame.type == "ended":
                    self._flush(session, final=True)
                    yield Outcome.from_json(frame.header["outcome"])
                    return
                self._take(frame)
                if now - flushed_at >= _FLUSH_EVERY_S:
                    flushed_at = now
                    self._flush(session)
                if frame.type != "tick":
                    yield None
                if end is not None and now >= end and not self._stopped.is_set():
                    self._flush(session)
                    return
        finally:
            self._epoch_settled.set()
            frames.close()  # type: ignore[attr-defined]

    def _take(self, frame: Frame) -> None:
        header = frame.header
        if frame.type == "attached":
            self.epoch = header.get("epoch")
            self._epoch_settled.set()
            self.record = RunRecord.from_json(header["record"])
            self._warn(self.record.warnings)
        elif frame.type == "state":
            self.record = RunRecord.from_json(header["record"])
        elif frame.type == "log":
            if self._writer is None:
                self._writer = self._make_writer(Position(header["generation"], header["offset"]))
            self._writer.feed(header["generation"], header["offset"], frame.payload, header.get("time"))
        elif frame.type == "skipped":
            begin, to = (Position(header[name]["generation"], header[name]["offset"]) for name in ("from", "to"))
            if self._writer is None:
                self._writer = self._make_writer(begin)
            self._writer.skip(to, header["lines"], header["at_least"])

    def _make_writer(self, start: Position) -> TaskLogWriter:
        assert self.record is not None
        return TaskLogWriter(self._emit, self.redactor, log_path=self.record.log_path, start=start)

    def _flush(self, session: BlockingSession, final: bool = False) -> None:
        if self._writer is None:
            return
        if self._writer.flush(self._clock(), final) or final:
            position = self._writer.position
            session.send_ack(position.generation, position.offset_bytes)

    def acknowledge_end(self, outcome: Outcome) -> None:
        """The outcome has been reported: the host may clean the run directory up. Best effort."""
        if self._session is None:
            return
        # Whoever was given nothing takes nothing back: the host keeps what was acknowledged before.
        position = Position(0, 0) if self._writer is None else self._writer.position
        try:
            self._session.send_ack(position.generation, position.offset_bytes, ended=True)
        except (TransportError, HostError) as error:
            log.debug("The end could not be acknowledged: %s", error)

    def _with_host(self, outcome: Outcome) -> Outcome:
        host = {**outcome.host, "name": self.target.host_name}
        return dataclasses.replace(outcome, host=host)

    def _unreachable(self, error: TransportError) -> Outcome:
        assert self.record is not None
        record = self.record
        return unseen_outcome(
            RunState.UNREACHABLE,
            "unreachable",
            f"nothing was heard of the host for {self._how.patience_s:g} s: {error}",
            launch_id=record.launch_id,
            attempt=record.attempt,
            host={"name": self.target.host_name, "machine_id": record.machine_id, "boot_id": record.boot_id},
            run_directory=record.run_directory,
            log_path=record.log_path,
        )

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                log.warning("%s", self.redactor.text(warning))

    # ---- stopping

    def stop(self, reason: str, *, wait: bool, budget_s: float = ON_KILL_BUDGET_S) -> None:
        """
        Deliver a durable stop to the host; from now on this try launches nothing.

        The rest is the host's work. A stop that finds no launch leaves a tombstone, so a launch request that is on its
        way is refused when it arrives.

        :param wait: stay until it is delivered. Not from a signal handler that interrupts this very try, which may be
            about to learn the epoch that the stop has to name; it calls :meth:`finish_stop` itself.
        """
        self._stopped.set()
        if self._courier is None:
            self._courier = threading.Thread(
                target=self._deliver_stop, args=(reason, budget_s), name="gpualert-stop", daemon=True
            )
            self._courier.start()
        if wait:
            self.finish_stop(budget_s)

    def finish_stop(self, budget_s: float = ON_KILL_BUDGET_S) -> None:
        """Wait until a stop that was asked for is delivered, if one was."""
        if self._courier is not None:
            self._courier.join(budget_s)
            if self._courier.is_alive():
                log.warning("The stop is still on its way to %s.", self.target.peer)

    def _deliver_stop(self, reason: str, budget_s: float) -> None:
        if self._key is None:
            return
        self._epoch_settled.wait(budget_s / 2)
        # A connection of its own: the other one may be in the middle of anything.
        target = _hurried(self.target, budget_s)
        record = self.record
        if record is None:
            request = protocol.stop_request(
                key=self._key, attempt=self._how.facts.attempt, reason=reason, who=self._how.who
            )
        else:
            # Never a newer epoch than ours: whoever attached after us decides now, and we may be a worker taken for
            # dead.
            epoch = record.epoch if self.epoch is None else self.epoch
            request = protocol.stop_request(launch_id=record.launch_id, epoch=epoch, reason=reason, who=self._how.who)
        try:
            with self._open_session(target, root=self._how.root, remote_python=self._how.remote_python) as session:
                reply = session.call(request)
            log.info("Stop delivered to %s: %s.", self.target.peer, reply["type"])
        except HostError as error:
            log.warning("The host did not take the stop: %s", error)
        except TransportError as error:
            log.warning("The stop could not be delivered: %s", error)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def _raise_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise LaunchRefused("the task was killed before its launch; nothing was launched", "stopped")

    # ---- connections

    def _to_wanted_target(self) -> None:
        if self.target is not self._wanted_target:
            self.close()
            self.target = self._wanted_target

    def _connected(self) -> BlockingSession:
        if self._session is None:
            self._session = self._open_session(self.target, root=self._how.root, remote_python=self._how.remote_python)
            self._warn(tuple(getattr(self.target, "warnings", ())) + tuple(self._session.hello.get("warnings") or ()))
        return self._session

    def _check_machine(self, session: BlockingSession) -> None:
        assert self.record is not None
        ours, theirs = self.record.machine_id, session.hello.get("machine_id")
        if ours and theirs and ours != theirs:
            raise TransportError(
                "protocol",
                f"{self.target.peer}: expected the machine that runs {self.record.launch_id} (machine id {ours}), "
                f"found another one ({theirs})",
            )

    def _check_still_ours(self) -> None:
        """
        Before attaching, since that takes the launch away from whoever follows it.

        :raises LaunchRefused: Airflow has replaced this try: for it, the task has no state any more.
        """
        assert self.record is not None
        try:
            ledger = ledgers.load(self._store)
        except LedgerError as error:
            log.warning("Whether this try is still the task's own could not be asked: %s", error)
            return
        if ledger is None or ledger.last is None or not ledger.last.knows(self._how.facts.attempt):
            raise LaunchRefused(
                f"launch {self.record.launch_id} is followed by a newer try of the task; this one ends", "superseded"
            )

    def _call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Repeated over a new connection when the old one drops: every request that we send may be sent twice."""
        for left in reversed(range(CALL_TRIES)):
            try:
                return self._connected().call(request)
            except TransportError as error:
                had_session = self._session is not None
                self.close()
                if not left or not had_session or error.kind not in ("dropped", "timeout", "channel"):
                    raise
                self._raise_if_stopped()
                log.warning("Asking again over a new connection. %s", error)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Any number of times. What was launched goes on."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def attempt_of(ti: Any) -> Attempt:
    """The try of a task instance, as the host orders it."""
    return Attempt(int(ti.try_number), str(ti.id))


def _hurried(target: Target, budget_s: float) -> Target:
    if not isinstance(target, SshTarget):
        return target
    return dataclasses.replace(
        target,
        connect_timeout_s=min(target.connect_timeout_s, budget_s),
        banner_timeout_s=min(target.banner_timeout_s, budget_s),
        auth_timeout_s=min(target.auth_timeout_s, budget_s),
        command_timeout_s=budget_s,
    )
