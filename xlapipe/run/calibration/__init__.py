"""Times small programs on the attached GPU: the input of a calibration."""
