"""Times small programs on the attached GPU: what a calibration is made from."""
