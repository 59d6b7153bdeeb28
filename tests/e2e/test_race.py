"""Airflow 3.3 can fail a task that is resumed within seconds of its deferral. With early window and hold, none is."""

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
