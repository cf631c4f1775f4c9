"""What a job wrote, as text for people. Pure."""
