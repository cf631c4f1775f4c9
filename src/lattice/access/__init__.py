"""Who the caller is and what that allows: pure rules, no I/O."""
