"""Token files and the arithmetic of the sequences in them: numpy alone, shared by the workers and by ``validate``."""
