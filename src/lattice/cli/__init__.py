"""The lattice command: root command, lazily loaded feature commands, errors to exit codes."""
