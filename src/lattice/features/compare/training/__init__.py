"""Training runs beside each other: pure functions over what their run store has.

`choice` picks a run for each allocation and its metrics. `epochs` puts logged values and measured
series on the epochs of a run. `pairs` finds where two runs part. `trainings` makes the answer.
The server and the command use them: a user's own file is read by the command alone.
"""
