"""The protocol: plan, messages and their bytes."""
