"""
GPUAlert's Airflow provider: GPU training over SSH whose task state is the child's own end, and whose failures have a
named cause.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

PACKAGE_NAME = "airflow-provider-gpualert"


def get_provider_info() -> dict[str, Any]:
    """
    What Airflow shows and registers about this provider.

    There is no connection type of our own: hosts are Airflow's ``ssh`` connections, with the extras the ssh provider
    documents.
    """
    return {
        "package-name": PACKAGE_NAME,
        "name": "GPUAlert",
        "description": "GPU training over SSH: a durable log, the child's own exit, a named cause for every failure.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": "GPUAlert",
                "external-doc-url": "https://airflow.apache.org/docs/apache-airflow-providers-ssh/",
                "tags": ["service"],
            }
        ],
        "operators": [
            {"integration-name": "GPUAlert", "python-modules": ["gpualert_provider.operators.training"]},
        ],
        "hooks": [
            {
                "integration-name": "GPUAlert",
                "python-modules": ["gpualert_provider.hooks.blocking", "gpualert_provider.hooks.streaming"],
            },
        ],
        "triggers": [
            {"integration-name": "GPUAlert", "python-modules": ["gpualert_provider.triggers.training"]},
        ],
        "task-decorators": [
            {"name": "gpu_training", "class-name": "gpualert_provider.decorators.training.gpu_training_task"},
        ],
        "extra-links": ["gpualert_provider.links.GpuTrainingRunLink"],
    }
