"""What Airflow reads about the provider is true: every class and module it names can be imported."""

from __future__ import annotations

import configparser
import importlib
import json
from pathlib import Path

import airflow
import jsonschema
import pytest

import gpualert_provider

ROOT = Path(gpualert_provider.__file__).parents[2]


def test_it_follows_airflows_schema():
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())

    jsonschema.validate(gpualert_provider.get_provider_info(), schema)


@pytest.mark.parametrize("kind", ["operators", "hooks", "triggers"])
def test_named_modules_exist(kind):
    for group in gpualert_provider.get_provider_info()[kind]:
        for module in group["python-modules"]:
            importlib.import_module(module)


def test_named_classes_exist():
    info = gpualert_provider.get_provider_info()
    for path in [*info["extra-links"], *(d["class-name"] for d in info["task-decorators"])]:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_one_version_everywhere():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")

    assert (
        config["metadata"]["version"]
        == gpualert_provider.__version__
        == gpualert_provider.get_provider_info()["versions"][0]
    )
    assert config["metadata"]["name"] == gpualert_provider.get_provider_info()["package-name"]
