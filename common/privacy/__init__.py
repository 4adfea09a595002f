"""Rules of disclosure: pure functions of sets of patients. Secrets and logs are the site's own, in `local/privacy`."""
