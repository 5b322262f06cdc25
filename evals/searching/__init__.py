"""Learning a schedule with the model's weights frozen, by gradient."""
