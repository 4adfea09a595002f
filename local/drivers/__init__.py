"""Drivers: who carries a trainer's messages."""
