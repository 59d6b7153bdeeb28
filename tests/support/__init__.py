"""What tests share: hosts, accounts, whole machines, a real Airflow, and waiting.

The components themselves live in tools/rig, where the demo uses them too.
"""
