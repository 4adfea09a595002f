"""NeuroFLAME starts this with any Python, and without an environment."""

import os

os.execv("/opt/rankdad/bin/python", ["python", "-B", "-m", "rankdad.platforms.neuroflame", "central"])
