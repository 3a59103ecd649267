"""A lake: an append-only store of records on disk, written by several processes and read by any number.

lake     `Lake`: open or create one, its streams, sampling
format   files and folders, the commit log, the head, the locks
codec    checksums, lz4 frames, zstd chunks, in compiled code
write    from steps to bytes; append, acknowledge, roll back; the limit `max_bytes`
recover  the end of a stream after a crash, and cutting off what follows it
stream   a reader's view of one stream, and the index of a segment
read     from record numbers to bytes: many small reads at once
sample   from drawn record numbers to batches, sequences and episodes
"""
