"""The public data sets as their owners give them out, read into one kind of record."""
