"""
Many mapped trainings in one run. Airflow 3.3 can fail a task that is resumed within seconds of its deferral: with early
window and hold, none is. And a pool that counts deferred tasks keeps as many at a time on a host as it has GPUs.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.gpu_rig import dag_source, gpu_rig

pytestmark = pytest.mark.slow

COUNT = 50
#: From 0 to 15 s after the launch: within the early window, around its end, and shortly after the deferral.
TASKS = f"""
commands = [f"sleep {{n * 15 / {COUNT - 1}:.2f}}; exit {{n % 5 == 4 and 3 or 0}}" for n in range({COUNT})]
GPUTrainingOperator.partial(task_id="train", ssh_conn_id="gpu_box").expand(command=commands)
"""

#: Two hosts with a pool each, one of two GPUs and one of one; a training notes how many others are on its host.
POOLED = """
count = "ls lock-{host} | wc -l >> most-{host}"
command = "mkdir -p lock-{host}; touch lock-{host}/$$; " + count + "; sleep 13; rm lock-{host}/$$"
for host, many in {"gpu_box": 6, "gpu_box_2": 3}.items():
    GPUTrainingOperator.partial(
        task_id=f"train_{host}", ssh_conn_id=host, pool=host, pool_slots=1, early_window=0, hold=2
    ).expand(command=[command.replace("{host}", host)] * many)
"""


def test_a_pool_that_counts_deferred_tasks_keeps_a_host_from_being_shared():
    """Nine mapped trainings, deferred all the while they run: never more on a host than its pool has slots."""
    with gpu_rig({"pooled": dag_source("pooled", POOLED)}, parallelism=8) as rig:
        for name, slots in (("gpu_box", 2), ("gpu_box_2", 1)):
            rig.airflow.run_airflow("pools", "set", name, str(slots), "GPUs", "--include-deferred")
        run = rig.trigger("pooled")

        assert rig.api.wait_for_run("pooled", run, 240) == "success"
        most = {name: (rig.account.home / f"most-{name}").read_text().split() for name in ("gpu_box", "gpu_box_2")}
        assert {name: (len(counts), max(map(int, counts))) for name, counts in most.items()} == {
            "gpu_box": (6, 2),
            "gpu_box_2": (3, 1),
        }


@pytest.mark.timeout(1500)
def test_fifty_short_trainings_end_in_their_own_state():
    """Airflow's and the operator's default settings; every fifth training fails with status 3, the others succeed."""
    with gpu_rig({"race": dag_source("race", TASKS)}, users_defaults=True, parallelism=6) as rig:
        run = rig.trigger("race")
        rig.api.wait_for_run("race", run, 1200)

        tasks = {t["map_index"]: t for t in rig.api.tasks("race", run)}
        assert sorted(tasks) == list(range(COUNT))
        wrong = {
            index: (task["state"], rig.api.xcom("race", run, "train", "exit_code", index))
            for index, task in tasks.items()
            if task["state"] != ("failed" if index % 5 == 4 else "success")
        }
        assert wrong == {}
        codes = Counter(rig.api.xcom("race", run, "train", "exit_code", index) for index in tasks)
        assert codes == {0: COUNT - COUNT // 5, 3: COUNT // 5}
