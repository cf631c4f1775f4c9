"""The server's side of telemetry.

intake ─► writing ─► port MetricStore       what nodes bring, checked, stamped, joined and written
modes  ◄► port StateStore                   how closely an allocation is measured, agreed by all
telling                                     what each node is told of its jobs, made once a change
looks, following ─► port NodeStreams        what nodes measure right now
"""
