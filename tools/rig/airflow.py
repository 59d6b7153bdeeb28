"""A real Airflow in a folder of its own: SQLite, LocalExecutor, four components, a free port, users admin and viewer.

Nothing of the machine's own Airflow is read: home, database, logs, secrets and connections are the rig's.
"""

from __future__ import annotations

import base64
import configparser
import fcntl
import hashlib
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.rig import processes
from tools.rig.airflow_api import AirflowApi
from tools.rig.waiting import DidNotHappen, wait_until

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "airflow-provider-gpualert"

# In the order in which they are started; health is reported under the name on the right.
COMPONENTS: Mapping[str, str] = {
    "api-server": "metadatabase",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}
_STOP_GRACE_S = 15


@dataclass
class Component:
    """One running part of Airflow. ``name`` is unique in the rig ("triggerer-2"), ``kind`` is Airflow's own word."""

    name: str
    kind: str
    process: subprocess.Popen[bytes]
    log: Path
    env: Mapping[str, str] = field(repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def pids(self) -> list[int]:
        """The component's own process and all below it: runners, executor workers, tasks."""
        return [self.pid, *processes.descendants(self.pid)]


class AirflowRig:
    """
    A real Airflow; a context manager that starts and stops it.

    :param dags: files or folders that are copied into the DAGs folder; more can be written there at any time.
    :param connections: connection id to JSON (or URI), passed as AIRFLOW_CONN_<ID>.
    :param config: further settings by Airflow's environment names (``AIRFLOW__TRIGGERER__DEFAULT_CAPACITY``).
    :param env: further environment of all components.
    :param parallelism: how many tasks may run at once.
    :param users_defaults: leave the settings that we only tighten for speed as a user would have them.
    :param folder: where everything is kept; by default a new one, removed at the end.
    """

    def __init__(
        self,
        *,
        dags: Sequence[Path] = (),
        connections: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        parallelism: int = 4,
        users_defaults: bool = False,
        folder: Path | None = None,
    ) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="gpualert-airflow-"))
        self.home = self.folder / "home"
        self.dags_folder = self.folder / "dags"
        self.logs = self.folder / "component-logs"
        for path in (self.home, self.dags_folder, self.logs):
            path.mkdir(parents=True, exist_ok=True)
        for source in dags:
            self.add_dags(source)
        self.passwords = {"admin": secrets.token_urlsafe(9), "viewer": secrets.token_urlsafe(9)}
        self.port = processes.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.components: dict[str, Component] = {}
        self._settings = self._make_settings(parallelism, users_defaults)
        self._settings.update({f"AIRFLOW_CONN_{name.upper()}": text for name, text in (connections or {}).items()})
        self._settings.update(config or {})
        self._settings.update(env or {})
        self.api = AirflowApi(self.url, "admin", self.passwords["admin"])
        self.viewer_api = AirflowApi(self.url, "viewer", self.passwords["viewer"])

    # -- life

    def start(self, deadline_s: float = 120) -> AirflowRig:
        """Make the database, start the four components and wait until each is healthy."""
        self.make_database()
        for kind in COMPONENTS:
            self.start_component(kind)
        self.wait_until_healthy(deadline_s)
        return self

    def wait_until_healthy(self, deadline_s: float = 120) -> None:
        """Wait until all four kinds report themselves healthy; one that ends before that is an error at once."""

        def healthy() -> bool:
            for component in self.components.values():
                if not component.alive:
                    raise DidNotHappen(f"{component.name} ended while starting: {self.last_words(component.name)}")
            health = self.api.health()
            return all(health.get(reported) == "healthy" for reported in COMPONENTS.values())

        wait_until(healthy, deadline_s, lambda: f"Airflow is healthy; it is {self.api.health()}", interval_s=0.25)

    def stop(self) -> None:
        """Stop all that the rig started, tasks that lost their component included."""
        self.api.close()
        self.viewer_api.close()
        running = [component for component in self.components.values() if component.alive]
        for component in running:  # all at once: each takes seconds
            for pid in component.pids():
                processes.send(pid, signal.SIGCONT)
            processes.send(component.pid, signal.SIGTERM)
        for component in running:
            processes.stop(component.process, _STOP_GRACE_S)
        self.components.clear()
        self._end_strays()

    def __enter__(self) -> AirflowRig:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.remove()

    def remove(self) -> None:
        """Remove the rig's folder, if it made that itself and nobody asked to keep it (GPUALERT_KEEP_RIGS)."""
        if self._own_folder and not os.environ.get("GPUALERT_KEEP_RIGS"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- components

    def start_component(self, kind: str, name: str | None = None, env: Mapping[str, str] | None = None) -> Component:
        """Start one component; a further one of the same kind (a second triggerer) needs a name of its own."""
        name = name or kind
        if name in self.components and self.components[name].alive:
            raise ValueError(f"{name} is already running as process {self.components[name].pid}")
        log = self.logs / f"{name}.log"
        # Each serves its logs on a port of its own; with the defaults a second rig on the machine could not.
        settings = {
            **self.environment(),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(processes.free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(processes.free_port()),
            **(env or {}),
        }
        process = processes.start(self._airflow(kind), log, env=settings, cwd=self.home)
        self.components[name] = Component(name, kind, process, log, settings)
        return self.components[name]

    def stop_component(self, name: str, grace_s: float = _STOP_GRACE_S) -> None:
        """Stop one component as an administrator does, with SIGTERM."""
        processes.stop(self.components.pop(name).process, grace_s)

    def kill_component(self, name: str, *, tree: bool = True) -> None:
        """
        SIGKILL, as the OOM killer or a power cut does.

        :param tree: the component with all below it; False kills its first process only, and what it had started
            (a running task) goes on as an orphan.
        """
        component = self.components.pop(name)
        for pid in reversed(component.pids()) if tree else [component.pid]:
            processes.send(pid, signal.SIGKILL)
        component.process.wait()

    def restart_component(self, name: str) -> Component:
        """Start a component that was stopped or killed, with the same settings."""
        kind = next(kind for kind in sorted(COMPONENTS, key=len, reverse=True) if name.startswith(kind))
        return self.start_component(kind, name)

    def freeze(self, name: str) -> None:
        """Let a component and all below it stand still, as a machine that swaps or a paused virtual machine does."""
        for pid in self.components[name].pids():
            processes.send(pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        for pid in reversed(self.components[name].pids()):
            processes.send(pid, signal.SIGCONT)

    def last_words(self, name: str, lines: int = 30) -> str:
        """The end of a component's own log."""
        path = self.logs / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "no log"

    # -- dags

    def add_dags(self, source: Path) -> None:
        """Copy a file, or a folder's files, into the DAGs folder: a DAG may read what lies beside it."""
        found = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        for file in sorted(found) if source.is_dir() else [source]:
            target = self.dags_folder / (file.relative_to(source) if source.is_dir() else file.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)

    def write_dag(self, name: str, source: str) -> Path:
        """Write a DAG file under a name without suffix; ``api.wait_for_dag`` tells when Airflow knows it."""
        path = self.dags_folder / f"{name}.py"
        path.write_text(source)
        return path

    # -- how

    def environment(self) -> dict[str, str]:
        """The environment of every component: ours without anything that could point at another Airflow."""
        dropped = ("AIRFLOW_", "_AIRFLOW", "PYTEST_", "COV_")
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
        for name in ("PYTHONDONTWRITEBYTECODE", "SSH_AUTH_SOCK", "PYTHONPATH"):
            inherited.pop(name, None)
        return {**inherited, **self._settings}

    def run_airflow(self, *words: str, timeout_s: float = 120) -> str:
        """Run one command of Airflow's own CLI to its end and return its output."""
        done = subprocess.run(
            self._airflow(*words),
            env=self.environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode != 0:
            raise RuntimeError(f"airflow {' '.join(words)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    @staticmethod
    def _airflow(*words: str) -> list[str]:
        # -m, so that no script's first line decides which interpreter runs.
        return [sys.executable, "-m", "airflow", *words]

    def _make_settings(self, parallelism: int, users_defaults: bool) -> dict[str, str]:
        passwords = self.folder / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps(self.passwords))
        settings = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "1000",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.folder / "task-logs"),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "NO_PROXY": "*",
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT / "provider", ROOT, *self._entry_points()])),
        }
        if not users_defaults:
            settings |= {
                # A supervisor then notices its child's end in 1 s instead of 5.
                "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
                "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
            }
        return settings

    def _entry_points(self) -> list[Path]:
        """A folder that announces the provider to Airflow, for environments into which the project is not installed."""
        try:
            importlib.metadata.distribution(DISTRIBUTION)
            return []
        except importlib.metadata.PackageNotFoundError:
            pass
        declared = configparser.ConfigParser(interpolation=None)
        declared.read(ROOT / "setup.cfg")
        version = declared["metadata"]["version"]
        site = self.folder / "site"
        info = site / f"{DISTRIBUTION.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n")
        groups = [f"[{group}]\n{lines.strip()}\n" for group, lines in declared["options.entry_points"].items()]
        (info / "entry_points.txt").write_text("\n".join(groups))
        return [site]

    def make_database(self) -> None:
        """Put an empty database of this Airflow's version in place; making one takes seconds, copying one does not."""
        database = self.home / "airflow.db"
        if database.exists():
            return
        store = ROOT / ".cache" / "rig"
        store.mkdir(parents=True, exist_ok=True)
        # Any installed provider may add tables of its own.
        installed = sorted(
            f"{d.name}={d.version}" for d in importlib.metadata.distributions() if d.name and "airflow" in d.name
        )
        digest = hashlib.sha256("\n".join(installed).encode()).hexdigest()[:12]
        model = store / f"empty-{importlib.metadata.version('apache-airflow-core')}-{digest}.db"
        with open(store / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not model.exists():
                self.run_airflow("db", "migrate")
                # Copy under another name first: an interrupted copy must not be taken for a database.
                shutil.copyfile(database, f"{model}.part")
                os.replace(f"{model}.part", model)
                return
        shutil.copyfile(model, database)

    def _end_strays(self) -> None:
        """End what outlived its component: executor workers and tasks whose scheduler was killed above them."""

        def none_left() -> bool:
            strays = [pid for pid in _other_pids() if self._is_ours(pid)]
            for pid in strays:
                processes.send(pid, signal.SIGKILL)
            return not strays

        wait_until(none_left, 20, f"no process of {self.folder} is left")

    def _is_ours(self, pid: int) -> bool:
        # Processes that gave themselves a title have overwritten their environment; those stand in our folder.
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(str(self.folder)):
                return True
            return f"AIRFLOW_HOME={self.home}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # ended, or somebody else's
            return False


def _other_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
