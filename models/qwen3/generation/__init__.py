"""Text generation: the decode loop, sampling, and executables built in advance."""
