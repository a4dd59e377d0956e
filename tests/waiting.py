"""How long a test waits for a process it has started: enough on a busy machine, and a hang is found all the same."""

PATIENCE = 900.0  # seconds
