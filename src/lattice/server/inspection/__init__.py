"""What the shell of the server measures for doctor: engines, files, and the process."""
