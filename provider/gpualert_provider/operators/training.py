"""The operator: a training on a GPU host as one Airflow task, whose state is the child's own end.

Thin on purpose: arguments are checked in ``arguments``, earlier launches are judged in ``decide``, the work of a try is
in ``conduct``, and what people read goes out through ``xcoms``. Here is only what Airflow itself asks for.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, AirflowTaskTimeout

from gpualert.errors import InvalidSpec
from gpualert.outcome import Outcome
from gpualert.records import RunState
from gpualert.spec import LaunchSpec
from gpualert_provider import keep, store, xcoms
from gpualert_provider import ledger as ledgers
from gpualert_provider.exceptions import GpuTrainingFailed, InvalidRequest, LaunchRefused
from gpualert_provider.ledger import EntryStatus
from gpualert_provider.links import GpuTrainingRunLink
from gpualert_provider.operators import arguments, deployment, secrets
from gpualert_provider.operators import rules as rule_files
from gpualert_provider.redaction import Redactor

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from gpualert_provider.conduct import TrainingTry
    from gpualert_provider.hooks.blocking import Target
    from gpualert_provider.tasklog import Record

Seconds = timedelta | float

#: How long the worker stays with a training before it hands it to the triggerer.
DEFAULT_EARLY_WINDOW_S = 10.0
#: How long after the deferral an event is held back: Airflow 3.3 can fail a task that is resumed sooner.
DEFAULT_HOLD_S = 10.0
DEFAULT_PATIENCE = timedelta(hours=24)


class GPUTrainingOperator(BaseOperator):
    """
    Run a training command on a GPU host, and fail with its cause when it fails.

    :param command: a string is a script for ``bash``, of any number of lines; a list of strings runs without a shell.
        (templated)
    :param ssh_conn_id: an Airflow ``ssh`` connection. Without it the command runs on the worker itself; then the task
        blocks its worker slot, and the worker's end is the training's. (templated)
    :param cwd: folder on the host, absolute or from ``~/``; the home directory when not given. (templated)
    :param env: variables for the training. Their values are not secret. (templated)
    :param secret_env: variable name to the id of the Airflow connection or variable that holds its value: ``conn:ID``
        (the password), ``conn:ID#FIELD``, ``var:ID``, or a bare id: the connection, else the variable. (templated)
    :param environment: ``conda:NAME``, ``venv:PATH`` or ``module:NAME``. (templated)
    :param setup: shell text sourced before the command; if it fails, the command does not run. (templated)
    :param deadline: stop the training so long after its start. ``execution_timeout``, if shorter, counts as one, also
        while the task is deferred.
    :param grace_period: from ``stop_signal`` to SIGKILL.
    :param stop_signal: what the training gets first when it has to stop.
    :param stop_command: shell text run on the host when the training is stopped, for what lives outside its process
        tree.
    :param leftovers: ``"kill"`` or ``"keep"`` processes that the command leaves behind when it ends by itself.
    :param result_file: JSON file on the host (relative to ``cwd``) whose content becomes ``return_value``. (templated)
    :param keep_log: where the whole log is put when the training has ended, whatever the end: an absolute folder on the
        worker, or a URL that ``ObjectStoragePath`` takes (``s3://connection@bucket/folder``). (templated)
    :param keep_log_timeout: how long that may take; what is not there by then stays on the host, and the task log says
        so.
    :param rules: your own rules for the verdict: path of a ``.toml`` or compiled ``.json`` file (beside the DAG file,
        in the DAG's ``template_searchpath``, or in the DAGs folder), TOML text of several lines, or the compiled form.
        Read and checked when the DAG is parsed.
    :param unbuffered: set ``PYTHONUNBUFFERED=1``; None lets the host decide.
    :param skip_on_exit_code: exit statuses that mean "skipped".
    :param deferrable: hand the running training to the triggerer, and free the worker slot.
    :param early_window: follow inline for so long first: what fails at once fails within seconds.
    :param hold: earliest time after the deferral at which the task is resumed.
    :param patience: how long the host may stay unreachable before the task fails as UNREACHABLE.
    :param allow_unfenced_retry: your word that an earlier launch which cannot be reached may be taken for dead.
    :param remote_root: folder on the host for run directories, absolute. (templated)
    :param remote_python: the first Python to try on the host (3.8 or newer); the training itself does not use it.
        (templated)
    :raises InvalidSpec: when the DAG is parsed: an argument that cannot be right, by name.
    """

    template_fields: Sequence[str] = (
        "command",
        "ssh_conn_id",
        "cwd",
        "env",
        "secret_env",
        "environment",
        "setup",
        "result_file",
        "keep_log",
        "stop_command",
        "remote_root",
        "remote_python",
    )
    # No template_ext: "./train.sh" is a command, not a file to read beside the DAG.
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "command": "bash",
        "setup": "bash",
        "stop_command": "bash",
        "env": "json",
        "secret_env": "json",
    }
    operator_extra_links = (GpuTrainingRunLink(),)
    ui_color = "#e3f0d8"

    def __init__(
        self,
        *,
        command: str | Sequence[str],
        ssh_conn_id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        secret_env: Mapping[str, str] | None = None,
        environment: str | None = None,
        setup: str | None = None,
        deadline: Seconds | None = None,
        grace_period: Seconds = 30.0,
        stop_signal: str = "SIGTERM",
        stop_command: str | None = None,
        leftovers: str = "kill",
        result_file: str | None = None,
        keep_log: str | None = None,
        keep_log_timeout: Seconds = keep.DEFAULT_LIMIT_S,
        rules: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        unbuffered: bool | None = None,
        skip_on_exit_code: int | Container[int] | None = None,
        deferrable: bool = True,
        early_window: Seconds = DEFAULT_EARLY_WINDOW_S,
        hold: Seconds = DEFAULT_HOLD_S,
        patience: Seconds = DEFAULT_PATIENCE,
        allow_unfenced_retry: bool = False,
        remote_root: str | None = None,
        remote_python: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.command = command
        self.ssh_conn_id = ssh_conn_id
        self.cwd = cwd
        self.env = env
        self.secret_env = secret_env
        self.environment = environment
        self.setup = setup
        self.deadline = deadline
        self.grace_period = grace_period
        self.stop_signal = stop_signal
        self.stop_command = stop_command
        self.leftovers = leftovers
        self.result_file = result_file
        self.keep_log = keep_log
        self.keep_log_timeout = keep_log_timeout
        self.rules = rules
        self.unbuffered = unbuffered
        self.skip_on_exit_code = skip_on_exit_code
        self.deferrable = deferrable
        self.early_window = early_window
        self.hold = hold
        self.patience = patience
        self.allow_unfenced_retry = allow_unfenced_retry
        self.remote_root = remote_root
        self.remote_python = remote_python
        self._try: TrainingTry | None = None
        self._killed = False
        self._executing = False
        self._check()

    def _check(self) -> None:
        self._compiled_rules = rule_files.compiled(self.rules, rule_files.folders_of(self))
        if not isinstance(self.secret_env, (Mapping, type(None))) and not arguments.is_template(self.secret_env):
            arguments.check_secret_env(self.secret_env)
        if isinstance(self.secret_env, Mapping):
            arguments.check_secret_env(self.secret_env)
        if self.ssh_conn_id is not None and not arguments.is_template(self.ssh_conn_id):
            if not isinstance(self.ssh_conn_id, str) or not self.ssh_conn_id.strip():
                raise InvalidSpec(f"ssh_conn_id: expected the id of an ssh connection, found {self.ssh_conn_id!r}")
        for name in ("early_window", "hold", "patience", "keep_log_timeout"):
            arguments.seconds(name, getattr(self, name))
        if self.keep_log is not None and not arguments.is_template(self.keep_log):
            store.check("keep_log", self.keep_log)
        arguments.exit_codes(self.skip_on_exit_code)
        known = self._arguments()
        if not isinstance(self.secret_env, Mapping):
            known["secret_env"] = ()
        arguments.checked_when_parsed(known)

    def _arguments(self) -> dict[str, Any]:
        limits = [
            arguments.seconds("deadline", self.deadline, optional=True, positive=True),
            arguments.seconds("execution_timeout", self.execution_timeout, optional=True, positive=True),
        ]
        deadline_s = min((limit for limit in limits if limit is not None), default=None)
        return {
            "command": self.command,
            "cwd": self.cwd,
            "env": self.env,
            "secret_env": tuple(self.secret_env or ()),
            "environment": self.environment,
            "setup": self.setup,
            "deadline_s": deadline_s,
            "grace_period_s": arguments.seconds("grace_period", self.grace_period),
            "stop_signal": self.stop_signal,
            "stop_command": self.stop_command,
            "leftovers": self.leftovers,
            "result_file": self.result_file,
            "rules": self._compiled_rules,
            "unbuffered": self.unbuffered,
            "root": self.remote_root,
        }

    # ---- Airflow's calls

    def execute(self, context: Context) -> Any:
        """Launch (or adopt, or report), stay for the early window, then defer once; or follow to the end."""
        current = self._try = self._make_try(context)
        self._executing = True
        try:
            if self._killed:  # before there was a try to tell
                current.stop("killed by Airflow", wait=False)
            current.begin()
            # The target is the earlier launch's when that was adopted; on this machine nothing can be deferred.
            blocking = current.target.conn_id is None or not self.deferrable
            outcome = self._follow(current, None if blocking else arguments.seconds("early_window", self.early_window))
            if outcome is not None:
                outcome = self._redacted(outcome, current)
                try:
                    return self._complete(context, outcome, current.redactor)
                finally:
                    current.acknowledge_end(outcome)
        except InvalidSpec as error:
            raise InvalidRequest(str(error)) from error
        finally:
            self._executing = False
            current.finish_stop()
            current.close()
        if current.stopped:
            raise LaunchRefused("the task was killed; the host stops the training", "stopped")
        self.log.info("The training runs on %s; the triggerer follows it from here.", current.target.peer)
        self.defer(trigger=self._trigger(current), method_name="execute_complete")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """The triggerer saw the end: tell it. The host is asked for files alone, where that was wished."""
        if "outcome" not in event:
            raise AirflowException(f"trigger event: expected an outcome, found {sorted(event)}")
        outcome = Outcome.from_json(event["outcome"])
        redactor = Redactor(secrets.resolve_what_is_there(self.secret_env or {}).values())
        return self._complete(context, Outcome.from_json(redactor.value(outcome.to_json())), redactor)

    def on_kill(self) -> None:
        """
        Airflow gives it 5 s: deliver a durable stop.

        As a signal handler it interrupts ``execute``, which goes on afterwards, must not launch any more, and waits for
        the delivery before it ends.
        """
        self._killed = True
        if self._try is not None:
            self._try.stop("killed by Airflow", wait=not self._executing)

    # ---- before the launch

    def _make_try(self, context: Context) -> TrainingTry:
        from gpualert_provider.conduct import How, TrainingTry, attempt_of
        from gpualert_provider.decide import TryFacts

        ti: Any = context["ti"]
        arguments.check_secret_env(self.secret_env or {})
        values = secrets.resolve(self.secret_env or {})
        target = resolve_target(self.ssh_conn_id)
        map_index = -1 if ti.map_index is None else ti.map_index
        name = f"{ti.dag_id}.{ti.task_id}" + (f"[{map_index}]" if map_index >= 0 else "")
        return TrainingTry(
            target=target,
            spec=self._spec(label=name),
            secrets=values,
            store=context["task_state_store"],
            deployment_id=deployment.deployment_id,
            how=How(
                facts=TryFacts(attempt_of(ti), getattr(ti, "max_tries", None)),
                key_ids=(ti.dag_id, ti.run_id, ti.task_id, str(map_index)),
                who=f"airflow task {name}, run {ti.run_id}, try {ti.try_number}",
                label=ti.task_id,
                root=self.remote_root,
                remote_python=self.remote_python,
                allow_unfenced_retry=self.allow_unfenced_retry,
                patience_s=arguments.seconds("patience", self.patience) or 0.0,
            ),
            emit=self._emit,
            redactor=Redactor([*values.values(), *target.secrets]),
            resolve=resolve_target,
        )

    def _spec(self, label: str) -> LaunchSpec:
        try:
            return dataclasses.replace(arguments.spec(self._arguments()), label=label)
        except InvalidSpec as error:
            raise InvalidRequest(str(error)) from error

    # ---- while it runs

    def _follow(self, current: TrainingTry, for_s: float | None) -> Outcome | None:
        try:
            return current.follow(for_s)
        except AirflowTaskTimeout:
            # The host enforces the same limit from the launch on: its word comes a moment after Airflow's.
            self.log.warning("execution_timeout is over; waiting for the host to stop the training.")
            current.close()
            outcome = current.follow((arguments.seconds("grace_period", self.grace_period) or 0.0) + 30.0)
            if outcome is None:
                raise
            return outcome

    def _emit(self, record: Record) -> None:
        if record.time is None:
            self.log.info(record.text)
        else:
            moment = datetime.fromtimestamp(record.time, timezone.utc).isoformat(timespec="microseconds")
            self.log.info(record.text, timestamp=moment)

    def _trigger(self, current: TrainingTry) -> Any:
        from gpualert_provider.triggers.training import GpuTrainingTrigger

        record = current.record
        assert record is not None and current.target.conn_id is not None
        return GpuTrainingTrigger(
            conn_id=current.target.conn_id,
            host_name=current.target.host_name,
            launch_id=record.launch_id,
            machine_id=record.machine_id,
            boot_id=record.boot_id,
            epoch=current.epoch,
            deferred_at=time.time(),
            hold_s=arguments.seconds("hold", self.hold) or 0.0,
            patience_s=arguments.seconds("patience", self.patience) or 0.0,
            root=self.remote_root,
            remote_python=self.remote_python,
            log_path=record.log_path,
            run_directory=record.run_directory,
            # Ids, not values: Airflow stores a trigger's arguments in clear text.
            secret_env=dict(self.secret_env or {}),
        )

    # ---- at the end

    def _redacted(self, outcome: Outcome, current: TrainingTry) -> Outcome:
        return Outcome.from_json(current.redactor.value(outcome.to_json()))

    def _complete(self, context: Context, outcome: Outcome, redactor: Redactor) -> Any:
        """The one way in which a training's end becomes a task's state: XComs first, then the state."""
        ti: Any = context["ti"]
        self._log_end(outcome)
        if self.do_xcom_push:
            xcoms.push(outcome, ti.xcom_push)
        # Before the ledger says that the end was told: a worker that dies meanwhile leaves it to the next try.
        self._keep_log(context, outcome, redactor)
        self._note_in_ledger(context, outcome)
        if outcome.succeeded:
            if outcome.result_error:
                self.log.warning("result_file: %s", outcome.result_error)
            return outcome.result
        if outcome.state is RunState.FAILED and outcome.exit_code in arguments.exit_codes(self.skip_on_exit_code):
            raise AirflowSkipException(f"{outcome.exit_text} means skipped (skip_on_exit_code)")
        raise GpuTrainingFailed(outcome)

    def _log_end(self, outcome: Outcome) -> None:
        for warning in outcome.warnings:
            self.log.warning(warning)
        if outcome.succeeded:
            self.log.info("The training succeeded after %s. Log: %s", _duration(outcome.duration_s), outcome.log_path)
            return
        self.log.error("The training did not succeed. %s", outcome.headline)
        for item in outcome.evidence:
            self.log.error("Evidence (%s, line %s): %s", item.get("source"), item.get("line"), item.get("text"))
        if outcome.advice:
            self.log.error("What to do: %s", outcome.advice)
        self.log.error("Log: %s on %s (%s bytes)", outcome.log_path, outcome.host.get("name"), outcome.log_size_bytes)

    def _keep_log(self, context: Context, outcome: Outcome, redactor: Redactor) -> None:
        """Whatever comes of it is told, and changes nothing."""
        if self.keep_log is None:
            return
        ti: Any = context["ti"]
        try:
            parts = [ti.dag_id, ti.run_id, ti.task_id]
            if ti.map_index is not None and ti.map_index >= 0:
                parts.append(str(ti.map_index))
            target = resolve_target(self._conn_id_of(context, outcome))
            kept = keep.keep_log(
                target,
                outcome,
                self.keep_log,
                tuple(parts),
                redactor=redactor.with_values(target.secrets),
                root=self.remote_root,
                limit_s=arguments.seconds("keep_log_timeout", self.keep_log_timeout) or 0.0,
                tell=self.log.info,
            )
        except AirflowTaskTimeout:  # no Exception in Airflow 3.3; the training has ended within its time
            kept = keep.KeptLog(why_not="execution_timeout was over first")
        except Exception as error:
            kept = keep.KeptLog(why_not=redactor.text(f"{type(error).__name__}: {error}"))
        if kept.url is None:
            fetch_it = f" As long as it is there: {kept.fetch_command}" if kept.fetch_command else ""
            self.log.warning("keep_log: the log was not kept; it is on the host alone. %s.%s", kept.why_not, fetch_it)
        else:
            self.log.info("keep_log: the log is kept (%s bytes): %s", kept.size_bytes, kept.url)
        if self.do_xcom_push:
            xcoms.push_one(ti.xcom_push, keep.KEPT_LOG_KEY, redactor.value(kept.to_json()))

    def _conn_id_of(self, context: Context, outcome: Outcome) -> str | None:
        """The connection of the launch's host, which is an earlier try's when that was adopted."""
        ledger = ledgers.load(context["task_state_store"])
        entries = () if ledger is None else ledger.entries
        found = next((entry for entry in reversed(entries) if entry.launch_id == outcome.launch_id), None)
        return self.ssh_conn_id if found is None else found.conn_id

    def _note_in_ledger(self, context: Context, outcome: Outcome) -> None:
        """Airflow is about to know. A ledger that cannot be written does not change what the training was."""
        try:
            store = context["task_state_store"]
            ledger = ledgers.load(store)
            entry = (
                None
                if ledger is None
                else next((e for e in reversed(ledger.entries) if e.launch_id == outcome.launch_id), ledger.last)
            )
            if ledger is None or entry is None:
                return
            summary = ledgers.summary(outcome)
            ledgers.save(store, ledger.with_changed(entry, status=EntryStatus.REPORTED, outcome=summary))
        except Exception as error:
            self.log.warning("The outcome could not be noted in the task's ledger: %s", error)


def resolve_target(conn_id: str | None) -> Target:
    """
    Where a connection leads; None is this machine.

    :raises InvalidRequest: the connection does not exist or cannot be used as it is written.
    """
    from gpualert_provider.hooks.errors import InvalidConnection
    from gpualert_provider.hooks.target import LocalTarget, SshTarget

    if conn_id is None:
        return LocalTarget()
    try:
        return SshTarget.from_connection(conn_id)
    except InvalidConnection as error:
        raise InvalidRequest(str(error), "connection") from error


def _duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "an unknown time"
    return str(timedelta(seconds=round(seconds))) if seconds >= 10 else f"{seconds:.1f} s"
