"""What crosses a topic: records, topics, reasons, codec, and the log as services see it.

This package imports no other package of the project and opens no connection.
"""
