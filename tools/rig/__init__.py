"""Real components for demo, tests and benchmarks: an SSH host, a whole machine, an Airflow.

Nothing here knows a test runner. Each starts what it needs in a folder of its own, on ports it found free, and stops by
pid what it started.
"""
