"""What runs in a triggerer while a training runs on its host."""
