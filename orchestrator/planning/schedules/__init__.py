"""Pipeline schedules as lists of steps, a file for each family of schedules, and their replay in time."""
