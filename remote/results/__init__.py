"""The results of a run: figures from what is recorded, and what they show; how they are told is `remote.report`."""
