"""The verb that compares hosts with Airflow. What knows Airflow is found by an entry point."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any, Iterator, Mapping, Sequence

from gpualert.cli import add_verb, print_json

ENTRY_POINT_GROUP = "gpualert.reconcile"


def add_verbs(verbs: Any) -> None:
    reconcile = add_verb(
        verbs,
        "reconcile",
        _reconcile,
        summary="find, and mend, what Airflow and its hosts disagree on",
        description="Ask the host of each Airflow connection for its launches, and compare those of this Airflow with "
        "its tasks: orphans (they run, and no task waits for them), launches that ended and were not reported, and "
        "launches that Airflow waits for and the host does not know. Launches of other Airflows and of the command "
        "line are counted and left alone. Run it where Airflow's scheduler runs: it reads the metadata database, and "
        "writes nothing there. Exit status 1: there is a disagreement that was not mended, or a host that could not "
        "be asked.",
        examples="  gpualert reconcile gpu_box gpu_box_2          show what would be done\n"
        "  gpualert reconcile --mend gpu_box             and stop what is proven an orphan",
    )
    reconcile.add_argument("connections", nargs="+", metavar="CONN", help="id of an Airflow ssh connection")
    reconcile.add_argument("--mend", action="store_true", help="ask the hosts to stop orphans")
    reconcile.add_argument("--all", action="store_true", help="show also what Airflow and the hosts agree on")
    reconcile.add_argument("--root", metavar="DIR", help="where run directories live on the hosts, if not as usual")


def _reconcile(options: argparse.Namespace) -> int:
    # Airflow logs to stdout, where whoever reads our JSON would find it.
    with contextlib.redirect_stdout(sys.stderr):
        hosts = _from_airflow()(options.connections, mend=options.mend, root=options.root)
    if options.json:
        print_json({"mend": options.mend, "hosts": hosts})
    else:
        for host in hosts:
            print("\n".join(host_lines(host, mend=options.mend, agreed=options.all)))
    return 0 if all(host["settled"] for host in hosts) else 1


def host_lines(host: Mapping[str, Any], *, mend: bool, agreed: bool) -> Iterator[str]:
    """What people read of one host: a line, and two for each launch that there is something to say of."""
    from gpualert.cli_text import printable

    if host["error"] is not None:
        yield printable(f"{host['connection']}: could not be asked: {host['error']}")
        return
    rows: Sequence[Mapping[str, Any]] = host["launches"]
    shown = [row for row in rows if agreed or row["finding"] != "agreed"]
    counts = [f"{sum(row['finding'] == 'agreed' for row in rows)} agreed"]
    counts += [f"{host[name]} {word}" for name, word in _LEFT_ALONE if host[name]]
    yield printable(f"{host['connection']}: {', '.join(counts)}")
    for row in shown:
        index = "" if row["map_index"] < 0 else f"[{row['map_index']}]"
        task = f"{row['dag_id']}.{row['task_id']}{index}, run {row['run_id']}"
        states = f"{row['host_state'] or 'unknown'} / {row['airflow_state'] or 'none'}"
        yield printable(f"  {row['finding']:<11} {row['launch_id']:<40}  {states:<22}  {task}")
        yield printable(f"  {'':<11} {row['why']}")
        if row["done"]:
            yield printable(f"  {'':<11} → {row['done']}")
        elif row["would"] and not mend:
            yield f"  {'':<11} → with --mend it would be asked to {row['would']}"
    for item in host["damaged"]:
        yield printable(f"  damaged     {item['launch_id']:<40}  {item['why']}")


_LEFT_ALONE = (
    ("foreign", "of other Airflows (left alone)"),
    ("by_hand", "launched by hand (left alone)"),
    ("elsewhere", "on other machines with the same disk (left alone)"),
)


def _from_airflow() -> Any:
    from importlib import metadata

    found: Any = metadata.entry_points()
    # Before Python 3.10 this is a dictionary by group.
    group = found.select(group=ENTRY_POINT_GROUP) if hasattr(found, "select") else found.get(ENTRY_POINT_GROUP, ())
    for entry_point in group:
        return entry_point.load()
    raise LookupError(
        "reconcile: Airflow is asked from where airflow-provider-gpualert is installed; here nothing is registered "
        f"under the entry point {ENTRY_POINT_GROUP!r}"
    )
