"""Settings: what can be configured, read from a file, the environment and the command line. Nothing acts on it here."""
