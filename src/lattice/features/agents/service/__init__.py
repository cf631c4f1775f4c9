"""The use cases: enrolling and renewing (`enrolment`), believing and refusing (`trust`)."""
