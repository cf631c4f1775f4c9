"""Reads files of spans that a job wrote with OpenTelemetry, as the user whose command it is.

    objects.py   lines → the JSON objects in them, on one line or indented over many
    records.py   an object → spans, events and log records, in the SDK's form and in OTLP's
    reader.py    files and folders → the records of one allocation, and what could not be read

The files may be anybody's, and a training may still write to them. What they have is only data.
"""
