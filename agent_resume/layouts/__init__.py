"""Files of other tools, and our own lossless form."""
