"""What is said on the wire: the plan, the messages and their bytes."""
