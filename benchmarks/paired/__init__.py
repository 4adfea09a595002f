"""How right the paired comparison of two models is: its intervals beside a bootstrap, and how often it errs."""
