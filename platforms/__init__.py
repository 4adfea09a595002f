"""Ways to run on other people's platforms."""
