"""Results of a run, computed from its records; `remote.report` renders them."""
