"""A site of several processes, started by torchrun: ranks share every batch, and rank 0 speaks for the site."""
