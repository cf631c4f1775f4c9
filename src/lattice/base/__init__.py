"""The basis of every process: errors, time, configuration, calls, text. Imports no other layer."""
