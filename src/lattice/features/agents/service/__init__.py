"""Enrolment and renewal (`enrolment`), trust and refusal (`trust`)."""
