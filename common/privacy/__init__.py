"""Rules of disclosure, as pure functions. A site's secret and log are in `local/privacy`."""
