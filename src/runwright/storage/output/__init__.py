"""Step output (stdout and stderr of attempts): in files next to the log, or in a table of the store.

writer.py     LogWriter: bytes of one attempt to timestamped lines, buffered and written in blocks
chunks.py     files of one attempt: paths, header line, rotation and size limit
reader.py     cursors that read these files, merged by time, while they may still be written
files.py      StepLogs: output in files of this machine
log_table.py  StepLogTable: output in table `step_output`, readable by every process that shares the store

Invariants: a step never waits for its output and never fails because of it; output that cannot be stored is dropped
and counted; a writer never changes the files of another writer; secrets are masked before anything is stored.
"""
