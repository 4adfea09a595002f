"""NeuroFLAME: a computation of its own, whose nodes of NVFlare's carry the iterations of `platforms.coinstac`."""
