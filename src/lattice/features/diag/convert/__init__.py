"""The only mapping between the feature's dataclasses and its protobuf messages.

`page` has what people are told, the others what nodes are asked.
"""
