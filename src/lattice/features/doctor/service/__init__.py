"""Measuring (`measured`, `examiner`), and a module of pure checks for each group."""
