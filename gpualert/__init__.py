"""GPU training launched through a process boundary: durable log, exact exit, named cause.

The core of airflow-provider-gpualert. Standard library only; it is copied to machines where nothing is installed.
"""

__version__ = "0.1.0"
