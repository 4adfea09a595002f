"""What is tried against a site's disclosure control."""
