"""The experiments of a reproduction: trainings, measurements and questions, and the folder that they share."""
