"""What both sides of a COINSTAC computation agree on: its form, what they say to each other, how much fits."""
