"""What differs between runs.

`finding` lets a caller in, to each run or to none; `questions` says what the metric store is asked
and `series` asks it, or reads what is kept; `statistics` reckons; `judging` makes of it what is
told; `settings` compares what was asked for; `comparing` puts it together.
"""
