"""A GPU host in memory that keeps the documented rules of claim, fence and tombstone; the transport's one fake.

It speaks in protocol frames, so the code under test runs as it does against a real host. Links can be made to fail.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from gpualert.key import Attempt, LaunchKey
from gpualert.outcome import Outcome
from gpualert.protocol import Frame, HostError
from gpualert.records import ExitStatus, RunRecord, RunState
from gpualert_provider.hooks.errors import TransportError


@dataclass
class FakeTarget:
    conn_id: str | None = "gpu"
    host_name: str = "gpu.example"
    secrets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    command_timeout_s: float = 5.0

    @property
    def peer(self) -> str:
        return f"{self.host_name} (connection {self.conn_id!r})"


@dataclass
class FakeHost:
    """
    :ivar script: what a launch does when it is followed: ``log`` bytes, then its end as a state; None: it goes on
    running.
    :ivar fail_next: errors to raise on the next calls, by request type, before or after the host acted.
    """

    machine_id: str = "m1"
    boot_id: str = "b1"
    launches: dict[str, RunRecord] = field(default_factory=dict)
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    attempts_seen: dict[str, int] = field(default_factory=dict)
    tombstones: dict[str, int] = field(default_factory=dict)
    log: bytes = b"epoch 1\nepoch 2\n"
    acked: int = 0
    ended_acks: int = 0
    end: RunState | None = RunState.SUCCEEDED
    exit_code: int = 0
    result: Any = None
    unreachable: bool = False
    fail_before: dict[str, list[Exception]] = field(default_factory=dict)
    fail_after: dict[str, list[Exception]] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    on_request: Any = None

    # -- the transport

    def open_session(self, target: Any, *, root: str | None = None, remote_python: str | None = None) -> FakeSession:
        if self.unreachable:
            raise TransportError("timeout", "nobody answered in time")
        return FakeSession(self, target)

    # -- the rules

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        request = json.loads(json.dumps(request, allow_nan=False))
        kind = request["type"]
        self.requests.append(request)
        if self.on_request is not None:
            self.on_request(request)
        if self.fail_before.get(kind):
            raise self.fail_before[kind].pop(0)
        reply = getattr(self, f"_{kind}")(request)
        if self.fail_after.get(kind):
            raise self.fail_after[kind].pop(0)
        return reply

    def latest(self, key: LaunchKey) -> RunRecord | None:
        found = [r for r in self.launches.values() if r.key_parts == key.parts]
        return max(found, key=lambda r: r.number, default=None)

    def change(self, launch_id: str, **changes: Any) -> None:
        self.launches[launch_id] = dataclasses.replace(self.launches[launch_id], **changes)

    def alive(self) -> list[str]:
        return [r.launch_id for r in self.launches.values() if not r.state.ended]

    def _launch(self, request: dict[str, Any]) -> dict[str, Any]:
        key, attempt = LaunchKey.from_json(request["key"]), Attempt.from_json(request["attempt"])
        name = key.directory_name
        if self.tombstones.get(name, 0) >= attempt.number:
            raise HostError("tombstoned", f"a stop for attempts up to {self.tombstones[name]} came first")
        if self.attempts_seen.get(name, 0) > attempt.number:
            raise HostError("superseded", f"attempt {self.attempts_seen[name]} was seen")
        self.attempts_seen[name] = attempt.number
        latest = self.latest(key)
        if latest is not None and (
            not latest.state.ended or latest.attempt.id == attempt.id or latest.number > request["after"]
        ):
            return {"type": "existing", "record": latest.to_json()}
        number = (0 if latest is None else latest.number) + 1
        launch_id = key.launch_id(number)
        self.launches[launch_id] = RunRecord(
            launch_id, number, attempt, RunState.RUNNING, f"/r/{number}", f"/r/{number}/log", 1.0,
            key_parts=key.parts, machine_id=self.machine_id, boot_id=self.boot_id,
        )  # fmt: skip
        self.specs[launch_id] = request["spec"]
        self.secrets[launch_id] = request["secrets"]
        return {"type": "launched", "record": self.launches[launch_id].to_json()}

    def _inspect(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["launch_id"] is not None:
            found = self.launches.get(request["launch_id"])
        else:
            found = self.latest(LaunchKey.from_json(request["key"]))
        return {"type": "unknown"} if found is None else {"type": "record", "record": found.to_json()}

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["launch_id"] is None:
            key, attempt = LaunchKey.from_json(request["key"]), Attempt.from_json(request["attempt"])
            found = self.latest(key)
            if found is None or found.state.ended:
                self.tombstones[key.directory_name] = attempt.number
                return {"type": "tombstoned"}
        else:
            found = self.launches[request["launch_id"]]
            if request["epoch"] is not None and request["epoch"] < found.epoch:
                raise HostError("stale_epoch", f"epoch {found.epoch} has attached")
        if not found.state.ended:
            self.change(
                found.launch_id,
                state=RunState.STOPPED,
                stopped_by="request",
                stop_requested=True,
                exit=ExitStatus(signal=15),
                survivors=(),
            )
        return {"type": "stopped", "record": self.launches[found.launch_id].to_json()}

    def outcome(self, launch_id: str) -> Outcome:
        record = self.launches[launch_id]
        failed = record.state in (RunState.FAILED, RunState.STOPPED, RunState.TIMED_OUT)
        return Outcome(
            state=record.state,
            launch_id=launch_id,
            launch_number=record.number,
            attempt=record.attempt,
            host={"name": None, "machine_id": self.machine_id, "boot_id": self.boot_id},
            exit_code=None if record.exit is None else record.exit.code,
            log_path=record.log_path,
            log_size_bytes=len(self.log),
            failure_class="traceback" if failed else "success",
            coarse_class="traceback",
            domain="user_code",
            retry_outlook={"same_host": "no", "other_host": "no"},
            evidence=({"source": "log", "line": 2, "text": self.log.decode().splitlines()[-1]},) if failed else (),
            result=self.result,
        )


class FakeSession:
    def __init__(self, host: FakeHost, target: Any) -> None:
        self.host = host
        self.target = target
        self.hello = {"machine_id": host.machine_id, "boot_id": host.boot_id, "warnings": []}
        self.closed = False

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, request: dict[str, Any], payload: bytes = b"", timeout_s: float | None = None) -> dict[str, Any]:
        if self.host.unreachable:
            raise TransportError("dropped", "the connection was lost")
        return self.host.answer(request)

    def follow(
        self, launch_id, from_="ack", attach=True, who="", *, for_s=None, silence_s=60.0, tick_s=None, budget=None
    ):
        host = self.host
        if host.unreachable:
            raise TransportError("dropped", "the connection was lost")
        if attach:
            host.change(launch_id, epoch=host.launches[launch_id].epoch + 1)
        record = host.launches[launch_id]
        yield Frame({"type": "attached", "epoch": record.epoch, "record": record.to_json()})
        offset = host.acked if from_ == "ack" else from_["offset"]
        while offset < len(host.log):
            if host.fail_before.get("follow"):
                raise host.fail_before["follow"].pop(0)
            piece = host.log[offset : offset + 8]
            yield Frame({"type": "log", "generation": 0, "offset": offset, "time": 1.5}, piece)
            offset += len(piece)
        while True:
            if not host.launches[launch_id].state.ended:
                if host.end is None:
                    yield Frame({"type": "tick"})
                    continue
                host.change(launch_id, state=host.end, exit=ExitStatus(code=host.exit_code))
            yield Frame({"type": "ended", "outcome": host.outcome(launch_id).to_json()})
            return

    def send_ack(self, generation: int, offset: int, ended: bool = False) -> None:
        self.host.acked = offset
        self.host.ended_acks += ended

    def close(self) -> None:
        self.closed = True
