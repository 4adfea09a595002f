"""NeuroFLAME starts this with any Python, and without an environment."""

import os

PYTHON = "/opt/rankdad/bin/python"
os.execv(PYTHON, [PYTHON, "-B", "-m", "rankdad.platforms.neuroflame", "central"])
