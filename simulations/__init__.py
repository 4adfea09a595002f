"""Many sites on one machine: the simulator, lockstep runs."""
