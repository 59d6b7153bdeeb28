"""Wait for a condition with a deadline: tests never sleep and hope."""

from tools.rig.waiting import DidNotHappen, wait_until

__all__ = ["DidNotHappen", "wait_until"]
