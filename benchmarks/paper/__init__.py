"""The paper's claims, measured again one by one."""
