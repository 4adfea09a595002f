"""What a site keeps for itself: a secret, and the log of what has left it."""
