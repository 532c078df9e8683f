"""From a lowered program to a Dump: jobs, the compiling child process, and capture of its files."""
