"""Programs that attack a run as an aggregator, a member or an owner could, and what they find of single patients."""
