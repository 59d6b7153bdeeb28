"""`make demo`: a real Airflow, a real SSH host, one training that succeeds and six that fail for real reasons."""
