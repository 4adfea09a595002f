"""NVFlare: a controller at its server and an executor at its clients, which carry the calls of a run's sites."""
