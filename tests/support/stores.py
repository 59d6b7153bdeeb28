"""Object stores in memory, at which Airflow's ``ObjectStoragePath`` arrives by the connection ``lab``."""

from __future__ import annotations

import fsspec
from airflow.sdk.io.store import attach
from fsspec import AbstractFileSystem


def attached(protocol: str, store: AbstractFileSystem) -> AbstractFileSystem:
    """``protocol://lab@bucket/…`` leads to ``store`` from here on."""
    fsspec.register_implementation(protocol, type(store), clobber=True)
    attach(protocol, "lab", fs=store)
    return store
