"""How an engine runs: its flags, its space, its launchers and a simulated one."""
