"""The argument ``rules``: the author's own rules for the verdict, found, checked and compiled when the DAG is parsed.

A DAG file is parsed again every half minute, so what was checked once is remembered until the file changes.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpualert.errors import InvalidSpec

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

_SUFFIXES = (".toml", ".json")
#: By path: what the file was when it was read, and its compiled form.
_files: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}


def compiled(value: Any, folders: Iterable[str]) -> dict[str, Any] | None:
    """
    :param value: path of a ``.toml`` or ``.json`` file; TOML text (what has a line break is text); the compiled form
        itself; or None.
    :param folders: where a relative path is looked for, in order.
    :raises InvalidSpec: with file, rule and fault.
    """
    if value is None:
        return None
    from gpualert.userrules import InvalidRules

    try:
        if isinstance(value, Mapping):
            return _checked(json.dumps(value, allow_nan=False))
        if isinstance(value, str) and "\n" in value:
            return _compiled_text(value)
        if isinstance(value, (str, os.PathLike)):
            return _compiled_file(_found(os.fspath(value), folders))
    except InvalidRules as error:
        raise InvalidSpec(f"rules: {error}") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidSpec):
            raise
        raise InvalidSpec(f"rules: expected values that JSON knows: {error}") from None
    raise InvalidSpec(
        "rules: expected the path of a .toml or .json file, TOML text of several lines, or the compiled form, "
        f"found {type(value).__name__}"
    )


def folders_of(task: BaseOperator) -> Iterable[str]:
    """Beside the task's DAG file and in the DAG's search path, as for templates; and in the DAGs folder."""
    from airflow.sdk.configuration import conf

    dag = task.get_dag()
    if dag is not None:
        yield dag.folder
        search = dag.template_searchpath or ()
        yield from [search] if isinstance(search, str) else search
    yield os.path.expanduser(conf.get("core", "dags_folder"))


def _found(path: str, folders: Iterable[str]) -> str:
    if "{{" in path or "{%" in path:
        raise InvalidSpec(
            f"rules: expected a plain path, which is read when the DAG is parsed, found a template: {path!r}"
        )
    if not path.endswith(_SUFFIXES):
        raise InvalidSpec(
            f"rules: expected the path of a .toml or .json file, or TOML text of several lines, found {path!r}"
        )
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    places = list(dict.fromkeys(folders))
    for folder in places:
        if os.path.exists(os.path.join(folder, path)):
            return os.path.join(folder, path)
    raise InvalidSpec(f"rules: expected the file {path} in {' or '.join(places)}, found none")


def _compiled_file(path: str) -> dict[str, Any]:
    from gpualert.userrules import compile_file

    try:
        status = os.stat(path)
    except OSError as error:
        raise InvalidSpec(f"rules: {path}: expected a readable rules file, found: {error.strerror}") from None
    state = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _files.get(path)
    if known is None or known[0] != state:
        known = _files[path] = (state, compile_file(path))
    return known[1]


@functools.lru_cache(maxsize=64)
def _compiled_text(text: str) -> dict[str, Any]:
    from gpualert.userrules import compile_rules

    return compile_rules(text, "text")


@functools.lru_cache(maxsize=64)
def _checked(text: str) -> dict[str, Any]:
    from gpualert.userrules import check_rules

    value: dict[str, Any] = json.loads(text)
    check_rules(value, "compiled form")
    return value
