"""What a front door says of a communicator in the log."""

SPANS, HANDED = "Isthmus carries the communicator", "gets the communicator"
